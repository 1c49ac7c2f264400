"""Objects show themselves in notebooks: what matters, and text as text."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import pytest
import torch

import gatewise as gw
from gatewise.methods.discovery import Scores  # type: ignore[attr-defined]
from gatewise.models.synthetic.logic_model import synthetic_pairs

HOSTILE = "<script>alert(1)</script> & 'x'"


@pytest.fixture(scope="module")
def shown() -> dict[str, Any]:
    """One of every public kind of object."""
    model = gw.load_model("synthetic:combined")
    pairs = synthetic_pairs()
    gates = gw.find_gates(model, pairs, "eap", threshold=0.01, joint=False)
    tiny = gw.load_model("tiny")
    task = gw.task("ioi", tiny, examples=2)
    return {
        "model": tiny,
        "graph": model.graph,
        "circuit": gates.ns,
        "gates": gates,
        "pairs": task.train,
        "task": task,
        "scores": gw.score_edges(model, pairs),
        "effects": gw.exact_effects(model, pairs),
        "evaluation": gw.evaluate(model, pairs, gates.ns),
    }


WHAT = {
    "model": "3,628 edges",
    "graph": "21 edges",
    "circuit": "A1-&gt;B1",
    "gates": "B1 = A1 &amp; A2",
    "pairs": "2 examples of up to 17 tokens",
    "task": "2 pairs to search on",
    "scores": "by eap ns of 21 edges",
    "effects": "C-&gt;logits",
    "evaluation": "logit diff kept",
}


@pytest.mark.parametrize("name", WHAT)
def test_objects_show_what_they_are(shown: dict[str, Any], name: str) -> None:
    text = shown[name]._repr_html_()
    assert WHAT[name] in text
    assert len(text) < 6_000
    ET.fromstring(f"<div>{text}</div>")  # well formed


def test_text_is_never_markup() -> None:
    graph = gw.load_model("synthetic:and").graph
    pairs = gw.Pairs.from_tokens([[1]], [[2]], [3], [4], name=HOSTILE, clean_text=[HOSTILE], corrupted_text=[HOSTILE])
    task = gw.Task(HOSTILE, pairs, pairs, 0, False)
    circuit = gw.Circuit(graph, graph.full().mask, None, {"method": HOSTILE, "direction": "ns"})
    scores = Scores(graph, torch.zeros(graph.n_edges), {"method": HOSTILE})
    for thing in (pairs, task, circuit, scores):
        text = thing._repr_html_()
        assert "<script" not in text
        assert "&lt;script&gt;" in text
