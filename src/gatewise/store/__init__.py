"""The run store: results in folders, keyed by everything that determines them, so that nothing is computed twice.

    root/ab/abcdef.../result.json          what was asked, and the result or its plain part
                      arrays.safetensors   of circuits: masks, packed to bits; scores
                      checksums            sha256 of the files

An entry is written under a temporary name, flushed to disk and renamed: it is there as a whole or not at all, also
when two processes write it at once. It is verified when read; a damaged one is set aside and never trusted. No pickle.
A search that takes long keeps its state in a checkpoint beside the place of its result. A store may also be at a URL:
see `gatewise.store.remote`.
"""

from gatewise.store.checkpoints import Checkpoint
from gatewise.store.keys import SCHEMA
from gatewise.store.runs import Store

__all__ = ["SCHEMA", "Checkpoint", "Store"]
