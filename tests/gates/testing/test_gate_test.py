"""Tests of gates: against one run of the reference engine per set, and what has to be true of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import pytest
import torch
from reference import _Net
from small_models import random_pairs, small_model
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.compute import Compute
from gatewise.engine.setting import Setting
from gatewise.errors import GatewiseError
from gatewise.gates.testing.gate_test import GateTest, run_gate_tests, test_gate
from gatewise.models.model import Model
from gatewise.models.synthetic.logic_model import synthetic_model, synthetic_pairs
from gatewise.tasks.pairs import Pairs

LENGTHS = (6, 4) * 4
FAMILIES = ("gpt2", "neox", "neox-sequential", "llama", "gemma2", "gemma3")
HEAD = {"Q": "<q>", "K": ["input->a1.h2<k>", "a0.h1->a1.h2<k>"], "V": "<v>"}
MLP = {"heads": ["a0.h0->m1", "a0.h3->m1"], "mlp": "m0->m1"}
LAST = {"a": ["a1.h0->logits", "m0->logits"], "b": "m1->logits", "c": "a0.h1->logits"}


def small(architecture: str) -> tuple[Model, Pairs]:
    return small_model(architecture, dtype=torch.float64), random_pairs(lengths=LENGTHS)


# The naive twin: one forward per set and example


class Twin:
    """B(S), gradients and logit differences by the reference engine, one example at a time."""

    def __init__(self, model: Model, pairs: Pairs, row: int, receiver: str, circuit: Circuit | None) -> None:
        self.net, self.model, self.receiver = _Net(model), model, receiver
        self.pairs = pairs[row : row + 1]
        length = int(pairs.lengths[row])
        self.clean, self.corrupted = pairs.clean[row, -length:], pairs.corrupted[row, -length:]
        self.every = set(model.graph.edges)
        self.kept = self.every if circuit is None else set(circuit.edges)
        self.other = self.net.run(self.corrupted, self.every, None)[0]
        layer = receiver.partition(".")[0]
        coupled = self.net.kind.startswith("gemma") and receiver.startswith("a")
        self.writers = [node for node in model.graph.senders if coupled and node.partition(".")[0] == layer] or [
            receiver
        ]

    def _into(self, nodes: Sequence[str]) -> set[str]:
        return {edge for edge in self.kept if edge.partition("->")[2].partition("<")[0] in nodes}

    def outputs(self, clean: set[str], siblings: bool) -> dict[str, Tensor]:
        """What the receiver and those it is coupled with write."""
        kept = self.kept - self._into(self.writers) | clean
        if siblings:
            kept |= self._into([node for node in self.writers if node != self.receiver])
        found = self.net.run(self.clean, kept, self.other)[0]
        return {node: found[node] for node in self.writers}

    def logit_diff(self, logits: Tensor) -> Tensor:
        return self.pairs.logit_diff(logits[None])[0]

    def gradients(self, tokens: Tensor) -> dict[str, Tensor]:
        own = self.net.run(tokens, self.kept, self.other)[0]
        put = {node: own[node].detach().requires_grad_(True) for node in self.writers}
        logits = self.net.run(tokens, self.kept, self.other, put)[1] + 0 * sum(x.sum() for x in put.values())
        found = torch.autograd.grad(self.logit_diff(logits), list(put.values()), materialize_grads=True)
        return dict(zip(put, found, strict=True))

    def value(self, clean: set[str], siblings: bool) -> float:
        if self.receiver == "logits":
            runs = (self.kept - self._into(["logits"]) | clean, self.kept - self._into(["logits"]))
            both, none = (self.logit_diff(self.net.run(self.clean, kept, self.other)[1]) for kept in runs)
            return float(both - none)
        here = self.outputs(clean, siblings)
        return float(sum((self.gradient[w] * (here[w] - self.none[w])).sum() for w in self.writers))

    @cached_property
    def none(self) -> dict[str, Tensor]:
        return self.outputs(set(), False)

    @cached_property
    def gradient(self) -> dict[str, Tensor]:
        ns, dn = self.gradients(self.clean), self.gradients(self.corrupted)
        return {writer: (ns[writer] + dn[writer]) / 2 for writer in self.writers}

    def total(self) -> float:
        runs = ((self.clean, self.kept), (self.corrupted, self.every))
        clean, corrupted = (self.logit_diff(self.net.run(tokens, kept, self.other)[1]) for tokens, kept in runs)
        return float(clean - corrupted)

    def on_logit_diff(self, clean: set[str], siblings: bool, side: str) -> float:
        tokens = self.clean if side == "clean" else self.corrupted
        return float(self.logit_diff(self.net.run(tokens, self.every, self.other, self.outputs(clean, siblings))[1]))


def edges_of(found: GateTest, twin: Twin, bits: int) -> tuple[set[str], bool]:
    """Clean edges of a set of operands, and whether the rest is among them."""
    named = list(found.groups.values())
    chosen = {edge for i, edges in enumerate(named) if bits >> i & 1 for edge in edges}
    rest = bool(bits >> len(named) & 1)
    if rest:
        chosen |= twin._into([twin.receiver]) - {edge for edges in named for edge in edges}
    return chosen, rest


CASES: list[tuple[str, str, Mapping[str, Any], bool]] = [
    *((family, "a1.h2", HEAD, False) for family in FAMILIES),
    *((family, "a1.h2", HEAD, True) for family in ("gpt2", "neox", "gemma3")),
    *((family, "m1", MLP, False) for family in ("gpt2", "neox", "gemma2")),
    ("llama", "m1", MLP, True),
    ("gpt2", "logits", LAST, False),
    ("gemma2", "logits", LAST, True),
]


@pytest.mark.parametrize(("architecture", "receiver", "groups", "within"), CASES)
def test_agrees_with_one_run_per_set(architecture: str, receiver: str, groups: Mapping[str, Any], within: bool) -> None:
    model, pairs = small(architecture)
    circuit = None
    if within:
        named = [edge for group in groups.values() for edge in ([group] if isinstance(group, str) else group)]
        circuit = model.graph.random_circuit(model.graph.n_edges // 2, seed=2)
        circuit |= model.graph.circuit([edge for edge in named if "->" in edge])
    found = test_gate(model, pairs, receiver, groups, circuit=circuit, rest="clean", compute=Compute(memory=300_000))
    sets = range(len(found.table))
    confirmed = found.confirmed
    assert confirmed is not None
    members = [i for i, name in enumerate(found.operands) if name in confirmed.members]
    sums = dict.fromkeys(confirmed.end_to_end, 0.0)
    for row in (0, 5):
        twin = Twin(model, pairs, row, receiver, circuit)
        assert float(found.total_effect[row]) == pytest.approx(twin.total(), abs=1e-9)
        expected = [twin.value(*edges_of(found, twin, bits)) for bits in sets]
        assert found.table[:, row].tolist() == pytest.approx(expected, abs=1e-9)
    if receiver == "logits":
        return
    for row in range(len(pairs)):
        twin = Twin(model, pairs, row, receiver, circuit)
        for bits in range(1 << len(members)):
            chosen = sum(1 << member for j, member in enumerate(members) if bits >> j & 1) | 1 << len(groups)
            sign = (-1) ** (len(members) - bits.bit_count())
            for side in sums:
                sums[side] += sign * twin.on_logit_diff(*edges_of(found, twin, chosen), side)
    for side, value in sums.items():
        assert confirmed.end_to_end[side].value == pytest.approx(value / float(found.total_effect.sum()), abs=1e-9)


# What has to be true


@pytest.mark.parametrize("architecture", ["gpt2", "neox", "llama", "gemma3"])
@pytest.mark.parametrize("rest", ["corrupted", "clean", "group"])
def test_identities(architecture: str, rest: Any) -> None:
    model, pairs = small(architecture)
    found = test_gate(model, pairs, "a1.h2", HEAD, rest=rest, confirm=False)
    everyone = frozenset(found.operands)
    assert sum(found.interactions.values()) == pytest.approx(found.effects[everyone], abs=1e-12)
    for name in found.operands:
        share = sum(value for (one, _), value in found.partners.items() if one == name)
        assert share == pytest.approx(found.ns[name] - found.dn[name], abs=1e-12)


@pytest.mark.parametrize("architecture", ["gpt2", "neox", "llama", "gemma2"])
def test_swapping_the_runs_and_the_context_turns_gamma_round(architecture: str) -> None:
    model, pairs = small(architecture)
    one = test_gate(model, pairs, "a1.h2", HEAD, rest="corrupted", confirm=False)
    other = test_gate(model, pairs.swapped(), "a1.h2", HEAD, rest="clean", confirm=False)
    assert one.gamma == pytest.approx({name: -value for name, value in other.gamma.items()}, abs=1e-9)
    assert one.ns == pytest.approx(other.dn, abs=1e-9)


@pytest.mark.parametrize("confirm", [False, True])
def test_several_receivers_at_once_are_what_each_is_alone(confirm: bool) -> None:
    setting = Setting.of(*small("gemma3"))
    asked: list[tuple[str, Mapping[str, Any]]] = [
        ("a1.h2", HEAD),
        ("m1", MLP),
        ("logits", LAST),
        ("a1.h2", {"Q": "<q>", "V": "<v>"}),
    ]
    together = run_gate_tests(setting, asked, rest="clean", confirm=confirm)
    alone = [test_gate(setting.model, setting, *one, rest="clean", confirm=confirm) for one in asked]
    for a, b in zip(together, alone, strict=True):
        torch.testing.assert_close(a.table, b.table)
        assert a.label == b.label
        assert (a.confirmed is None) == (b.confirmed is None) == (not confirm)
    assert run_gate_tests(setting, []) == []


def test_nothing_depends_on_the_batch_size() -> None:
    model, pairs = small("llama")
    whole, parts = (test_gate(model, pairs, "m1", MLP, compute=Compute(memory=memory)) for memory in (None, 300_000))
    torch.testing.assert_close(whole.table, parts.table, atol=1e-12, rtol=0)
    assert whole.confirmed is not None
    assert parts.confirmed is not None
    assert whole.confirmed.end_to_end["clean"].low == pytest.approx(parts.confirmed.end_to_end["clean"].low, abs=1e-12)


@pytest.mark.parametrize("architecture", ["gpt2", "gemma3"])
def test_the_whole_graph_as_a_circuit_is_the_model(architecture: str) -> None:
    model, pairs = small(architecture)
    for receiver, groups in (("a1.h2", HEAD), ("m1", MLP), ("logits", LAST)):
        plain = test_gate(model, pairs, receiver, groups, confirm=False)
        full = test_gate(model, pairs, receiver, groups, circuit=model.graph.full(), confirm=False)
        torch.testing.assert_close(plain.table, full.table, atol=1e-10, rtol=0)


def test_merged_ports_are_one_port() -> None:
    model, pairs = small_model("gpt2", dtype=torch.float64, qkv="merged"), random_pairs(lengths=LENGTHS)
    split, _ = small("gpt2")
    edges = ["input->a1.h2", "a0.h1->a1.h2"]
    merged = test_gate(model, pairs, "a1.h2", {"a": edges, "b": "m0->a1.h2"}, confirm=False)
    spread = {
        "a": [f"{edge}<{kind}>" for edge in edges for kind in "qkv"],
        "b": [f"m0->a1.h2<{kind}>" for kind in "qkv"],
    }
    torch.testing.assert_close(merged.table, test_gate(split, pairs, "a1.h2", spread, confirm=False).table)


@pytest.mark.parametrize(("kind", "label"), [("and", "AND"), ("or", "OR"), ("adder", "ADDER")])
def test_synthetic_gates(kind: str, label: str) -> None:
    found = test_gate(synthetic_model(kind), synthetic_pairs(8), "B", {"one": "A1->B", "two": "A2->B"})
    assert (found.label, found.members) == (label, ("one", "two"))
    assert list(found.gamma.values()) == pytest.approx([{"AND": 1, "OR": -1, "ADDER": 0}[label]] * 2)
    assert set(found.group_labels.values()) == {label}
    assert bool(found.confirmed) == (label != "ADDER")
    assert not found.conditional
    assert found.to_json()["label"] == label


def test_the_rest_as_an_operand_makes_one_group_enough() -> None:
    found = test_gate(synthetic_model("and"), synthetic_pairs(8), "B", {"one": "A1->B"}, rest="group")
    assert found.partners == {("one", "rest"): 1, ("rest", "one"): 1}
    assert found.label == "AND"


def test_a_group_may_need_the_other_which_acts_alone() -> None:
    """Three quarters of b's effect are its own; a does something only beside b. As keys and values in real heads."""
    table = torch.tensor([0.0, 0.0, 0.75, 1.0, 0.0, 0.0, 0.75, 1.0]).double()[:, None].expand(8, 16)
    found = GateTest("B", {"a": ("A1->B",), "b": ("A2->B",)}, "corrupted", table, torch.ones(16).double())
    assert found.group_labels == {"a": "AND", "b": "ADDER"}
    assert found.label == "ADDER"  # a quarter is as much as an ADDER may be off


def test_refusals() -> None:
    model, pairs = small("gpt2")

    def refused(match: str, receiver: str = "a1.h2", groups: Any = HEAD, **more: Any) -> None:
        with pytest.raises(GatewiseError, match=match) as error:
            test_gate(model, more.pop("pairs", pairs), receiver, groups, **more)
        assert "\n" not in str(error.value)

    refused("not into a1.h2", groups={"a": "input->a1.h2<k>", "b": "input->m1"})
    refused("'a' and 'b' share input->a1.h2<k>", groups={"a": "<k>", "b": ["input->a1.h2<k>"]})
    refused("2 to 4 groups", groups={str(i): f"a0.h{i % 4}->a1.h2<{'qk'[i // 4]}>" for i in range(5)})
    refused("2 to 4 groups", groups={"a": "<k>"})
    refused("'b' of a1.h2 has no edges", groups={"a": "<k>", "b": []})
    refused("no receiver 'a9.h9'", receiver="a9.h9")
    refused("no receiver 'input'", receiver="input")
    refused("neither an edge", groups={"a": "<k>", "b": "a0.h1<v>"})
    refused("at least 8", pairs=pairs[:3])
    refused("not in the circuit", groups={"a": "input->a1.h2<k>", "b": "<v>"}, circuit=model.graph.empty())
    refused("'b' of a1.h2 has no edges", groups={"a": "<k>", "b": "<v>"}, circuit=model.graph.circuit(["m0->a1.h2<k>"]))
    refused("rest is", rest="both")
    refused("'rest' is the name", groups={"rest": "<k>"}, rest="group")
    refused("tells apart", pairs=Pairs.from_tokens([[1, 2]] * 8, [[1, 2]] * 8, [3] * 8, [4] * 8))


def test_a_setting_stands_for_model_and_pairs() -> None:
    model, pairs = small_model("gpt2", dtype=torch.float64), random_pairs(lengths=(6, 4) * 5)
    setting = Setting(model, pairs)
    expected = test_gate(model, pairs, "a1.h2", HEAD)
    torch.testing.assert_close(test_gate(setting.model, setting, "a1.h2", HEAD).table, expected.table, atol=0, rtol=0)
    with pytest.raises(GatewiseError, match="between two runs, and zero ablation has one"):
        test_gate(model, Setting(model, pairs, ablation="zero"), "a1.h2", HEAD)
