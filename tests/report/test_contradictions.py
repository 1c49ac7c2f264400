"""No verdict or advice of a page is contradicted by the page's own data."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from small_models import random_pairs, small_model

import gatewise as gw
from gatewise.evaluation import Evaluations
from gatewise.gate_types import GATE_TYPES
from gatewise.report import Report, make_report
from gatewise.report.headline import AGAINST, RISES, next_steps
from gatewise.tasks import Task


def contradictions(report: Report) -> Iterator[str]:
    """What the page says and its data do not."""
    page = report.page_data
    facts = {remark["title"]: remark for remark in page["facts"]}
    trust = {remark["title"]: remark for remark in page["trust"]}
    yield from _of_faithfulness(page, facts["How faithful?"])
    yield from _of_curves(page, trust)
    yield from _of_gates(page, facts["Which gates?"])
    if page["doubts"] and "good" in {remark["level"] for remark in page["facts"] + page["trust"]}:
        yield "marks something as good though all is doubtful"
    against = {name for name, effect in page["nodes"]["effect"].items() if effect < -AGAINST}
    said = trust.get("Nodes against the task", {"text": ""})["text"]
    listed = re.findall(r"(\S+) [-+][\d,]+%", said)
    others = re.search(r"and (\d+) more", said)
    if not set(listed) <= against or len(listed) + int(others[1] if others else 0) != len(against):
        yield f"nodes against the task: {said}, {against}"
    for step in next_steps(report):
        if step.changes.get("edges", 0) > report.graph.n_edges:
            yield f"asks for more edges than there are: {step}"
        if "all_gates" in step.changes and not report.testable:
            yield "asks for tests that the model does not allow"
        if step.changes.get("method", "") == page["provenance"]["method"]:
            yield "asks for the method that was used"


def _of_faithfulness(page: dict[str, Any], remark: dict[str, Any]) -> Iterator[str]:
    union, drawn = page["curves"]["ns|dn"][-1], page["drawn"]
    poor = union["on_path"] == 0 or abs(1 - union["kept"][0]) > 0.21 or union["recovered"] < 0.79
    if remark["answer"].startswith("yes") and poor:
        yield f"faithful, with {union['kept']} and {union['recovered']}"
    if not page["doubts"] and f"faithful: {remark['answer']}" not in page["headline"]:
        yield "headline and verdict differ"
    if union["on_path"] == 0 and not page["doubts"]:
        yield "a circuit without a path has no doubts"
    if drawn is not None:
        said = re.search(r"The ([\d,]+) drawn edges alone keep (-?\d+)%", remark["text"])
        if said is None or int(said[1]) != len(drawn["edges"]) or abs(int(said[2]) / 100 - drawn["kept"][0]) > 0.0051:
            yield f"drawn edges: {remark['text']}, {drawn['kept']}"


def _of_curves(page: dict[str, Any], trust: dict[str, Any]) -> Iterator[str]:
    falls = False
    for curve in page["curves"].values():
        for i, smaller in enumerate(curve):
            for larger in curve[i + 1 :]:
                if None not in (*smaller["kept"], *larger["kept"]):
                    falls |= smaller["kept"][1] > larger["kept"][2]
    if falls != ("Falling curve" in trust):
        yield f"falling curve: {falls}"
    kept = [size["kept"][0] for size in page["curves"]["ns|dn"]]
    rises = len(kept) > 1 and None not in kept[-2:] and kept[-1] - kept[-2] > RISES
    for step in page["next"]:
        if "still rises" in step["why"] and not rises:
            yield f"promises more of larger circuits: {kept}"
        if "more edges do not help" in step["why"] and rises:
            yield f"says that more edges do not help: {kept}"
        if "keeps more" in step["why"] and len(kept) > 1:
            yield f"speaks of one size: {kept}"
        if "faithfulness" in step["changes"] and "keeps more" in step["why"]:
            yield "promises more of larger circuits, unmeasured"


def _of_gates(page: dict[str, Any], remark: dict[str, Any]) -> Iterator[str]:
    if page["gates"] is None:
        return
    significant = [gate for gate in page["gates"]["tested"] if gate["significant"]]
    pure = sum(gate["label"] in GATE_TYPES for gate in significant)
    if not remark["answer"].startswith(f"{len(significant)} significant"):
        yield f"{remark['answer']}: {len(significant)} are"
    if significant and f", {pure or 'none'} a pure gate" not in remark["answer"]:
        yield f"{remark['answer']}: {pure} are"


def backwards(report: Report) -> Report:
    """The same report with curves that fall: each size keeps what another one kept."""
    curves = {}
    for name, curve in report.curves.items():
        sizes = [size.edges for size in curve]
        reversed_curve = [replace(size, edges=edges) for size, edges in zip(curve[::-1], sizes, strict=True)]
        curves[name] = Evaluations(tuple(reversed_curve))
    return replace(report, curves=curves)


@pytest.fixture(scope="module")
def tiny() -> gw.Model:
    return gw.load_model("tiny")


@pytest.mark.parametrize("edges", [1, 6, 64, 400])
@pytest.mark.parametrize("method", ["eap", "eap-ig"])
def test_of_tiny_at_any_size(tiny: gw.Model, edges: int, method: str) -> None:
    task = gw.task("ioi", tiny, examples=8)
    report = make_report(tiny, task, method, edges=edges, random_circuits=0, examples=2)
    assert list(contradictions(report)) == []
    assert list(contradictions(backwards(report))) == []


def test_of_a_falling_curve(found: Report) -> None:
    falling = backwards(found)
    assert "Falling curve" in {remark["title"] for remark in falling.page_data["trust"]}
    assert not any("rises" in step["why"] for step in falling.page_data["next"])
    assert list(contradictions(falling)) == []
    assert list(contradictions(found)) == []


def test_of_a_circuit_without_a_path(tiny: gw.Model) -> None:
    report = make_report(tiny, gw.task("ioi", tiny, examples=8), edges=2, random_circuits=0, examples=1)
    assert report.evaluation.on_path == 0
    assert "allow more edges" in report.page_data["next"][0]["why"]
    assert list(contradictions(report)) == []


@pytest.mark.parametrize("faithfulness", [0.3, 0.9])
def test_of_sizes_by_faithfulness(tiny: gw.Model, faithfulness: float) -> None:
    task = gw.task("ioi", tiny, examples=24, test_examples=8)
    for most in (8, None):
        report = make_report(tiny, task, faithfulness=faithfulness, edges=most, random_circuits=0, examples=1)
        assert list(contradictions(report)) == []


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gemma2", "olmo2"])
@pytest.mark.parametrize("seed", range(2))
def test_of_random_models(kind: str, seed: int) -> None:
    model, pairs = small_model(kind), random_pairs(lengths=(7, 5, 7, 6, 7, 7, 6, 5), seed=seed)
    task = Task("random", pairs, pairs, seed=0, bos=False)
    for edges in (4, 40, model.graph.n_edges):
        report = make_report(model, task, edges=edges, random_circuits=1, examples=1)
        assert list(contradictions(report)) == []
        assert list(contradictions(backwards(report))) == []
