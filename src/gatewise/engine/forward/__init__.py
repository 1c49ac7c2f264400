"""Engines that run circuits: dense (all edges), masked (a mask per example, with gradient), sparse (few edges)."""
