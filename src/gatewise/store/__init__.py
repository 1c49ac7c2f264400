"""The run store: results in files, keyed by everything that determines them, so that nothing is computed twice.

    root/ab/abcdef....safetensors    what was asked, and the result: plain data, or circuits with their scores
    root/ab/abcdef....checkpoint     the state of a search that has not ended, in the same format
    root/.gatewise-store             tells that a store is here, and in which format

The root is a folder, or a URL that fsspec knows (`s3://`, `gs://`, `sftp://`); the files are the same, so a store can
be copied from one to the other. A file is there as a whole or not at all, also when two processes write it at once: in
a folder by a rename, in a bucket because it takes files as a whole. It has a checksum and is verified when read; a
damaged one is never trusted. No pickle.
"""

from gatewise.store.checkpoints import Checkpoint
from gatewise.store.format import SCHEMA
from gatewise.store.results import Store

__all__ = ["SCHEMA", "Checkpoint", "Store"]
