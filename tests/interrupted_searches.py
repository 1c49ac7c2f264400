"""Searches that are stopped after they have saved their state so many times."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import random_pairs, small_model

from gatewise.circuits.circuit import Circuit
from gatewise.compute import Compute
from gatewise.errors import GatewiseError
from gatewise.methods import Acdc, EdgePruning, Method, Ranking, discover_all
from gatewise.methods.base import SearchDirection
from gatewise.models.model import Model
from gatewise.store.checkpoints import Checkpoint


class StoppedError(Exception):
    """Stands for the end of the process."""


@contextmanager
def stopped_after(saves: int, seen: list[int]) -> Iterator[None]:
    """Stop a search right after it has saved its state so many times."""
    real, left = Checkpoint.save, [saves]

    def save(self: Checkpoint, state: Any, arrays: Any) -> None:
        real(self, state, arrays)
        seen.append(1)
        left[0] -= 1
        if left[0] == 0:
            raise StoppedError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoint, "save", save)
        yield


JOINT = EdgePruning(steps=65, combine="joint", batch=3, draw="each", patience=4, ramp=0.5)
SEARCHES: dict[str, tuple[Method, SearchDirection, dict[str, Any]]] = {
    "acdc threshold": (Acdc(), "ns+dn", {"threshold": 1e-4}),
    "acdc sizes": (Acdc(max_thresholds=4, batch=3, chain=5), "dn", {"sizes": [40, 12]}),
    "edge-pruning sizes": (EdgePruning(steps=25), "ns+dn", {"sizes": [40, 12]}),
    "edge-pruning threshold": (EdgePruning(steps=45), "dn", {"threshold": 0.5}),
    "edge-pruning joint": (JOINT, "ns+dn", {"sizes": [10]}),
    "ranking": (Ranking(steps=45, examples=2, combine="mean"), "ns+dn", {"sizes": [40, 12]}),
}


def found(search: str, **options: Any) -> list[Circuit]:
    method, direction, asked = SEARCHES[search]
    return list(discover_all(_model(), random_pairs(), method, [direction], **asked, **options)[direction])


@cache
def _model() -> Model:
    return small_model("gpt2")


def same(a: list[Circuit], b: list[Circuit]) -> bool:
    """Masks, scores and notes, bit by bit."""
    return all(
        x == y
        and x.scores is not None
        and y.scores is not None
        and torch.equal(x.scores, y.scores)
        and repr(x.provenance.get("notes")) == repr(y.provenance.get("notes"))
        for x, y in zip(a, b, strict=True)
    )


def search_twice_at_once(folder: Path) -> list[int]:
    """Return how two forks have ended."""
    whole = found("edge-pruning threshold")
    children = []
    for _ in range(2):
        children.append(os.fork())
        if children[-1] == 0:
            code = 1
            try:
                code = 0 if same(found("edge-pruning threshold", compute=Compute(store=folder)), whole) else 2
            finally:
                os._exit(code)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def search_with_small_files(folder: Path) -> int:
    """Return how a fork has ended: with 7 if it said that it could not save."""
    import resource

    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, 2_000))
            found("edge-pruning threshold", compute=Compute(store=folder))
        except GatewiseError as error:
            code = 7 if "checkpoint" in str(error) and "File too large" in str(error) else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
