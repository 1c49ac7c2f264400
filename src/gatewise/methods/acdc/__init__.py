"""ACDC: the greedy search that removes every edge whose removal changes the output by less than tau."""
