"""Learned ranking: one training that ranks all edges, so that circuits of all sizes come out of it."""
