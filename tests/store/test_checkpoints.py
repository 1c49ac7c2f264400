"""Checkpoints: a search that was stopped anywhere goes on and ends with exactly the same circuits."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import torch
from interrupted_searches import (
    SEARCHES,
    StoppedError,
    found,
    same,
    search_twice_at_once,
    search_with_small_files,
    stopped_after,
)
from small_models import random_pairs, small_model

from gatewise import files
from gatewise.compute import Compute
from gatewise.errors import GatewiseError, GatewiseWarning
from gatewise.methods import EdgePruning, discover_all
from gatewise.store import Store, checkpoints
from gatewise.store.checkpoints import Checkpoint

KEY = "ab" + "0" * 30
STATE = {"step": 3, "history": [0.1, float("nan")]}
ARRAYS = {"mask": torch.tensor([True, False]), "x": torch.arange(6.0).reshape(2, 3)[:, :2]}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Store(tmp_path).checkpoint(KEY)


def test_round_trip(checkpoint: Checkpoint, tmp_path: Path) -> None:
    assert checkpoint.load() is None
    checkpoint.save({"step": 1}, {})
    checkpoint.save(STATE, ARRAYS)
    saved = checkpoint.load()
    assert saved is not None
    assert repr(saved.state) == repr(STATE)
    assert saved.arrays.keys() == ARRAYS.keys()
    assert all(torch.equal(saved.arrays[name], ARRAYS[name]) for name in ARRAYS)
    assert [path.name for path in tmp_path.glob("*/*")] == [f"{KEY}.checkpoint"]
    checkpoint.clear()
    assert list(tmp_path.glob("*/*")) == []


@pytest.mark.parametrize("place", [0, 70, 200, -1])
def test_damage_is_never_trusted(checkpoint: Checkpoint, tmp_path: Path, place: int) -> None:
    checkpoint.save(STATE, ARRAYS)
    (path,) = tmp_path.glob("*/*")
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.warns(GatewiseWarning, match=r"is not used.*begins anew"):
        assert checkpoint.load() is None
    checkpoint.save(STATE, ARRAYS)
    assert checkpoint.load() is not None


def test_other_versions_are_not_continued(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint.save(STATE, ARRAYS)
    monkeypatch.setattr(checkpoints, "version", lambda name: "0")
    with pytest.warns(GatewiseWarning, match=r"gatewise is .*, not 0.*begins anew"):
        assert Store(tmp_path).checkpoint(KEY).load() is None


@pytest.mark.parametrize("problem", [errno.ENOSPC, errno.EROFS])
def test_what_was_saved_survives_a_full_disk(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: int
) -> None:
    checkpoint.save({"step": 1}, {})

    def failing(path: Path, content: bytes) -> None:
        path.write_bytes(content[: len(content) // 2])
        raise OSError(problem, os.strerror(problem))

    monkeypatch.setattr(files, "_write", failing)
    with pytest.raises(GatewiseError, match=f"checkpoint.*{os.strerror(problem)}.*untouched.*resumes"):
        checkpoint.save({"step": 2}, {})
    saved = checkpoint.load()
    assert saved is not None
    assert saved.state == {"step": 1}
    assert [path.name for path in tmp_path.glob("*/*")] == [f"{KEY}.checkpoint"]


# Searches


@pytest.mark.parametrize("search", SEARCHES)
def test_a_search_stopped_at_every_checkpoint_ends_the_same(tmp_path: Path, search: str) -> None:
    whole, seen = found(search), []  # type: ignore[var-annotated]
    with stopped_after(0, seen):
        assert same(found(search, compute=Compute(store=tmp_path / "whole")), whole)
    saves, seen = len(seen), []
    assert saves >= 2
    for at in {1, saves // 2, saves - 1, saves}:  # stopped once
        with stopped_after(at, seen), pytest.raises(StoppedError):
            found(search, compute=Compute(store=tmp_path / str(at)))
        assert same(found(search, compute=Compute(store=tmp_path / str(at))), whole), f"stopped at checkpoint {at}"
    for _ in range(saves):  # stopped at each in turn, by the search that goes on from the one before
        with stopped_after(1, seen), pytest.raises(StoppedError):
            found(search, compute=Compute(store=tmp_path / "all"))
    seen = []
    with stopped_after(0, seen):
        assert same(found(search, compute=Compute(store=tmp_path / "all")), whole)
    assert seen == []  # nothing was left to do but to end
    assert {path.suffix for path in tmp_path.glob("*/*/*")} == {".safetensors"}, "all else is gone"


def test_a_full_disk_stops_a_search_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = found("edge-pruning threshold")
    real, written = files._write, []  # type: ignore[var-annotated]

    def full(path: Path, content: bytes) -> None:
        if written and ".checkpoint." in path.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.extend([path] if ".checkpoint." in path.name else [])
        real(path, content)

    monkeypatch.setattr(files, "_write", full)
    with pytest.raises(GatewiseError, match=r"checkpoint.*No space left"):
        found("edge-pruning threshold", compute=Compute(store=tmp_path))
    monkeypatch.undo()
    assert len(list(tmp_path.glob("*/*.checkpoint"))) == 1
    seen: list[int] = []
    with stopped_after(0, seen):
        assert same(found("edge-pruning threshold", compute=Compute(store=tmp_path)), whole)
    assert len(seen) == 1  # of two: the first was not lost


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_two_processes_may_do_the_same_search(tmp_path: Path, fresh_process: ProcessPoolExecutor) -> None:
    whole = found("edge-pruning threshold")
    assert fresh_process.submit(search_twice_at_once, tmp_path).result() == [0, 0]
    assert len(list(tmp_path.glob("*/*"))) == 1
    assert same(found("edge-pruning threshold", compute=Compute(store=tmp_path)), whole)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and limits of processes")
def test_a_disk_that_is_really_full(tmp_path: Path, fresh_process: ProcessPoolExecutor) -> None:
    """The system itself refuses to write: files of this process may have 2,000 bytes."""
    found("edge-pruning threshold", seed=1, compute=Compute(store=tmp_path))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert fresh_process.submit(search_with_small_files, tmp_path).result() == 7
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_to(tmp_path: Path) -> None:
    first = found("edge-pruning threshold", compute=Compute(store=tmp_path))
    for folder in (tmp_path, *(path for path in tmp_path.rglob("*") if path.is_dir())):
        folder.chmod(0o555)
    assert same(found("edge-pruning threshold", compute=Compute(store=tmp_path)), first)
    with pytest.raises(GatewiseError, match=r"cannot write to the store.*Permission denied.*untouched"):
        found("edge-pruning threshold", seed=1, compute=Compute(store=tmp_path))
    for folder in (tmp_path, *(path for path in tmp_path.rglob("*") if path.is_dir())):
        folder.chmod(0o755)


def test_no_state_of_several_directions_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a kill between storing the directions' circuits and removing the state of their common search."""
    model, pairs, compute = small_model("gpt2"), random_pairs(), Compute(store=tmp_path)
    method = EdgePruning(steps=25)
    with monkeypatch.context() as killed:
        killed.setattr(Checkpoint, "clear", lambda self: None)
        discover_all(model, pairs, method, ("ns", "dn"), sizes=[20], compute=compute)
    assert list(tmp_path.glob("*/*.checkpoint"))
    discover_all(model, pairs, method, ("ns", "dn"), sizes=[20], compute=compute)
    assert not list(tmp_path.glob("*/*.checkpoint"))
