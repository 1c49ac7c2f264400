"""Patching single edges and nodes exactly: incremental recomputation, effects of edges, outputs of one node."""
