"""Tests of gates by intervention: tables of groups of edges into one node, their labels, and the search for them."""
