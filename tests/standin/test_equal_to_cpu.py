"""Every public call, every architecture and the command line on the stand-in accelerator: the CPU's numbers, exactly.

On the device without float64 they are the same to float32's precision.
"""

from __future__ import annotations

import inspect
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import standin_device
import torch
from small_models import ARCHITECTURES, random_pairs, small_model
from standin_calls import CALLS, numbers_of
from torch import Tensor

import gatewise as gw
from gatewise.cli.main import main
from gatewise.errors import GatewiseError
from gatewise.gates.backups import find_backups
from gatewise.methods.acdc.method import Acdc
from gatewise.methods.edge_pruning.method import EdgePruning
from gatewise.models.model import Model
from gatewise.tasks import Task

API = Path(__file__).parents[2] / "docs" / "api.md"
_expected: dict[str, dict[str, Tensor | str]] = {}


@pytest.fixture(scope="module")
def models(standin: None) -> dict[str, tuple[Model, Task]]:
    """`tiny` on the CPU, on a stand-in device, and on the one without float64."""
    loaded = {}
    for device in ("cpu", "standin:1", standin_device.WITHOUT_FLOAT64):
        model = gw.load_model("tiny", device=device)
        loaded[device] = (model, gw.task("ioi", model, examples=8))
    return loaded


def _outcome(call: str, models: dict[str, tuple[Model, Task]], device: str) -> dict[str, Tensor | str]:
    if device != "cpu":
        return dict(numbers_of(CALLS[call](*models[device])))
    if call not in _expected:
        _expected[call] = dict(numbers_of(CALLS[call](*models["cpu"])))
    return _expected[call]


def _equal(given: dict[str, Tensor | str], expected: dict[str, Tensor | str], tolerance: float = 0.0) -> None:
    assert given.keys() == expected.keys()
    for path, value in expected.items():
        other = given[path]
        if isinstance(value, str) or isinstance(other, str):
            assert other == value, path
        elif tolerance:
            torch.testing.assert_close(other, value, equal_nan=True, msg=path, atol=tolerance, rtol=tolerance)
        else:
            assert torch.equal(other.nan_to_num(), value.nan_to_num()), path


@pytest.mark.filterwarnings("ignore::gatewise.errors.GatewiseWarning")
@pytest.mark.parametrize("call", CALLS)
def test_a_call_gives_the_cpus_numbers(call: str, models: dict[str, tuple[Model, Task]]) -> None:
    _equal(_outcome(call, models, "standin:1"), _outcome(call, models, "cpu"))


@pytest.mark.filterwarnings("ignore::gatewise.errors.GatewiseWarning")
@pytest.mark.parametrize("call", CALLS)
def test_a_call_works_without_float64(call: str, models: dict[str, tuple[Model, Task]]) -> None:
    given, expected = _outcome(call, models, standin_device.WITHOUT_FLOAT64), _outcome(call, models, "cpu")
    assert any(isinstance(value, Tensor) for value in expected.values()) == any(
        isinstance(value, Tensor) for value in given.values()
    )
    _equal(given, expected, 1e-3)


def test_all_public_functions_of_a_model_are_among_the_calls() -> None:
    names = {re.split("[, ]", call)[0] for call in CALLS}
    for name in re.findall(r"^::: (gatewise\.\S+)", API.read_text(), flags=re.MULTILINE):
        module, _, function = name.rpartition(".")
        public = getattr(import_module(module), function)
        if inspect.isfunction(public) and "model" in inspect.signature(public).parameters:
            assert function in names, f"{function} does not run on the stand-in accelerator"


@pytest.mark.filterwarnings("ignore::gatewise.errors.GatewiseWarning")
@pytest.mark.parametrize(
    ("architecture", "dtype"),
    [
        *((name, torch.float32) for name in ARCHITECTURES),
        *((name, torch.bfloat16) for name in ("gpt2", "neox", "llama", "gemma3", "olmo2")),
    ],
    ids=str,
)
def test_an_architecture_gives_the_cpus_numbers(architecture: str, dtype: torch.dtype) -> None:
    pairs = random_pairs(lengths=(6, 4, 6, 5) * 2)
    outcomes = []
    for device in ("cpu", "standin:3"):
        model = small_model(architecture, dtype=dtype, device=device)
        circuit = gw.discover(model, pairs, edges=60)
        outcome: dict[str, Any] = {
            "eap": gw.score_edges(model, pairs).values,
            "edge-pruning": gw.discover(model, pairs, EdgePruning(steps=2), edges=30),
            "evaluate": gw.evaluate(model, pairs, circuit, random_circuits=1),
        }
        if model.changes_singly:
            outcome |= {
                "acdc": gw.discover(model, pairs, Acdc(), threshold=0.05),
                "exact": gw.exact_effects(model, pairs, range(0, model.graph.n_edges, 9)),
                "gate": gw.test_gate(model, pairs, "a1.h0", {"q": "<q>", "v": "<v>"}),
                "backups": find_backups(model, pairs, ["a0.h0"]),
            }
        outcomes.append(dict(numbers_of(outcome)))
    _equal(outcomes[1], outcomes[0])


def _command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["gatewise", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code


@pytest.mark.filterwarnings("ignore::gatewise.errors.GatewiseWarning")
def test_the_command_line_takes_the_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    circuits, evaluations = [], []
    for device in ("cpu", "standin:2"):
        out, options = tmp_path / device.replace(":", "-"), ("--examples", 8, "--edges", 30, "--device", device)
        _command(monkeypatch, "discover", "tiny", "--task", "sa", *options, "--out", out)
        _command(monkeypatch, "run", "tiny", *options, "--out", out / "report")
        circuits.append(gw.Circuit.load(out / "eap-ns-30.json"))
        evaluations.append((out / "report" / "evaluation.json").read_text())
    assert circuits[0] == circuits[1]
    assert circuits[1].provenance["device"] == "standin:2"
    assert evaluations[0] == evaluations[1]


def test_a_device_that_is_not_there_is_refused_before_the_work() -> None:
    with pytest.raises(GatewiseError, match="standin:9"):
        gw.load_model("tiny", device="standin:9")
    with pytest.raises(GatewiseError, match="float64"):
        gw.load_model("tiny", device=standin_device.WITHOUT_FLOAT64, dtype="float64")
