"""One sign: positive helps the task, for scores and exact effects, in every direction, in files too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import random_pairs, small_model

import gatewise as gw
from gatewise.circuits.circuit import Circuit
from gatewise.circuits.serialization import pack_circuits, unpack_circuits
from gatewise.methods.base import SearchDirection
from gatewise.models.synthetic.logic_model import LogicGate, logic_model, synthetic_pairs

SIGNED: list[tuple[str, SearchDirection]] = [("eap", "ns"), ("eap", "dn"), ("eap", "ns+dn"), ("eap-ig", "ns")]


def helping_and_hurting() -> tuple[Any, Any]:
    """A sum of a source that raises the logit difference and one that lowers it: every method knows their sign."""
    layers = [[LogicGate("B", "ADDER", ("A1", "A2"))]]
    return logic_model("synthetic:signs", {"A1": 3.0, "A2": -1.0}, layers, "B"), synthetic_pairs(2)


@pytest.mark.parametrize(("method", "direction"), SIGNED)
def test_scores_are_positive_where_an_edge_helps(method: str, direction: SearchDirection) -> None:
    model, pairs = helping_and_hurting()
    scores = gw.score_edges(model, pairs, method, direction)
    assert scores["A1->B"] > 0 > scores["A2->B"]
    assert scores["B->logits"] > 0


@pytest.mark.parametrize("direction", ["ns", "dn"])
def test_exact_effects_are_positive_where_an_edge_helps(direction: Any) -> None:
    model, pairs = helping_and_hurting()
    frame = gw.exact_effects(model, pairs, direction=direction).to_frame().set_index("edge")["logit_diff"]
    assert frame["A1->B"] == pytest.approx(3)
    assert frame["A2->B"] == pytest.approx(-1)


@pytest.mark.parametrize(("method", "direction"), SIGNED)
def test_scores_have_the_sign_of_exact_effects_in_a_transformer(method: str, direction: SearchDirection) -> None:
    """Between edges into the logits and the logits there is only a norm: strong ones have the sign of the estimate."""
    model, pairs = small_model("llama", dtype=torch.float64), random_pairs()
    edges = [edge for edge in model.graph.edges if edge.endswith("->logits")]
    scores = torch.tensor([gw.score_edges(model, pairs, method, direction)[edge] for edge in edges])
    singles: tuple[Any, ...] = ("ns", "dn") if "+" in direction or method == "eap-ig" else (direction,)
    exact = torch.stack([gw.exact_effects(model, pairs, edges, single).logit_diff for single in singles]).mean(dim=0)
    strong = exact.abs() > 0.2 * exact.abs().max()
    assert {bool(positive) for positive in exact[strong] > 0} == {True, False}
    assert torch.equal(scores[strong] > 0, exact[strong] > 0)


def test_scores_of_kl_are_positive_where_losing_an_edge_raises_it() -> None:
    model, pairs = helping_and_hurting()
    assert gw.score_edges(model, pairs, "eap-ig", metric="kl")["A1->B"] > 0


def test_files_keep_the_sign_and_files_of_the_first_version_are_turned(tmp_path: Path) -> None:
    model, pairs = helping_and_hurting()
    circuit = gw.discover(model, pairs, "eap", edges=2)
    assert circuit.scores is not None
    path = tmp_path / "circuit.json"
    circuit.save(path, all_scores=True)
    assert json.loads(path.read_text())["edges"]["A1->B"]["score"] > 0
    assert torch.equal(Circuit.load(path).scores.float(), circuit.scores)  # type: ignore[union-attr]
    old = Circuit(circuit.graph, circuit.mask, -circuit.scores, {**circuit.provenance, "method_version": "1"})
    old.save(path, all_scores=True)
    assert torch.equal(Circuit.load(path).scores.float(), circuit.scores)  # type: ignore[union-attr]
    (again,) = unpack_circuits(*pack_circuits([old]))
    assert torch.equal(again.scores, circuit.scores)  # type: ignore[arg-type]
    about_kl = Circuit(circuit.graph, circuit.mask, circuit.scores, {**old.provenance, "metric": {"name": "kl"}})
    about_kl.save(path, all_scores=True)
    assert torch.equal(Circuit.load(path).scores.float(), circuit.scores)  # type: ignore[union-attr]


def test_files_of_eap_ig_itself_are_read_as_they_are(tmp_path: Path) -> None:
    """EAP-IG attributes a loss (minus the logit difference), so that its positive scores help, as ours."""
    model, pairs = helping_and_hurting()
    path = tmp_path / "theirs.json"
    gw.discover(model, pairs, "eap-ig", edges=2).save(path, all_scores=True)
    content = json.loads(path.read_text())
    content["gatewise"].pop("provenance")
    path.write_text(json.dumps(content))
    assert float(Circuit.load(path).scores[model.graph.index("A1->B")]) > 0  # type: ignore[index]
