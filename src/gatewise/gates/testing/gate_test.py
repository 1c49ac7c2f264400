"""`test_gate`: the test of one gate, from a table of effects to its label and confidence intervals.

`test_gate` goes four steps:

1. `candidates.read_candidate`: the receiver (a node) and two to four disjoint groups of edges into any of its ports.
2. `measurement.measure_tables`: the effect of the receiver for every set of the groups *and the rest of its edges* that
   carries clean outputs while the others carry corrupted ones. The effect is to first order downstream: the receiver's
   output is recomputed exactly, and projected on the gradient of the logit difference. The table of a gate.
3. `GateTest`: the table in one context, which is what the rest of the receiver's edges carry: corrupted outputs in all
   rows, clean ones in all rows (effects then count from there), or the rest is one more operand. Divided by the total
   effect it is a table of normalised effects v(S), from which `harsanyi` has interactions, gate indices and the label.
   Intervals and the label's confidence come from resampling pairs, numerator and denominator together.
4. `confirm_tests`: the strongest interaction (not the label) once more *end to end*, on the true logit difference with
   the receiver's output put into the whole model, everything outside the receiver clean, and corrupted. It is confirmed
   if the interval at the receiver and both of these are without 0 and of one sign. An ADDER has no interaction to
   confirm. A test within a circuit is confirmed in the whole model, too, in units of the circuit's total effect.

Two nodes on one path also fail together. Groups of one receiver are parallel inputs, so that a gate is never a path.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.compute import Compute
from gatewise.display import card
from gatewise.engine.patching.node_patching import PatchedBatches, Side
from gatewise.engine.setting import Data, Setting
from gatewise.gates.labels import GroupGate
from gatewise.gates.testing import harsanyi
from gatewise.gates.testing.candidates import REST, Candidate, Groups, Rest, read_candidate
from gatewise.gates.testing.measurement import SIDES, end_to_end_interaction, gate_setting, measure_tables
from gatewise.models.model import Model
from gatewise.statistics import Interval, joint_sign_flip_p, percentile_interval, resampling_weights

Names = frozenset[str]  # a set of operands
FLOOR = 0.01  # normalised effect below which nothing is decided
EDGE_FLOOR = 0.005  # the same for single edges, which are smaller than groups
RESAMPLES = 2_000
_Key = TypeVar("_Key")


@dataclass(frozen=True)
class Confirmation:
    """An interaction at the receiver, and the same end to end, with the rest of the model on either side."""

    members: Names
    at_receiver: Interval
    end_to_end: Mapping[Side, Interval]

    def holds(self, side: Side) -> bool:
        """Whether it is confirmed with the rest of the model on this side.

        Args:
            side: "clean" or "corrupted".

        Returns:
            True if both intervals are without 0, and have the same sign.
        """
        interval = self.end_to_end[side]
        return interval.without_zero and self.at_receiver.without_zero and interval.value * self.at_receiver.value > 0

    def __bool__(self) -> bool:
        return all(map(self.holds, self.end_to_end))

    def to_json(self) -> dict[str, Any]:
        """Return plain data.

        Returns:
            Names of the operands, and the intervals at the receiver and for each side.
        """
        sides = {side: _plain(span) | {"holds": self.holds(side)} for side, span in self.end_to_end.items()}
        return {"set": sorted(self.members), "at_receiver": _plain(self.at_receiver)} | sides


@dataclass(frozen=True)
class GateIntervals:
    """95 % bootstrap intervals over pairs, with the keys that the properties of the same name of `GateTest` have."""

    effects: Mapping[Names, Interval]
    interactions: Mapping[Names, Interval]
    ns: Mapping[str, Interval]
    dn: Mapping[str, Interval]
    gamma: Mapping[str, Interval]


@dataclass(frozen=True, eq=False)
class GateTest:
    """How groups of edges act together on one receiver: a table of effects, and what it says.

    All effects are normalised: divided by the difference of the logit difference between the clean and corrupted run.
    """

    receiver: str
    groups: Mapping[str, tuple[str, ...]]  # name -> edges
    rest: Rest
    table: Tensor  # [set of groups and then the rest, example], effects in units of the logit difference
    total_effect: Tensor  # [example], clean minus corrupted logit difference
    floor: float = FLOOR
    resamples: int = RESAMPLES
    confirmed: Confirmation | None = None  # None: not looked for in the whole model
    significant: bool | None = None  # among all tests made with it, see `test_gates`; None: tested alone

    @property
    def operands(self) -> tuple[str, ...]:
        """Names of the groups, and `rest` if the rest of the receiver's edges is one more operand."""
        return (*self.groups, REST) if self.rest == "group" else tuple(self.groups)

    # From the table to normalised effects, as an estimate and in every resample

    @cached_property
    def _table_in_context(self) -> Tensor:
        """The table in this context. [set of operands, example]"""
        return table_in_context(self.table, self.rest)

    def _estimate(self, table: Tensor) -> Tensor:
        """Normalised effects, a ratio of means over pairs. [row, example] -> [row]"""
        return table.mean(dim=-1) / self.total_effect.mean()

    def _resample(self, table: Tensor) -> Tensor:
        """The same for every bootstrap resample of the pairs. [row, example] -> [resample, row]"""
        weights = resampling_weights(len(self.total_effect), self.resamples).T
        return (weights @ table.T) / (weights @ self.total_effect)[:, None]

    @cached_property
    def _effects(self) -> Tensor:
        return self._estimate(self._table_in_context)

    @cached_property
    def _resampled_effects(self) -> Tensor:
        return self._resample(self._table_in_context)

    # What the table says

    @cached_property
    def effects(self) -> dict[Names, float]:
        """Normalised effect v(S) of every set of operands being clean."""
        return self._by_set(self._effects)

    @cached_property
    def interactions(self) -> dict[Names, float]:
        """Harsanyi interaction of every set: its effect beyond that of its subsets. They sum to v(all)."""
        return self._by_set(harsanyi.interactions(self._effects))

    @cached_property
    def ns(self) -> dict[str, float]:
        """Ns effect of each operand: lost if only this one is noised."""
        return self._by_operand(harsanyi.ns_effects(self._effects))

    @cached_property
    def dn(self) -> dict[str, float]:
        """Dn effect of each operand: restored if only this one is denoised."""
        return self._by_operand(harsanyi.dn_effects(self._effects))

    @cached_property
    def gamma(self) -> dict[str, float]:
        """Gate index of each operand: 1 AND, -1 OR, 0 ADDER; NaN if neither of its effects is above the floor."""
        ns, dn = harsanyi.ns_effects(self._effects), harsanyi.dn_effects(self._effects)
        return self._by_operand(harsanyi.gate_index(ns, dn, self.floor))

    @cached_property
    def partners(self) -> dict[tuple[str, str], float]:
        """The part of an operand's Ns minus Dn effect that it has by another one: those of one operand sum to it."""
        shares = harsanyi.partner_shares(self._effects).tolist()
        names = list(enumerate(self.operands))
        return {(name, other): shares[i][j] for i, name in names for j, other in names if i != j}

    @cached_property
    def _label(self) -> harsanyi.Label:
        return harsanyi.label(self._effects, self._resampled_effects, self.floor)

    @property
    def label(self) -> str:
        """AND, OR, ADDER, `m of k`, XOR-like or inhibiting; `mixed` if it is none of these, or `undecided`."""
        return self._label.name

    @property
    def members(self) -> tuple[str, ...]:
        """The operands that the label is about."""
        return tuple(self.operands[i] for i in self._label.members)

    @cached_property
    def intervals(self) -> GateIntervals:
        """Intervals of effects, interactions, Ns and Dn effects and gate indices."""
        effects = self._resampled_effects
        ns, dn = harsanyi.ns_effects(effects), harsanyi.dn_effects(effects)
        return GateIntervals(
            effects=self._intervals(self.effects, effects[:, 1:]),
            interactions=self._intervals(self.interactions, harsanyi.interactions(effects)[:, 1:]),
            ns=self._intervals(self.ns, ns),
            dn=self._intervals(self.dn, dn),
            gamma=self._intervals(self.gamma, harsanyi.gate_index(ns, dn)),
        )

    @cached_property
    def group_labels(self) -> dict[str, str]:
        """How each operand acts (AND, OR, ADDER or undecided), by the interval of its gate index."""
        indices = self.intervals.gamma.items()
        return {name: harsanyi.index_label(index.value, index.low, index.high) for name, index in indices}

    @cached_property
    def _strongest(self) -> Names:
        return max((names for names in self.interactions if len(names) > 1), key=lambda s: abs(self.interactions[s]))

    @property
    def strongest_interaction(self) -> tuple[Names, Interval]:
        """The largest interaction of two or more operands: their names, and its interval."""
        return self._strongest, self.intervals.interactions[self._strongest]

    @property
    def interaction_size(self) -> float:
        """Size of the strongest interaction."""
        return abs(self.interactions[self._strongest])

    @cached_property
    def p_value(self) -> float:
        """Of all interactions being 0: the share of sign flips of pairs that give one as large."""
        by_example = harsanyi.interactions(self._table_in_context.T)
        return joint_sign_flip_p(by_example[:, harsanyi.interaction_sets(len(self.operands))].T)

    @property
    def conditional(self) -> bool:
        """Whether the label would be another one with the rest of the receiver's edges on the other side."""
        if self.rest == "group":
            return False
        other = table_in_context(self.table, "clean" if self.rest == "corrupted" else "corrupted")
        label = harsanyi.label(self._estimate(other), self._resample(other), self.floor)
        return harsanyi.UNDECIDED not in (label.name, self.label) and label != self._label

    @property
    def gate(self) -> GroupGate:
        """The gate as it is saved beside a task's gates: effects with the rest as one more operand, no intervals."""
        return GroupGate(self.receiver, self.label, dict(self.groups), tuple(self._estimate(self.table).tolist()))

    def confirmed_by(self, end_to_end: Tensor) -> GateTest:
        """Add what the strongest interaction is in the whole model.

        Args:
            end_to_end: The same interaction on the true logit difference, in its units. [side, example]

        Returns:
            The same test with a `Confirmation`.
        """
        members, at_receiver = self.strongest_interaction
        estimates = dict(zip(SIDES, self._estimate(end_to_end).tolist(), strict=True))
        by_side = self._intervals(estimates, self._resample(end_to_end))
        return replace(self, confirmed=Confirmation(members, at_receiver, by_side))

    def _by_set(self, values: Tensor) -> dict[Names, float]:
        """[set] -> by the names in each set but the empty one"""
        members = harsanyi.membership(len(self.operands)).tolist()
        names = [frozenset(name for name, inside in zip(self.operands, row, strict=True) if inside) for row in members]
        return dict(zip(names[1:], values[1:].tolist(), strict=True))

    def _by_operand(self, values: Tensor) -> dict[str, float]:
        return dict(zip(self.operands, values.tolist(), strict=True))

    def _intervals(self, estimates: Mapping[_Key, float], resampled: Tensor) -> dict[_Key, Interval]:
        """resampled: [resample, key]; NaN where a resample has no gate index."""
        intervals = {}
        for (key, estimate), column in zip(estimates.items(), resampled.unbind(-1), strict=True):
            known = column[~column.isnan()]
            low, high = map(float, percentile_interval(known)) if len(known) else (math.nan, math.nan)
            intervals[key] = Interval(estimate, low, high, len(self.total_effect))
        return intervals

    # How it is shown

    def to_json(self) -> dict[str, Any]:
        """Return plain data.

        Returns:
            Sets are lists of operand names, intervals are {"value", "low", "high"}.
        """
        spans = self.intervals
        table = [
            {"set": sorted(names), "value": _plain(effect), "interaction": _plain(spans.interactions[names])}
            for names, effect in spans.effects.items()
        ]
        groups = {
            name: {"edges": list(self.groups.get(name, ())), "label": self.group_labels[name]}
            | {"ns": _plain(spans.ns[name]), "dn": _plain(spans.dn[name]), "gamma": _plain(spans.gamma[name])}
            for name in self.operands
        }
        return {
            "receiver": self.receiver,
            "groups": groups,
            "rest": self.rest,
            "label": self.label,
            "members": list(self.members),
            "conditional": self.conditional,
            "table": table,
            "partners": [{"of": name, "with": other, "value": share} for (name, other), share in self.partners.items()],
            "p": self.p_value,
            "significant": self.significant,
            "confirmed": None if self.confirmed is None else self.confirmed.to_json(),
            "pairs": len(self.total_effect),
        }

    def draw(self, path: str | Path, *, title: str | None = None) -> Path:
        """Draw the groups, the receiver and the table.

        Args:
            path: File to write; its suffix decides the format: .svg, .pdf or .png.
            title: Of the figure.

        Returns:
            The path.
        """
        from gatewise.circuits.gate_drawing import DrawnGate, draw_gate

        bars = {names: (span.value, span.low, span.high) for names, span in self.intervals.effects.items()}
        groups = {name: tuple(self.groups.get(name, ())) for name in self.operands}
        return draw_gate(DrawnGate(self.receiver, self.label, groups, self.group_labels, bars), path, title=title)

    def __repr__(self) -> str:
        effects = ", ".join(f"{'+'.join(sorted(names))} {effect:.2f}" for names, effect in self.effects.items())
        names, interval = self.strongest_interaction
        confirmed = "" if self.confirmed is None else ", confirmed" if self.confirmed else ", not confirmed"
        return (
            f"<{self.receiver} {self.label} of {', '.join(self.members)}: {effects}; "
            f"{product_text(names)} {_text(interval)}{confirmed}>"
        )

    def _repr_html_(self) -> str:
        spans = self.intervals
        rows = [
            (" ".join(sorted(names)), _text(effect), _text(spans.interactions[names]))
            for names, effect in spans.effects.items()
        ]
        return card("GateTest", repr(self).strip("<>"), ("clean", "normalised effect", "interaction"), rows)


def test_gate(
    model: Model,
    data: Data,
    receiver: str,
    groups: Groups,
    *,
    rest: Rest = "corrupted",
    circuit: Circuit | None = None,
    confirm: bool = True,
    compute: Compute | None = None,
) -> GateTest:
    """Test how groups of edges into one node act together.

    Args:
        model: The model.
        data: Pairs, at least 8 of them, or a task, of which the held-out pairs are used.
        receiver: The node that the edges go into, such as "a23.h3", "m18" or "logits".
        groups: Name -> an edge ("m0->a23.h3<v>"), a port ("<k>" or "a23.h3<k>": all its edges), or a list of these. Two
            to four disjoint groups, or one and more with rest="group".
        rest: What the node's other edges carry, "corrupted" or "clean" outputs; or "group": they are one more operand.
        circuit: Test within this circuit: edges outside it stay corrupted. By default the whole model.
        confirm: Whether to repeat the strongest interaction on the logit difference of the whole model, which costs a
            run of what follows the node for each set of groups.
        compute: Where to run.

    Returns:
        The table of effects of all sets of groups, with its label, interactions, gate indices and their intervals.

    Raises:
        GatewiseError: No such receiver, port or edge; groups that overlap, are empty or have another receiver; too few
            pairs, or pairs that the model does not tell apart.
    """
    setting = Setting.of(model, data, "test", compute=compute)
    return run_gate_tests(setting, [(receiver, groups)], rest=rest, circuit=circuit, confirm=confirm)[0]


test_gate.__test__ = False  # type: ignore[attr-defined]  # pytest would take it for a test


def run_gate_tests(
    setting: Setting,
    gates: Sequence[tuple[str, Groups]],
    *,
    rest: Rest = "corrupted",
    circuit: Circuit | None = None,
    confirm: bool = True,
) -> list[GateTest]:
    """Do what `test_gate` does for several receivers, each with its groups, which share the runs and the gradients."""
    setting = gate_setting(setting.model, setting, circuit)
    candidates = [read_candidate(setting.graph, receiver, groups, rest, circuit) for receiver, groups in gates]
    if not candidates:
        return []
    batches = PatchedBatches(setting, circuit)
    tests = measure_candidates(batches, candidates)
    return confirm_tests(batches, candidates, tests) if confirm else tests


def measure_candidates(batches: PatchedBatches, candidates: Sequence[Candidate]) -> list[GateTest]:
    """Measure the tables of candidates, each in its own context."""
    tables, total = measure_tables(batches, candidates)
    return [
        GateTest(candidate.receiver, candidate.groups, candidate.rest, table, total)
        for candidate, table in zip(candidates, tables, strict=True)
    ]


def confirm_tests(
    batches: PatchedBatches, candidates: Sequence[Candidate], tests: Sequence[GateTest]
) -> list[GateTest]:
    """Measure the strongest interaction of each test on the logit difference of the whole model."""
    parts: list[list[Tensor]] = [[] for _ in tests]
    for receivers in batches:
        for candidate, test, of_batches in zip(candidates, tests, parts, strict=True):
            strongest = test.strongest_interaction[0]
            members = [i for i, name in enumerate(test.operands) if name in strongest]
            of_batches.append(end_to_end_interaction(receivers, candidate, members))
    return [test.confirmed_by(torch.cat(of_batches, dim=-1)) for test, of_batches in zip(tests, parts, strict=True)]


def table_in_context(table: Tensor, rest: Rest) -> Tensor:
    """The rows of a table [set, example] that a context leaves.

    The rest of the receiver's edges is the last bit of a set: sets without it come first, then those with it. With a
    clean rest, effects count from what the rest does alone.
    """
    if rest == "group":
        return table
    without_rest, with_rest = table.chunk(2)
    return without_rest if rest == "corrupted" else with_rest - with_rest[:1]


def product_text(names: Iterable[str]) -> str:
    """A set of operands that interact: K x V."""
    return " x ".join(sorted(names))


def _text(interval: Interval) -> str:
    return f"{interval.value:+.3f} ({interval.low:+.3f} to {interval.high:+.3f})"


def _plain(interval: Interval) -> dict[str, Any]:
    values = {"value": interval.value, "low": interval.low, "high": interval.high}
    return {key: value if math.isfinite(value) else None for key, value in values.items()}
