"""The fuzzing harness, briefly: mutated files, and hypothesis. Inputs that once broke a loader have another file."""

from __future__ import annotations

import importlib
import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gatewise.errors import GatewiseError

FUZZ = Path(__file__).parents[2] / "fuzz"
sys.path.insert(0, str(FUZZ))
run: Any = importlib.import_module("run")
TARGETS: dict[str, Any] = importlib.import_module("targets").TARGETS

CHEAP = [name for name, target in TARGETS.items() if target.cheap]
FEW = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_are_valid(name: str) -> None:
    """A target whose seeds are all refused at the door would test nothing."""
    accepted = 0
    for seed in TARGETS[name].seeds():
        with suppress(GatewiseError):
            TARGETS[name].load(seed)
            accepted += 1
    assert accepted > 0


@pytest.mark.parametrize("name", CHEAP)
def test_mutated_files_load_or_say_why_not(name: str, tmp_path: Path) -> None:
    count = run.by_mutations(name, 1_500, seed=1, keep=tmp_path)
    assert count.cases == 1_500, count.failure
    assert not count.failure


def _hang(_: bytes) -> None:
    while True:
        pass


@pytest.mark.parametrize(
    ("load", "error"),
    [
        (lambda content: {}[content], "KeyError"),
        (_hang, "TooSlowError"),
        (lambda _: bytearray(1 << 34), "MemoryError"),
    ],
)
def test_the_harness_notices(load: Any, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong exception, a hang and a memory bomb all end as failures, with the input kept."""
    monkeypatch.setitem(TARGETS, "bad", importlib.import_module("targets").Target("bad", list, load))
    monkeypatch.setattr(run, "mutated", lambda *_: b"the input")
    count = run.by_mutations("bad", 10, seed=0, keep=tmp_path)
    assert count.cases == 1
    assert error in count.failure
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"the input"]


@pytest.mark.parametrize("name", [name for name in CHEAP if TARGETS[name].json])
def test_any_json(name: str) -> None:
    @FEW
    @given(JSON)
    def check(value: Any) -> None:
        TARGETS[name].run(json.dumps(value).encode())

    check()


@pytest.mark.parametrize("name", CHEAP)
def test_any_bytes(name: str) -> None:
    @FEW
    @given(st.binary(max_size=200))
    def check(content: bytes) -> None:
        TARGETS[name].run(content)

    check()
