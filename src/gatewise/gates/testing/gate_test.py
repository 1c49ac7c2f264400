"""Gates where they are: how groups of edges into one node act together, at the node and in the whole model.

The receiver is a node; the groups are disjoint groups of edges into any of its ports, and the rest of its edges. With
the edges of a set S of groups clean and all others corrupted, the receiver B puts out B(S), and

    v(S) = mean over pairs of  gbar . (B(S) - B(none))   /   mean over pairs of the logit difference's difference
    between the runs

is what that is worth (`engine.receivers`). The rest is corrupted in all rows, clean in all rows (and then v counts from
there), or one more group named `rest`. What tables mean is in `logic.harsanyi_interactions`. Two nodes on one path
also fail together; groups of one receiver are parallel inputs, so that a gate is never a path.

*Confirmed* is the strongest interaction if the same sum over the true logit difference, with B(S) put into the whole
model, has the same sign and an interval without 0: with the rest of the model clean, and with it corrupted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.compute import Compute
from gatewise.display import card
from gatewise.engine.patching.node_patching import LOGITS, Batches, Receivers, Side
from gatewise.engine.setting import AnyMetric, Data, Setting
from gatewise.errors import GatewiseError
from gatewise.gates.labels import GroupGate
from gatewise.gates.testing import harsanyi
from gatewise.gates.testing.candidates import REST, Candidate, Groups, Rest, read_gate
from gatewise.models.model import Model
from gatewise.statistics import Interval, joint_sign_flip_p, percentile_interval, resampling_weights
from gatewise.tasks import Task
from gatewise.tasks.pairs import Pairs

Names = frozenset[str]
SIDES: tuple[Side, ...] = ("clean", "corrupted")
FLOOR = 0.01  # of the logit difference
EDGE_FLOOR = 0.005  # of the logit difference, for single edges, which are smaller than groups
RESAMPLES = 2_000
FEWEST = 8  # pairs that an interval needs
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Confirmation:
    """An interaction at the receiver, and the same on the true logit difference with the rest of the model on one
    side."""

    members: Names
    at_receiver: Interval
    on_logit_diff: Mapping[Side, Interval]

    def __getitem__(self, side: Side) -> bool:
        """Whether it stands with the rest of the model on this side."""
        found = self.on_logit_diff[side]
        return found.without_zero and self.at_receiver.without_zero and found.value * self.at_receiver.value > 0

    def __bool__(self) -> bool:
        return all(self[side] for side in self.on_logit_diff)

    def to_json(self) -> dict[str, Any]:
        sides: dict[str, Any] = {
            side: _plain(found) | {"significant": self[side]} for side, found in self.on_logit_diff.items()
        }
        return {"set": sorted(self.members), "at_receiver": _plain(self.at_receiver), **sides}


@dataclass(frozen=True, eq=False)
class GateTest:
    """How groups of edges act together on one receiver. Shares of the logit difference; sets are frozensets of group
    names."""

    receiver: str
    groups: Mapping[str, tuple[str, ...]]
    rest: Rest
    table: Tensor  # [set of groups and then the rest, example], what it is worth in units of the logit difference
    total: Tensor  # [example], difference of the logit difference between the two runs
    confirmed: Confirmation | None = None
    floor: float = FLOOR
    resamples: int = RESAMPLES

    @property
    def all_groups(self) -> tuple[str, ...]:
        return (*self.groups, REST) if self.rest == "group" else tuple(self.groups)

    @cached_property
    def _rows(self) -> Tensor:
        """The table of this context. [example, set]"""
        return in_context(self.table, len(self.groups), self.rest).T

    @cached_property
    def _values(self) -> Tensor:
        return self._rows.mean(dim=0) / self.total.mean()

    @cached_property
    def _drawn(self) -> Tensor:
        """The table in every resample. [resample, set]"""
        return self._resampled(self._rows)

    def _resampled(self, rows: Tensor) -> Tensor:
        """Shares of the logit difference in every resample. rows: [example, set] -> [resample, set]"""
        weights = resampling_weights(len(self.total), self.resamples)
        return (weights.T @ rows) / (weights.T @ self.total)[:, None]

    def _by_set(self, values: Iterable[_Value]) -> dict[Names, _Value]:
        return {_names(self.all_groups, bits): value for bits, value in enumerate(values) if bits}

    def _by_group(self, values: Iterable[_Value]) -> dict[str, _Value]:
        return dict(zip(self.all_groups, values, strict=True))

    @cached_property
    def values(self) -> dict[Names, float]:
        """v of every set of groups."""
        return self._by_set(self._values.tolist())

    @cached_property
    def harsanyi_interactions(self) -> dict[Names, float]:
        """What every set is worth beyond its subsets; they sum to v(all)."""
        return self._by_set(harsanyi.harsanyi_interactions(self._values).tolist())

    @cached_property
    def ns(self) -> dict[str, float]:
        return self._by_group(harsanyi.ns_effects(self._values).tolist())

    @cached_property
    def dn(self) -> dict[str, float]:
        return self._by_group(harsanyi.dn_effects(self._values).tolist())

    @cached_property
    def gamma(self) -> dict[str, float]:
        """Gate index of every group: 1 AND, -1 OR, 0 ADDER; NaN if neither of its effects is above the floor."""
        ns, dn = harsanyi.ns_effects(self._values), harsanyi.dn_effects(self._values)
        return self._by_group(harsanyi.gate_index(ns, dn, self.floor).tolist())

    @cached_property
    def partners(self) -> dict[tuple[str, str], float]:
        """With whom a group's n - d arises: those of one group sum to it."""
        found = harsanyi.partners(self._values).tolist()
        names = list(enumerate(self.all_groups))
        return {(a, b): found[i][j] for i, a in names for j, b in names if i != j}

    @cached_property
    def _label(self) -> harsanyi.Label:
        return harsanyi.label(self._values, self._drawn, self.floor)

    @property
    def label(self) -> str:
        """AND, OR, ADDER, `m of k`, XOR-like or inhibiting; `mixed` if it is none of these, or `undecided`."""
        return self._label.name

    @property
    def members(self) -> tuple[str, ...]:
        """The groups that the label is about."""
        return tuple(self.all_groups[i] for i in self._label.members)

    @cached_property
    def intervals(self) -> dict[str, dict[Any, Interval]]:
        """Intervals of values, Harsanyi interactions, ns, dn and gamma, each as the property of that name has them."""
        ns, dn = harsanyi.ns_effects(self._drawn), harsanyi.dn_effects(self._drawn)
        drawn: dict[str, dict[Any, Tensor]] = {
            "values": self._by_set(self._drawn.unbind(-1)),
            "harsanyi_interactions": self._by_set(harsanyi.harsanyi_interactions(self._drawn).unbind(-1)),
            "ns": self._by_group(ns.unbind(-1)),
            "dn": self._by_group(dn.unbind(-1)),
            "gamma": self._by_group(harsanyi.gate_index(ns, dn).unbind(-1)),
        }
        return {
            name: {key: _interval(getattr(self, name)[key], values, len(self.total)) for key, values in by_key.items()}
            for name, by_key in drawn.items()
        }

    @cached_property
    def group_labels(self) -> dict[str, str]:
        """How each group acts, by the interval of its gate index (`harsanyi_interactions.way_of_acting`)."""
        indices = self.intervals["gamma"].items()
        return {name: harsanyi.way_of_acting(index.value, index.low, index.high) for name, index in indices}

    @property
    def interaction(self) -> tuple[Names, Interval]:
        """The Harsanyi interaction of two or more groups that is largest."""
        found = {names: value for names, value in self.harsanyi_interactions.items() if len(names) > 1}
        names = max(found, key=lambda one: abs(found[one]))
        return names, self.intervals["harsanyi_interactions"][names]

    @cached_property
    def p(self) -> float:
        """Of all interactions being 0: flips of the signs of pairs that show one as large."""
        found = harsanyi.harsanyi_interactions(self._rows)[:, harsanyi.interaction_sets(len(self.all_groups))]
        return joint_sign_flip_p(found.T)

    @property
    def conditional(self) -> bool:
        """Whether the label is another one if the rest is on the other side."""
        if self.rest == "group":
            return False
        other = in_context(self.table, len(self.groups), "clean" if self.rest == "corrupted" else "corrupted").T
        found = harsanyi.label(other.mean(dim=0) / self.total.mean(), self._resampled(other), self.floor)
        decided = harsanyi.UNDECIDED not in (found.name, self.label)
        return decided and found != self._label

    @property
    def gate(self) -> GroupGate:
        """What is kept of it beside a task's gates, the rest as one more group."""
        values = (self.table.mean(dim=-1) / self.total.mean()).tolist()
        return GroupGate(self.receiver, self.label, dict(self.groups), tuple(values))

    def to_json(self) -> dict[str, Any]:
        """Plain data: sets are lists of group names, spans are [value, low, high]."""
        return {
            "receiver": self.receiver,
            "groups": {name: list(edges) for name, edges in self.groups.items()},
            "rest": self.rest,
            "label": self.label,
            "members": list(self.members),
            "conditional": self.conditional,
            "table": [
                {
                    "set": sorted(names),
                    "value": _plain(value),
                    "interaction": _plain(self.intervals["harsanyi_interactions"][names]),
                }
                for names, value in self.intervals["values"].items()
            ],
            "all_groups": {
                name: {key: _plain(self.intervals[key][name]) for key in ("ns", "dn", "gamma")}
                | {"label": self.group_labels[name]}
                for name in self.all_groups
            },
            "partners": [{"of": a, "with": b, "value": value} for (a, b), value in self.partners.items()],
            "p": self.p,
            "confirmed": None if self.confirmed is None else self.confirmed.to_json(),
            "pairs": len(self.total),
        }

    def draw(self, path: str | Path, *, title: str | None = None) -> Path:
        """Draw the groups, the receiver and the table to a file, .svg, .pdf or .png. Gives the path."""
        from gatewise.circuits.gate_drawing import DrawnGate, draw_gate

        worth = {names: (one.value, one.low, one.high) for names, one in self.intervals["values"].items()}
        groups = {name: tuple(self.groups.get(name, ())) for name in self.all_groups}
        return draw_gate(DrawnGate(self.receiver, self.label, groups, self.group_labels, worth), path, title=title)

    def __repr__(self) -> str:
        worth = ", ".join(f"{'+'.join(sorted(names))} {value:.2f}" for names, value in self.values.items())
        names, found = self.interaction
        significant = "" if self.confirmed is None else ", confirmed" if self.confirmed else ", not confirmed"
        return (
            f"<{self.receiver} {self.label} of {', '.join(self.members)}: {worth}; "
            f"{' x '.join(sorted(names))} {_short(found)}{significant}>"
        )

    def _repr_html_(self) -> str:
        rows = [
            (" ".join(sorted(names)), _short(worth), _short(self.intervals["harsanyi_interactions"][names]))
            for names, worth in self.intervals["values"].items()
        ]
        return card("GateTest", repr(self).strip("<>"), ("clean", "worth", "beyond its subsets"), rows)


def test_gate(
    model: Model,
    data: Data,
    receiver: str,
    groups: Groups,
    *,
    rest: Rest = "corrupted",
    circuit: Circuit | None = None,
    confirm: bool = True,
    floor: float = FLOOR,
    resamples: int = RESAMPLES,
    compute: Compute | None = None,
) -> GateTest:
    """Test how groups of edges into one node act together.

    groups: name -> edges (`m0->a23.h3<v>`), a port (`<k>` or `a23.h3<k>`: all its edges), or a list of these; two to
    four of them, or one and more with rest="group". rest: what the node's other edges carry. circuit: test within it.
    confirm: also on the logit difference of the whole model, which costs a run of what follows the node for each set.
    """
    (found,) = interactions(
        Setting.of(model, data, "test", compute=compute),
        [(receiver, groups)],
        rest=rest,
        circuit=circuit,
        confirm=confirm,
        floor=floor,
        resamples=resamples,
    )
    return found


test_gate.__test__ = False  # type: ignore[attr-defined]  # pytest would take it for a test


def interactions(
    setting: Setting,
    asked: Sequence[tuple[str, Groups]],
    *,
    rest: Rest = "corrupted",
    circuit: Circuit | None = None,
    confirm: bool = True,
    floor: float = FLOOR,
    resamples: int = RESAMPLES,
) -> list[GateTest]:
    """The same for several receivers, each with its groups, which share the runs and the gradients."""
    setting = setting_of(setting.model, setting, circuit)
    gates = [read_gate(setting.graph, receiver, groups, rest, circuit) for receiver, groups in asked]
    if not gates:
        return []
    on = Batches(setting, circuit)
    found, total = measure(on, gates)
    tested = [
        (gate, GateTest(gate.receiver, gate.groups, rest, table, total, floor=floor, resamples=resamples))
        for gate, table in zip(gates, found, strict=True)
    ]
    return confirmed(on, tested) if confirm else [one for _, one in tested]


def setting_of(
    model: Model,
    data: Data,
    circuit: Circuit | None = None,
    *,
    metric: AnyMetric = None,
    fewest: int = FEWEST,
    compute: Compute | None = None,
) -> Setting:
    """What is tested on what; or one line about what has no meaning, before any work."""
    setting = Setting.of(model, data, "test", metric=metric, compute=compute)
    setting.check_circuits([] if circuit is None else [circuit])
    if setting.ablation != "patching":
        raise GatewiseError(f"gates are tested between two runs, and {setting.ablation} ablation has one; drop it.")
    if len(setting) < fewest:
        raise GatewiseError(f"an interval over pairs needs at least {fewest} of them, got {len(setting)}.")
    return setting


def search_and_test(
    model: Model,
    data: Data,
    test: Pairs | None,
    circuit: Circuit | None = None,
    compute: Compute | None = None,
) -> tuple[Setting, Setting]:
    """The pairs to search on, and held-out ones: those given, those of the task, or the second half."""
    if isinstance(data, Task) and test is None:
        test = data.test
    whole = Setting.of(model, data, "train", compute=compute)
    middle = len(whole) // 2
    parts = (whole[:middle], whole[middle:]) if test is None else (whole, whole.with_pairs(test))
    return setting_of(model, parts[0], circuit), setting_of(model, parts[1], circuit)


def measure(on: Batches, gates: Sequence[Candidate]) -> tuple[list[Tensor], Tensor]:
    """Worth of all sets of groups of gates [set, example] each, and the logit difference's difference between runs
    [example]."""
    found, total = worth(on, gates)
    return found, checked_total(total)


def checked_total(total: Tensor) -> Tensor:
    """Refuse pairs whose logit difference does not differ between the runs. [example]"""
    if not tells_apart(total):
        raise GatewiseError(
            f"the logit difference differs by {float(total.mean()):.2g} between the clean and the corrupted run on "
            f"average, so "
            f"that shares of it mean nothing. Use pairs that the model tells apart."
        )
    return total


def worth(on: Batches, gates: Sequence[Candidate]) -> tuple[list[Tensor], Tensor]:
    """The same, whether or not the logit difference differs. Gates of one receiver share the sets that they have in
    common."""
    by_node: dict[int, list[int]] = {}
    for place, gate in enumerate(gates):
        by_node.setdefault(gate.node, []).append(place)
    found: list[list[Tensor]] = [[] for _ in gates]
    totals = []
    for receivers in on:
        for node, places in by_node.items():
            rows = [gates[place].rows(range(1 << len(gates[place].masks))) for place in places]
            values = receivers.values(node, *(torch.cat(some) for some in zip(*rows, strict=True))).cpu()
            for place, part in zip(places, values.split([len(some[0]) for some in rows]), strict=True):
                found[place].append(part)
        totals.append(receivers.total_effect.cpu())
    return [torch.cat(parts, dim=-1) for parts in found], torch.cat(totals)


def tells_apart(total: Tensor) -> bool:
    """Whether the logit difference differs between the runs on average, so that shares of it mean something."""
    return math.isfinite(float(total.mean())) and float(total.mean().abs()) >= 1e-6


def in_context(table: Tensor, groups: int, rest: Rest) -> Tensor:
    """The sets of a table [set, example] that a context leaves, from what the rest alone is worth."""
    if rest == "group":
        return table
    without, with_rest = table.reshape(2, 1 << groups, -1).unbind()
    return without if rest == "corrupted" else with_rest - with_rest[:1]


def confirmed(on: Batches, tested: Sequence[tuple[Candidate, GateTest]]) -> list[GateTest]:
    """The same interactions, with what the largest Harsanyi interaction of each becomes on the logit difference of the
    whole model."""
    contrasts = [_contrast(gate, found) for gate, found in tested]
    logit_diffs: list[list[Tensor]] = [[] for _ in tested]  # [side, example] of each batch
    for receivers in on:
        for contrast, parts in zip(contrasts, logit_diffs, strict=True):
            parts.append(contrast(receivers).cpu())
    results = []
    for (_, found), parts in zip(tested, logit_diffs, strict=True):
        names, at_receiver = found.interaction
        values = torch.cat(parts, dim=-1).T
        shares, drawn = values.mean(dim=0) / found.total.mean(), found._resampled(values)
        count = len(found.total)
        by_side = {side: _interval(float(shares[i]), drawn[:, i], count) for i, side in enumerate(SIDES)}
        results.append(replace(found, confirmed=Confirmation(names, at_receiver, by_side)))
    return results


def _contrast(gate: Candidate, found: GateTest) -> Callable[[Receivers], Tensor]:
    """The sum behind the largest Harsanyi interaction, on the true logit difference. -> [side, example]"""
    names = found.interaction[0]
    members = [i for i, name in enumerate(found.all_groups) if name in names]
    sets = [sum(1 << member for j, member in enumerate(members) if bits >> j & 1) for bits in range(1 << len(members))]
    if found.rest == "clean":
        sets = [bits | 1 << len(gate.groups) for bits in sets]
    signs = torch.tensor([(-1.0) ** (len(members) - bits.bit_count()) for bits in range(1 << len(members))]).double()

    def contrast(receivers: Receivers) -> Tensor:
        rows = gate.rows(sets)
        if gate.node == LOGITS:  # what is put into the logits is the logit difference
            return (signs @ receivers.values(gate.node, *rows).cpu()).expand(len(SIDES), -1)
        outputs = receivers.outputs(gate.node, *rows)
        logit_diffs = [receivers.logit_diffs_with(gate.node, outputs, side) for side in SIDES]
        return torch.stack([signs @ values.cpu() for values in logit_diffs])

    return contrast


def _names(names: Sequence[str], bits: int) -> Names:
    return frozenset(name for i, name in enumerate(names) if bits >> i & 1)


def _interval(value: float, drawn: Tensor, count: int) -> Interval:
    known = drawn[~drawn.isnan()]
    low, high = map(float, percentile_interval(known)) if len(known) else (math.nan, math.nan)
    return Interval(value, low, high, count)


def _short(found: Interval) -> str:
    return f"{found.value:+.3f} ({found.low:+.3f} to {found.high:+.3f})"


def _plain(found: Interval) -> dict[str, float | None]:
    values = {"value": found.value, "low": found.low, "high": found.high}
    return {key: value if math.isfinite(value) else None for key, value in values.items()}
