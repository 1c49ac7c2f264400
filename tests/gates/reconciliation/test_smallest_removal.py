"""Tasks combined by logic: synthetic tasks against trying every set of edges, and against running the model."""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import gatewise as gw
import gatewise.cli.main as cli
from gatewise.circuits.circuit import Circuit
from gatewise.circuits.graph import Graph
from gatewise.errors import GatewiseError
from gatewise.gates.labels import Gates, GroupGate, label_gates
from gatewise.gates.reconciliation import Reconciliation, other_removals, reconcile, try_removals
from gatewise.gates.reconciliation._clauses import Clauses
from gatewise.gates.reconciliation.formulas import TaskFormula
from gatewise.gates.reconciliation.smallest_removal import minimal_core
from gatewise.gates.reconciliation.trials import ANSWER
from gatewise.models.components import Pointwise
from gatewise.models.model import Model
from gatewise.models.synthetic.gate_kinds import synthetic_receiver
from gatewise.models.synthetic.logic_model import LogicGate, logic_model

pytest.importorskip("pysat")
SOURCES = ("A1", "A2", "A3", "A4")
OUT = "out"
MOST_EDGES = 12  # all sets of which are tried
SPLIT_KINDS, TESTED_KINDS = ("AND", "OR"), ("AND", "OR", "2 of 3", "XOR-like", "inhibiting")


@dataclass(frozen=True)
class Node:
    """A synthetic gate; the last one, `out`, is a weighted sum of single senders and of AND and OR gates."""

    name: str
    kind: str
    senders: tuple[str, ...]
    parts: tuple[tuple[str, tuple[int, ...], int], ...] = ()  # of out: type, places among the senders, weight

    def value(self, x: Tensor) -> Tensor:
        """[..., sender] of 0 and 1 -> [...]"""
        if self.kind == "sum":
            return sum(
                (weight * logic(kind, x[..., list(places)]) for kind, places, weight in self.parts), x[..., 0] * 0
            )
        return logic(self.kind, x)


def logic(kind: str, x: Tensor) -> Tensor:
    if kind == "inhibiting":
        return x[..., 0] * (1 - x[..., 1:]).prod(dim=-1)
    count, size = x.sum(dim=-1), x.shape[-1]
    wanted = {"AND": count >= size, "edge": count >= size, "OR": count >= 1, "2 of 3": count >= 2}
    return (wanted[kind] if kind in wanted else count % 2 == 1).to(x)


@dataclass(frozen=True)
class Synthetic:
    """A logic model in which several tasks live: each has sources that speak on its clean token."""

    nodes: tuple[Node, ...]
    speaking: tuple[frozenset[str], ...]  # of each task

    @property
    def graph(self) -> Graph:
        return Graph.layered(SOURCES, [[node.name] for node in self.nodes], len(SOURCES) + len(self.nodes))

    def model(self) -> Model:
        graph = self.graph
        own = {name: i for i, name in enumerate(graph.senders)}
        emitted = torch.zeros(len(self.speaking) + 1, len(SOURCES), dtype=torch.float64)
        for token, speaking in enumerate(self.speaking):
            emitted[token + 1, [SOURCES.index(source) for source in speaking]] = 1.0
        places = torch.eye(len(SOURCES), graph.d_model, dtype=torch.float64)

        def sublayer(node: Node) -> Pointwise:
            def function(x: Tensor, _nodes: Sequence[int]) -> Tensor:
                out = torch.zeros_like(x)
                out[..., own[node.name]] = node.value(x[..., [own[sender] for sender in node.senders]])
                return out

            return Pointwise(function)

        head = torch.zeros(len(emitted), graph.d_model, dtype=torch.float64)
        head[0, own[OUT]] = 1.0
        sublayers = tuple(map(sublayer, self.nodes))

        def embed(tokens: Tensor, _positions: Tensor) -> Tensor:
            return emitted[tokens].movedim(-1, 0)[..., None] * places[:, None, None]

        weights = {"emitted": emitted, "head": head}
        return Model("synthetic:tasks", graph, embed, sublayers, lambda x: x, head, len(emitted), lambda: weights)

    def pairs(self) -> gw.Pairs:
        """One pair for each task, in order."""
        count = len(self.speaking)
        return gw.Pairs.from_tokens(
            [[task + 1] for task in range(count)], [[0]] * count, correct=[0] * count, incorrect=[1] * count
        )

    def logit_diff(self, task: int, kept: Mapping[str, Tensor]) -> Tensor:
        """What the logits read, for many sets of kept edges at once; edges that are not named are all kept."""
        values: dict[str, Tensor] = {s: torch.tensor(float(s in self.speaking[task])).double() for s in SOURCES}
        one = torch.ones(()).double()
        for node in self.nodes:
            read = [values[sender] * kept.get(f"{sender}->{node.name}", one) for sender in node.senders]
            values[node.name] = node.value(torch.stack(torch.broadcast_tensors(*read), dim=-1))
        return values[OUT] * kept.get(f"{OUT}->logits", one)

    def speakers(self, task: int) -> dict[str, tuple[str, ...]]:
        """Nodes that may speak in a task, with those of their senders that may; which sets do is in `table`."""
        found: dict[str, tuple[str, ...]] = {}
        for node in self.nodes:
            live = tuple(s for s in node.senders if s in self.speaking[task] or s in found)
            if any(self.table(node, live)):
                found[node.name] = live
        return found

    def table(self, node: Node, live: Sequence[str]) -> list[float]:
        """What a node puts out for every set of these senders."""
        rows = [
            [float(s in live and bits >> live.index(s) & 1) for s in node.senders] for bits in range(1 << len(live))
        ]
        return node.value(torch.tensor(rows)).tolist()

    def gates(self, task: int, by: str) -> Gates:
        """What a search without mistakes would find: labels and scores, or tables."""
        graph, speakers = self.graph, self.speakers(task)
        kinds: dict[str, list[str]] = {"AND": [], "OR": [], "ADDER": [f"{OUT}->logits"]}
        worth = torch.ones(graph.n_edges, dtype=torch.float64)
        tested = []
        for node in self.nodes:
            live = speakers.get(node.name, ())
            parts = node.parts or ((node.kind, tuple(range(len(node.senders))), 1),)
            for kind, places, weight in parts:
                edges = [f"{node.senders[i]}->{node.name}" for i in places if node.senders[i] in live]
                if by == "split" and kind == "AND" and len(edges) < len(places):
                    edges = []  # it never speaks in this task
                kinds[kind if by == "split" and kind in ("AND", "OR") and len(edges) > 1 else "ADDER"] += edges
                worth[[graph.index(edge) for edge in edges]] = float(weight)
            if by == "tested" and node.name != OUT and live:
                groups = {sender: (f"{sender}->{node.name}",) for sender in live}
                tested.append(GroupGate(node.name, node.kind, groups, tuple(self.table(node, live) * 2)))
        ns, dn = (graph.circuit([*kinds[kind], *kinds["ADDER"]]) for kind in ("AND", "OR"))
        made = {"task": f"task {task}"}
        ns, dn = (Circuit(graph, one.mask, torch.where(one.mask, worth, 0.0), made) for one in (ns, dn))
        found = label_gates(ns, dn)
        return Gates(found.ns, found.dn, found.by_type, tested=tuple(tested))


def draw(seed: int, by: str, tasks: int = 2) -> Synthetic:
    """Tasks that share sources and gates, each of which works in the whole model."""
    rng = random.Random(f"{by}/{seed}")
    while True:
        nodes: list[Node] = []
        for i in range(rng.randint(2, 3)):
            kind = rng.choice(SPLIT_KINDS if by == "split" else TESTED_KINDS)
            earlier = [node.name for node in nodes]
            count = 3 if kind == "2 of 3" else 2 if kind == "inhibiting" else rng.randint(2, 3)
            nodes.append(Node(f"B{i + 1}", kind, tuple(rng.sample([*SOURCES, *earlier], count))))
        read = {sender for node in nodes for sender in node.senders}
        ends = [node.name for node in nodes if node.name not in read] + rng.sample(SOURCES, rng.randint(1, 2))
        nodes.append(Node(OUT, "sum", tuple(ends), _drawn_parts(rng, len(ends), by)))
        speaking = tuple(frozenset(rng.sample(SOURCES, rng.randint(2, 4))) for _ in range(tasks))
        synthetic = Synthetic(tuple(nodes), speaking)
        edges = {edge for task in range(tasks) for edge in synthetic.gates(task, by).sound.edges}
        shared = frozenset.intersection(*speaking) and set.intersection(
            *(set(synthetic.speakers(task)) - {OUT} for task in range(tasks))
        )
        works = all(float(synthetic.logit_diff(task, {})) > 0 for task in range(tasks))
        if works and shared and len(edges) <= MOST_EDGES:
            return synthetic


def _drawn_parts(rng: random.Random, count: int, by: str) -> tuple[tuple[str, tuple[int, ...], int], ...]:
    places = list(range(count))
    parts = []
    if by == "split" and count > 2 and rng.random() < 0.5:
        parts.append((rng.choice(SPLIT_KINDS), (places.pop(0), places.pop(0)), rng.randint(1, 4)))
    return (*parts, *(("edge", (place,), rng.randint(1, 4)) for place in places))


def tried(synthetic: Synthetic, keep: Sequence[int], remove: Sequence[int], share: float, by: str) -> int | None:
    """The size of the smallest removal that does what is asked, of all there are."""
    edges = sorted({edge for task in (*keep, *remove) for edge in synthetic.gates(task, by).sound.edges})
    sets = torch.arange(1 << len(edges))
    kept = {edge: (sets >> i & 1 == 0).double() for i, edge in enumerate(edges)}
    good = torch.ones(len(sets), dtype=torch.bool)
    for task in (*keep, *remove):
        good &= does(synthetic.logit_diff(task, kept), synthetic.logit_diff(task, {}), task in keep, share)
    sizes = torch.tensor([int(bits).bit_count() for bits in sets[good].tolist()])
    return int(sizes.min()) if len(sizes) else None


def does(logit_diff: Tensor, full: Tensor, keep: bool, share: float) -> Tensor:
    return logit_diff >= share * full - 1e-9 if keep else logit_diff <= (1 - share) * full + 1e-9


def check(seed: int, by: str, tasks: int = 2, removed: int = 1) -> bool:
    """Whether it is possible; an error if the answer is not the right one."""
    synthetic = draw(seed, by, tasks)
    share = (0.7, 0.8, 0.9, 1.0)[seed % 4]
    gates = [synthetic.gates(task, by) for task in range(tasks)]
    keep, remove = list(range(tasks - removed)), list(range(tasks - removed, tasks))
    answer = reconcile([gates[i] for i in keep], [gates[i] for i in remove], share=share, by=by)  # type: ignore[arg-type]
    smallest = tried(synthetic, keep, remove, share, by)
    assert answer.possible == (smallest is not None), seed
    if answer.removal is None:
        assert answer.core, seed
        return False
    assert (len(answer.removal), answer.smallest) == (smallest, True), seed
    pairs = synthetic.pairs()
    logit_diffs = pairs.logit_diff(gw.run_circuit(synthetic.model(), pairs, ~answer.removal))
    for task in range(tasks):
        full = synthetic.logit_diff(task, {})
        assert does(logit_diffs[task], full, task in keep, share), (seed, task)
        if f"{OUT}->logits" not in answer.removal:
            said = answer.formulas[task].levels(answer.removal.indices)[OUT]
            assert said == pytest.approx(float(logit_diffs[task] / full)), (seed, task)
    return True


@pytest.mark.parametrize("by", ["split", "tested"])
def test_every_answer_is_that_of_trying_everything_and_of_running_the_model(by: str) -> None:
    """100 pairs of synthetic tasks each; by tested gates, `2 of 3`, XOR-like and inhibiting ones are among them."""
    found = Counter(check(seed, by) for seed in range(100))
    assert min(found[True], found[False]) >= 15


def test_several_tasks_to_keep_and_to_remove() -> None:
    found = Counter(check(seed, by, 3, 1 + seed % 2) for seed in range(10) for by in ("split", "tested"))
    assert min(found[True], found[False]) >= 2


EITHER = Synthetic(
    (Node("B1", "OR", ("A1", "A2")), Node(OUT, "sum", ("B1",), (("edge", (0,), 1),))),
    (frozenset({"A1", "A2"}), frozenset({"A2"})),
)


def asked(synthetic: Synthetic, keep: int, **more: Any) -> Reconciliation:
    return reconcile([synthetic.gates(keep, "split")], [synthetic.gates(1 - keep, "split")], **more)


def test_the_papers_example_and_its_reverse_in_words() -> None:
    found = asked(EITHER, keep=0)
    assert found.removal is not None
    assert found.removal.edges == ["A2->B1"]
    assert found.monotone
    assert "no fewer do" in repr(found)
    clash = asked(EITHER, keep=1)
    assert not clash.possible
    assert "task 0: B1 comes from A1 | A2" in clash.core
    assert "task 1: B1 comes from A2" in clash.core
    assert clash.core_is_minimal
    assert clash.to_json()["removal"] is None
    assert "cannot remove task 0, keep task 1" in repr(clash)


def test_negative_shares_are_not_monotone() -> None:
    """A part that works against the others: a task is kept if both go, and not if one does."""
    graph = Graph.layered(["A1", "A2", "A3"], [["B"]], 4)
    circuit = graph.circuit(["A1->logits", "A2->logits", "A3->logits"])
    scores = torch.zeros(graph.n_edges)
    scores[circuit.indices] = torch.tensor([3.0, -3.0, 4.0])
    task = Circuit(graph, circuit.mask, scores)
    lost = graph.circuit(["A1->logits"])
    found = reconcile([label_gates(task, task)], [label_gates(lost, lost)])
    assert found.removal is not None
    assert found.removal.edges == ["A1->logits", "A2->logits"]  # 3 - 3 + 4 = 4 without A1 is 1, without both 4
    assert not found.monotone


@pytest.mark.parametrize("seed", range(30))
def test_a_weighted_sum_in_clauses_is_the_sum(seed: int) -> None:
    """Every set of edges into one receiver with random shares, of both signs: solver and formula say the same."""
    from pysat.solvers import Solver

    rng = random.Random(seed)
    sources = [f"A{i}" for i in range(rng.randint(2, 7))]
    graph = Graph.layered(sources, [["B"]], 4)
    circuit = graph.circuit([f"{source}->logits" for source in sources])
    scores = torch.zeros(graph.n_edges)
    scores[circuit.indices] = torch.tensor([rng.choice([-1, 1, 1, 1]) * rng.uniform(0.1, 9) for _ in sources])
    task = Circuit(graph, circuit.mask, scores)
    formula = TaskFormula(label_gates(task, task), "sum", keep=rng.random() < 0.5, share=rng.choice([0.6, 0.9, 1.0]))
    clauses = Clauses([formula])
    with Solver("glucose4", bootstrap_with=clauses.hard) as solver:
        for chance in range(1 << len(sources)):
            removed = [edge for i, edge in enumerate(circuit.indices) if chance >> i & 1]
            chosen = [-stays if edge in removed else stays for edge, stays in clauses.edge_stays.items()]
            wanted = formula.alive(removed)["logits"] == formula.keep
            assert solver.solve(assumptions=[*clauses.gates, *chosen]) == wanted


def test_when_the_time_is_over_the_best_found_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    from pysat.examples.rc2 import RC2

    monkeypatch.setattr(RC2, "compute", lambda self, expect_interrupt: None)
    found = asked(EITHER, keep=0)
    assert found.removal is not None
    assert not found.smallest
    assert found.removal.edges == ["A2->B1"]  # nothing of it can be spared
    assert "the time was over" in repr(found)


def test_when_the_time_is_over_the_core_is_not_called_minimal() -> None:
    class Interrupted:
        """A solver that gave a core and has no time to shrink it."""

        def get_core(self) -> list[int]:
            return [1, 2]

        def solve_limited(self, assumptions: list[int], expect_interrupt: bool) -> None:
            assert expect_interrupt

        def interrupt(self) -> None: ...

        def clear_interrupt(self) -> None: ...

    assert minimal_core(Interrupted(), deadline=0.0) == ([1, 2], False)


def test_without_the_extra_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pysat", None)
    monkeypatch.delitem(sys.modules, "pysat.card", raising=False)
    with pytest.raises(GatewiseError, match=r"pip install 'gatewise\[sat\]'"):
        asked(EITHER, keep=0)


def test_refusals() -> None:
    gates = EITHER.gates(0, "split")
    empty = EITHER.graph.empty()
    other = Graph.layered(["A1"], [["B"]], 2).empty()
    for message, arguments in {
        "lists of gates": {"keep": gates, "remove": [gates]},
        "nothing is to be removed": {"keep": [gates], "remove": []},
        "more than 0.5": {"keep": [], "remove": [gates], "share": 0.5},
        "'split' or 'tested'": {"keep": [], "remove": [gates], "by": "guess"},
        "were not tested": {"keep": [], "remove": [gates], "by": "tested"},
        "more than 0; got": {"keep": [], "remove": [gates], "seconds": 0.0},
        "different models": {"keep": [label_gates(other, other)], "remove": [gates]},
        "no edge of task 1 goes into the logits": {"keep": [], "remove": [label_gates(empty, empty)]},
    }.items():
        with pytest.raises(GatewiseError, match=message):
            reconcile(**arguments)  # type: ignore[arg-type]


def test_tested_gates_are_saved_with_the_others(tmp_path: Path) -> None:
    synthetic = draw(0, "tested")
    gates = synthetic.gates(0, "tested")
    gates.save(tmp_path / "tested.gates")
    assert Gates.load(tmp_path / "tested.gates") == gates
    assert gates.tested
    wrong = Gates(gates.ns, gates.dn, gates.by_type, tested=(GroupGate("B1", "AND", {"a": ("A1->out",)}, (0.0,) * 4),))
    wrong.save(tmp_path / "wrong.gates")
    with pytest.raises(GatewiseError, match="tested gate of"):
        Gates.load(tmp_path / "wrong.gates")


def test_a_measured_gate_is_worth_what_was_measured() -> None:
    """The table of an interaction, with the rest as one more player, which does nothing here."""
    synthetic = synthetic_receiver("and-of-groups", examples=8)
    gate = gw.test_gate(synthetic.model, synthetic.pairs, "B", synthetic.groups, confirm=False).gate
    assert (gate.receiver, gate.label, gate.groups) == ("B", "AND", synthetic.groups)
    assert gate.values == pytest.approx((0, 0, 0, 1) * 2, abs=1e-9)


def test_trials_run_the_model_and_blame_the_gate_that_is_wrong() -> None:
    """B is an AND that red takes for an OR: logic keeps red without A2->B, and red is gone."""
    emitted = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    layers = [[LogicGate("B", "AND", ("A1", "A2"))], [LogicGate("out", "ADDER", ("B",))]]
    model = logic_model("synthetic:wrong", ["A1", "A2"], layers, "out", emitted=emitted)
    graph, pairs = model.graph, gw.Pairs.from_tokens([[1]] * 4, [[0]] * 4, correct=[0] * 4, incorrect=[1] * 4)
    rest = ["B->out", "out->logits"]
    ns, dn = graph.circuit(rest), graph.circuit(["A1->B", "A2->B", *rest])
    red = label_gates(ns.with_provenance(task="red"), dn.with_provenance(task="red"))
    path = graph.circuit(["A2->B", *rest]).with_provenance(task="blue")
    blue = label_gates(path, path)
    answer = reconcile([red], [blue])
    others = other_removals([red], [blue], size=1)
    assert others["set difference"] == graph.empty()
    assert others["whole circuit"] == path
    found = {(one.removal, one.task): one for one in try_removals(model, {"red": pairs, "blue": pairs}, answer, others)}
    kept, gone = found[ANSWER, "red"], found[ANSWER, "blue"]
    assert (kept.predicted, kept.share) == (1.0, 0.0)
    assert kept.misleading_gate is not None
    assert "red: B comes from A1 | A2: 1.00 predicted, 0.00 measured" in str(kept.misleading_gate)
    assert (gone.predicted, gone.share, gone.misleading_gate) == (0.0, 0.0, None)
    assert found["nothing", "red"].share == 1.0
    assert found["nothing", "red"].misleading_gate is None
    assert float(found["whole circuit", "red"].kl) > 0.1
    with pytest.raises(GatewiseError, match="pairs of blue are missing"):
        try_removals(model, {"red": pairs}, answer, {})


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = gw.load_model("tiny")
    for name in ("ioi", "gt"):
        found = gw.find_gates(model, gw.task(name, model, examples=4).train, edges=40, joint=False)
        found.save(tmp_path / f"{name}.gates")
    files = ["--keep", str(tmp_path / "ioi.gates"), "--remove", str(tmp_path / "gt.gates")]

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["gatewise", *words])
        code = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 0
        return code, *capsys.readouterr()

    code, out, _ = run("reconcile", *files, "--json", "--measure", "--examples", "4", "--out", str(tmp_path / "r.json"))
    found = json.loads(out)
    assert (code, found["keep"], found["remove"]) == (0, ["ioi"], ["gt"])
    assert Circuit.load(tmp_path / "r.json").edges == found["removal"]
    assert {one["removal"] for one in found["trials"]} >= {ANSWER, "nothing", "whole circuit", "gate by gate"}
    assert {(one["task"], one["keep"]) for one in found["trials"]} == {("ioi", True), ("gt", False)}
    code, out, _ = run("reconcile", *files, "--measure", "--examples", "4")
    assert code == 0
    assert "ioi (kept)" in out
    assert "gate by gate" in out
    code, out, _ = run("reconcile", *files)
    assert code == 0
    assert f"Take away {len(found['removal'])} edges" in out
    code, out, err = run("reconcile", *files, "--share", "0.4")
    assert (code, out) == (2, "")
    assert "more than 0.5" in err
    code, _, err = run("reconcile", "--remove", str(tmp_path / "gt.gates"), "--by", "tested")
    assert code == 2
    assert "--test --out" in err
