"""Python as people write it: tasks in place of pairs, shares of edges, pairs from any rows, frames, knock-outs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import pandas
import pytest
import torch

import gatewise as gw
from gatewise.engine import Setting
from gatewise.models.model import Model
from gatewise.tasks import Task

ROWS = [
    {
        "clean": "The girls helped",
        "corrupted": "The girl helped",
        "correct": "themselves",
        "incorrect": "herself|himself",
    },
    {
        "clean": "The queens blamed",
        "corrupted": "The queen blamed",
        "correct": "themselves",
        "incorrect": "herself|himself",
    },
    {"clean": "The boys hurt", "corrupted": "The boy hurt", "correct": "themselves", "incorrect": "himself|herself"},
]


class Split:
    """As much of a split of a Hugging Face dataset as we use: it yields a dict for each row."""

    column_names = ("Clean", "Corrupted", "RIGHT", "incorrect", "id")

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number, row in enumerate(ROWS):
            yield dict(zip(self.column_names, (*row.values(), number), strict=True))


@pytest.fixture(scope="module")
def tiny() -> Model:
    return gw.load_model("tiny")


@pytest.fixture(scope="module")
def task(tiny: Model) -> Task:
    return gw.task("ioi", tiny, examples=4)


def test_a_task_stands_for_its_pairs(tiny: Model, task: Task) -> None:
    circuit = gw.discover(tiny, task, edges=30)
    assert circuit == gw.discover(tiny, task.train, edges=30)
    assert gw.evaluate(tiny, task, circuit, random_circuits=0) == gw.evaluate(
        tiny, task.test, circuit, random_circuits=0
    )
    assert gw.find_gates(tiny, task, edges=30, joint=False) == gw.find_gates(tiny, task.train, edges=30, joint=False)
    assert torch.equal(gw.run_circuit(tiny, task), gw.run_circuit(tiny, task.test))
    edges = ["a4.h0->a5.h0", "m5->logits"]  # the first means q, k and v
    effects = gw.exact_effects(tiny, task, edges)
    assert [tiny.graph.edges[edge] for edge in effects.edges] == [*(f"{edges[0]}<{port}>" for port in "qkv"), edges[1]]
    assert torch.equal(effects.logit_diff, gw.exact_effects(tiny, task.test, list(effects.edges)).logit_diff)
    with pytest.raises(gw.GatewiseError, match=r"task\.train or task\.test"):
        Setting(tiny, task)  # type: ignore[arg-type]


def test_edges_may_be_a_share(tiny: Model, task: Task) -> None:
    assert gw.discover(tiny, task, edges=0.01) == gw.discover(tiny, task, edges=36)
    assert [len(one) for one in gw.discover_all(tiny, task, "eap", ["ns"], sizes=[0.01, 50])["ns"]] == [36, 50]
    assert len(gw.find_gates(tiny, task, edges=0.01, joint=False).ns) == 36
    for incorrect in (1.0, 20.5, -0.1, True, float("nan")):
        with pytest.raises(gw.GatewiseError, match="a share between 0 and 1 of the 3,628 edges"):
            gw.discover(tiny, task, edges=incorrect)


@pytest.mark.parametrize(
    "data",
    [
        ROWS,
        [tuple(row.values()) for row in ROWS],
        {name.upper(): [row[name] for row in ROWS] for name in ROWS[0]} | {"note": ["a", "b", "c"]},
        pandas.DataFrame(ROWS).rename(columns=str.title).assign(extra=1),
        Split(),
        [{**row, "incorrect": row["incorrect"].split("|")} for row in ROWS],
    ],
    ids=["dicts", "tuples", "columns", "pandas", "dataset", "lists-of-answers"],
)
def test_pairs_from_any_rows(tiny: Model, data: Any) -> None:
    expected = gw.Pairs.from_text(ROWS, tiny)
    pairs = gw.Pairs.from_text(data, tiny)
    assert pairs.fingerprint == expected.fingerprint
    made = gw.task(data, tiny, difference="probability")
    assert (made.name, len(made.train), len(made.test)) == ("own pairs:difference=probability", 1, 2)
    assert made.used_up


def test_examples_are_text(tiny: Model, task: Task) -> None:
    pairs = gw.Pairs.from_text(ROWS, tiny)
    assert pairs[0].clean == "The girls helped"
    assert pairs[-1].incorrect == (" himself", " herself")
    assert [example.corrupted for example in pairs] == [row["corrupted"] for row in ROWS]
    assert list(pairs[1:]) == list(pairs)[1:]
    assert task.train[2].template
    assert task.train[0].correct[0] in task.train[0].clean
    with pytest.raises(IndexError):
        pairs[3]
    ids = gw.Pairs.from_tokens([[1, 2], [3]], [[1, 4], [5]], [6, [7, 8]], [9, 9])
    assert (ids[1].clean, ids[1].correct, ids[0].corrupted) == ("#3", ("#7", "#8"), "#1 #4")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([{**ROWS[0], "clean": ""}, ROWS[1], {**ROWS[2], "correct": "a b"}], r"pair 0: clean is ''.* 1 further row"),
        ([{"clean": "a"}], r"pair 0: columns: missing \['corrupted', 'correct', 'incorrect'\], there are \['clean'\]"),
        ({"clean": ["a"], "corrupted": ["b"], "correct": ["c"], "incorrect": ["d", "e"]}, "lists of equal length"),
        ({"train": ROWS, "test": ROWS}, "one split of a Hugging Face dataset"),
        ([("a", "b")], "is no pair"),
        (7, "cannot be read from a int"),
    ],
)
def test_wrong_rows_are_named(tiny: Model, data: Any, said: str) -> None:
    with pytest.raises(gw.GatewiseError, match=said):
        gw.Pairs.from_text(data, tiny)


def test_top_and_frames(tiny: Model, task: Task) -> None:
    circuit = gw.discover(tiny, task, edges=30)
    assert circuit.scores is not None
    top = circuit.top(5)
    assert len(top) == 5
    order = sorted(circuit, key=lambda edge: -abs(float(circuit.scores[tiny.graph.index(edge)])))  # type: ignore[index]
    assert list(top) == order[:5]
    frame = circuit.to_frame()
    assert frame["edge"].tolist() == order
    assert frame.loc[0, "score"] == top[order[0]]
    assert f"{frame.loc[0, 'sender']}->{frame.loc[0, 'port']}" == order[0]
    assert tiny.graph.circuit(["m0->logits"]).top() == {"m0->logits": 1.0}
    scores = gw.score_edges(tiny, task)
    assert next(iter(scores.top(1).items())) == (order[0], scores[order[0]])
    assert len(scores.to_frame()) == tiny.graph.n_edges
    effects = gw.exact_effects(tiny, task.train, order[:3]).to_frame()
    assert sorted(effects["edge"]) == sorted(order[:3])
    assert effects["kl"].abs().is_monotonic_decreasing
    several = gw.evaluate(tiny, task, [circuit, circuit], random_circuits=0)
    assert several.to_frame()["circuit_logit_diff"].tolist() == [several[0].circuit.logit_diff.mean] * 2
    assert several[0].to_frame()["full_logit_diff"].mean() == pytest.approx(several[0].full.logit_diff.mean)
    assert repr(several[0]) == str(several[0]) == str(several[:1])


def test_frames_need_pandas(monkeypatch: pytest.MonkeyPatch, tiny: Model) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(gw.GatewiseError, match="pip install pandas"):
        tiny.graph.circuit(["m0->logits"]).to_frame()


def test_knock_out_is_the_model_without(tiny: Model, task: Task) -> None:
    graph = tiny.graph
    sent = graph.circuit([edge for edge in graph.edges if edge.startswith("m0->")])
    without = gw.ablate(tiny, task, "m0")
    assert without.edges == sent
    logits = gw.run_circuit(tiny, task.test, ~sent)
    assert without.left.logit_diff.mean == pytest.approx(float(task.test.logit_diff(logits).mean()), abs=1e-4)
    assert without.logit_diff_left < 0.5
    assert gw.ablate(tiny, task.test, ["a0.3", "m1->logits"]).edges == graph.circuit(
        [edge for edge in graph.edges if edge.startswith("a0.h3->")] + ["m1->logits"]
    )
    nothing = gw.ablate(tiny, task, graph.empty())
    assert nothing.left == nothing.full
    assert nothing.logit_diff_left == 1
    assert "Without m0" in repr(without)
    with pytest.raises(gw.GatewiseError, match="no node 'logits' that sends"):
        gw.ablate(tiny, task, ["logits"])
    zero = gw.ablate(tiny, task, "m0", ablation="zero")
    assert not torch.isclose(torch.tensor(zero.left.logit_diff.mean), torch.tensor(without.left.logit_diff.mean))


def test_version() -> None:
    assert gw.__version__ == version("gatewise")
