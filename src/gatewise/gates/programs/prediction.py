"""Whether gates predict: the logit difference of interventions that nobody has looked at, by sums, by pairs and by
gates.

Switches are groups of edges. In the run of a subset the edges of all groups outside it are removed by noising and all
other edges are kept: a circuit of the whole model. Its logit difference counts as a share, 0 on the corrupted run and 1
on the clean one. All that predicts it is found on the search pairs:

    sum      1 less what each removed group takes away alone (Ns); what is left without all groups, and what each kept
             one brings alone (Dn); the mean of both; and the best sum there is, by least squares on some subsets
    pairs    the same, with what every two groups do beyond the sum: removed from all (Ns), kept alone (Dn), the mean
    gates    the receivers' tables: added up; composed; composed by reader (`logic.program`). And as a control `sum,
             composed`: the same composition with every receiver as a sum

Then other subsets are run on held-out pairs, none of them with fewer than three groups in it or outside it: those are
what sums and pairs are made of. Predictions are judged as they are, and after a line that was fitted to the same
subsets as the best sum.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.drawing import check_can_draw, save_figure
from gatewise.circuits.graph import Graph
from gatewise.compute import Compute
from gatewise.display import card
from gatewise.engine.forward.sparse import SparseEngine
from gatewise.engine.metrics import residual_values
from gatewise.engine.patching.node_patching import LOGITS, Batches
from gatewise.engine.setting import Data, Setting
from gatewise.errors import GatewiseError
from gatewise.gates.programs.program import Program, compose
from gatewise.gates.testing.candidates import Candidate, Groups, gate_of_masks, read_gate
from gatewise.gates.testing.gate_test import FLOOR, GateTest, checked_total, measure, search_and_test
from gatewise.gates.testing.search import port_masks
from gatewise.models.model import Model
from gatewise.progress import progress_bar
from gatewise.statistics import Interval, percentile_interval, resampling_weights
from gatewise.tasks.pairs import Pairs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Predictor = Callable[[Tensor], Tensor]
RECEIVERS, SUBSETS, OTHERS = 12, 1_000, 200
_COLOURS = {"sum": "#0072B2", "pairs": "#E69F00", "gates": "#009E73"}
_LISTED = 16  # groups, up to which all subsets are listed and then drawn from


@dataclass(frozen=True)
class Predicted:
    """How well one predictor does. R2 has intervals over held-out pairs, errors are means of |predicted - measured|."""

    name: str
    parameters: int  # numbers in it
    r2: Interval
    error: float
    calibrated_r2: Interval  # after a line fitted to other subsets
    calibrated_error: float


@dataclass(frozen=True, eq=False)
class Prediction:
    """The logit difference of unseen subsets of groups, and how well it was predicted."""

    groups: tuple[str, ...]  # receiver and name
    subsets: Tensor  # [subset, group] of bool, whether it is kept
    measured: Tensor  # [subset], normalised effects on the held-out pairs
    predicted: Mapping[str, Tensor]  # [subset] by the name of the predictor
    scores: tuple[Predicted, ...]
    again: (
        Interval  # R2 of the search pairs' own runs of other subsets: what they can tell about held-out pairs at best
    )
    program: Program
    pairs: tuple[int, int]  # search, held out

    def __getitem__(self, name: str) -> Predicted:
        return next(one for one in self.scores if one.name == name)

    def to_json(self) -> dict[str, Any]:
        """Plain data: what was scored, and the program as lines of text."""
        return {
            "groups": self.groups,
            "subsets": len(self.subsets),
            "search_pairs": self.pairs[0],
            "held_out_pairs": self.pairs[1],
            "measured": {"mean": float(self.measured.mean()), "deviation": float(self.measured.std())},
            "again": asdict(self.again),
            "predictors": [asdict(one) for one in self.scores],
            "program": str(self.program).splitlines(),
        }

    def __str__(self) -> str:
        lines = [f"{len(self.subsets):,} unseen subsets of {len(self.groups)} groups on {self.pairs[1]} held-out pairs"]
        lines.append(f"{'':20} numbers     R2  error   calibrated")
        for one in self.scores:
            lines.append(
                f"{one.name:20} {one.parameters:7,} {one.r2.value:6.3f} {one.error:6.3f}   "
                f"{one.calibrated_r2.value:.3f} ({one.calibrated_r2.low:.3f} to {one.calibrated_r2.high:.3f}), "
                f"{one.calibrated_error:.3f}"
            )
        return "\n".join([*lines, f"{'run on search pairs':20} {'':7} {self.again.value:6.3f}"])

    def __repr__(self) -> str:
        best = max(self.scores, key=lambda one: one.calibrated_r2.value)
        told = f"best by {best.name} with {best.parameters:,} numbers, calibrated R2 {best.calibrated_r2.value:.2f}"
        return f"<Prediction of {len(self.subsets):,} subsets of {len(self.groups)} groups: {told}>"

    def _repr_html_(self) -> str:
        rows = [
            (one.name, f"{one.parameters:,}", f"{one.r2.value:.3f}", f"{one.calibrated_r2.value:.3f}")
            for one in self.scores
        ]
        return card("Prediction", repr(self).strip("<>"), ("by", "numbers", "R2", "calibrated"), rows)

    def draw(self, path: str | Path) -> Path:
        """Draw R2 against the number of numbers to a file, .svg, .pdf or .png. Gives the path."""
        path = Path(path)
        check_can_draw(path)
        return save_figure(self._figure, path)

    def _figure(self) -> Figure:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6.4, 3.8), layout="constrained")
        axes = figure.subplots()
        axes.set(xscale="log", xlabel="numbers in the predictor", ylabel="R2 on unseen subsets")
        ticks = sorted({one.parameters for one in self.scores})
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()
        lowest = min(one.calibrated_r2.value for one in self.scores)
        axes.set_ylim(max(-0.05, lowest - 0.15), 1.02)
        taken: list[tuple[int, float]] = []  # where labels are
        for one in sorted(self.scores, key=lambda one: -one.calibrated_r2.value):
            at, value, colour = one.parameters, one.calibrated_r2, _COLOURS[one.name.partition(",")[0]]
            axes.plot([at, at], [value.low, value.high], color=colour, linewidth=1)
            axes.plot(at, value.value, "o", color=colour, markersize=5)
            axes.plot(at, one.r2.value, "o", color=colour, markersize=5, markerfacecolor="none")
            height = min([value.value, *(y - 0.03 for x, y in taken if x == at)])
            left = at == ticks[-1] or any(ticks[0] < at < x < 2 * at and abs(y - height) < 0.04 for x, y in taken)
            side, shift = ("right", -6) if left else ("left", 6)
            axes.annotate(
                one.name, (at, height), (shift, -2), textcoords="offset points", ha=side, fontsize=7, color=colour
            )
            taken.append((at, height))
        axes.set_title("full: after a line fitted to other subsets, hollow: as it is", fontsize=8, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
        return figure


def predict(
    model: Model,
    data: Data,
    gates: Mapping[str, Groups] | Iterable[GateTest] | None = None,
    *,
    test: Pairs | None = None,
    receivers: int = RECEIVERS,
    subsets: int = SUBSETS,
    others: int = OTHERS,
    floor: float = FLOOR,
    seed: int = 0,
    compute: Compute | None = None,
) -> Prediction:
    """Predict the logit difference of random subsets of groups by sums, pairs and gates, and run them on held-out
    pairs.

    gates: `{receiver: groups}` with groups as in `interaction`, or gates that were found (of each receiver the first);
    without them, the ports of the `receivers` strongest heads. test: the held-out pairs; without them the second half
    of `pairs` is held out. subsets: how many are predicted; others: how many a line and the best sum are fitted to.
    floor: terms of composed gates that are worth less, as a normalised effect, are left out.
    """
    search, held_out = search_and_test(model, data, test, compute=compute)
    on = Batches(search)
    chosen = _strongest(on, receivers) if gates is None else _given(search.graph, gates)
    chosen.sort(key=lambda gate: gate.node % (len(search.graph.senders) + 1))  # the logits last
    switches = _switches(search.graph, chosen)
    drawn = _draw(len(switches), subsets, others, seed)
    unseen, known = drawn[:subsets], drawn[subsets:]
    if chosen[-1].node != LOGITS:
        chosen.append(gate_of_masks(search.graph, LOGITS, {}))
    programs = compose(on, chosen, floor=floor)
    fitting = _design(len(switches))
    logit_diffs, total = _logit_diffs(search, switches, torch.cat([fitting, known]))
    values, answers = (logit_diffs.mean(dim=-1) / total.mean()).split([len(fitting), len(known)])
    predictors = _sums_and_pairs(len(switches), values, known, answers)
    predictors |= {
        "sum, composed": (programs.sums.parameters, programs.sums),
        "gates, added up": (programs.gates.table_parameters, programs.gates.added_up),
        "gates, composed": (programs.gates.parameters, programs.gates),
        "gates, by reader": (programs.by_reader.parameters, programs.by_reader),
    }
    logit_diffs, total = _logit_diffs(held_out, switches, drawn)
    again, logit_diffs = _r2_over_pairs(logit_diffs[subsets:], total, answers), logit_diffs[:subsets]
    predicted, scores = {}, []
    for name, (parameters, predictor) in predictors.items():
        predicted[name] = predictor(unseen)
        line = _least_squares(predictor(known)[:, None], answers)
        scores.append(_scored(name, parameters, predicted[name], line(predicted[name][:, None]), logit_diffs, total))
    measured = logit_diffs.mean(dim=-1) / total.mean()
    sizes = (len(search), len(held_out))
    return Prediction(programs.gates.switches, unseen, measured, predicted, tuple(scores), again, programs.gates, sizes)


def _strongest(on: Batches, count: int) -> list[Candidate]:
    """Ports as groups, of the heads whose table has the largest worth of any set on the search pairs."""
    graph = on.model.graph
    heads = [node for node, ports in enumerate(graph.ports_of_sender) if len(ports) > 1]
    if not 1 <= count <= len(heads):
        raise GatewiseError(
            f"the ports of {count} heads were asked for, and {len(heads)} nodes have several ports; ask for another "
            f"number of receivers, or give gates of your own, {{receiver: groups}}."
        )
    gates = [gate_of_masks(graph, node, port_masks(on, node)) for node in heads]
    found, _ = measure(on, gates)
    order = sorted(range(len(gates)), key=lambda place: -float(found[place].mean(dim=-1).abs().max()))
    return [gates[place] for place in order[:count]]


def _given(graph: Graph, gates: Mapping[str, Groups] | Iterable[GateTest]) -> list[Candidate]:
    if isinstance(gates, Mapping):
        found = [read_gate(graph, receiver, groups, "group") for receiver, groups in gates.items()]
        several = [one.receiver for one, other in itertools.combinations(found, 2) if one.node == other.node]
        if several:
            raise GatewiseError(f"the receiver {several[0]} is given twice; put its groups together.")
        return found
    first: dict[str, Candidate] = {}
    for gate in gates:
        if not isinstance(gate, GateTest):
            raise GatewiseError(f"gates are {{receiver: groups}}, or gates that were found; got {gate!r} among them.")
        if gate.receiver not in first:
            first[gate.receiver] = read_gate(graph, gate.receiver, gate.groups, "group")
    return list(first.values())


def _switches(graph: Graph, gates: Sequence[Candidate]) -> Tensor:
    """The edges of every group. [group, edge] of bool"""
    count = sum(len(gate.groups) for gate in gates)
    found = torch.zeros(count, len(graph.ports), len(graph.senders), dtype=torch.bool)
    groups = iter(found)
    for gate in gates:
        ports = graph.ports_of(gate.node)
        for mask in gate.masks[:-1]:
            next(groups)[list(ports)] = mask
    return graph.vector(found)


def _draw(groups: int, subsets: int, others: int, seed: int) -> Tensor:
    """Different subsets with three groups or more in them and outside. [subset, group] of bool"""
    if subsets < 2 or others <= groups:
        raise GatewiseError(
            f"predicting takes 2 subsets or more, and others than those, more than there are groups ({groups}), to fit "
            f"a sum to; got subsets={subsets} and others={others}."
        )
    generator = torch.Generator().manual_seed(seed)
    if groups <= _LISTED:
        rows = torch.tensor(list(itertools.product((False, True), repeat=groups)))
    else:
        rows = torch.randint(0, 2, (2 * (subsets + others), groups), generator=generator).bool().unique(dim=0)
    size = rows.sum(dim=1)
    rows = rows[(size > 2) & (size < groups - 2)]
    if len(rows) < subsets + others:
        raise GatewiseError(
            f"{groups} groups have {len(rows):,} subsets with three or more of them inside and outside, and "
            f"subsets={subsets} and others={others} were asked for; ask for fewer, or give more groups."
        )
    return rows[torch.randperm(len(rows), generator=generator)[: subsets + others]]


def _design(groups: int) -> Tensor:
    """All groups, none, all but one or two, one or two alone. [subset, group] of bool"""
    one = torch.eye(groups, dtype=torch.bool)
    first, second = torch.combinations(torch.arange(groups)).T
    two = one[first] | one[second]
    return torch.cat([torch.ones_like(one[:1]), torch.zeros_like(one[:1]), ~one, one, ~two, two])


def _sums_and_pairs(groups: int, values: Tensor, known: Tensor, answers: Tensor) -> dict[str, tuple[int, Predictor]]:
    """Predictors and their numbers, from the logit differences of `_design` [subset] and of other subsets."""
    first, second = torch.combinations(torch.arange(groups)).T
    sizes = [1, 1, groups, groups, len(first), len(first)]
    _, none, without, alone, without_two, two = values.split(sizes)
    ns, dn = 1 - without, alone - none
    lost = torch.cat([ns, 1 - without_two - ns[first] - ns[second]])
    brought = torch.cat([dn, two - none - dn[first] - dn[second]])

    def predictors(count: int) -> dict[str, Predictor]:
        """Of this many numbers beside a constant: of groups, or of pairs, too."""

        def by_ns(on: Tensor) -> Tensor:
            return torch.addmv(torch.ones(1).double(), both(~on)[:, :count], lost[:count], alpha=-1)

        def by_dn(on: Tensor) -> Tensor:
            return torch.addmv(none, both(on)[:, :count], brought[:count])

        return {"Ns": by_ns, "Dn": by_dn, "mean": lambda on: (by_ns(on) + by_dn(on)) / 2}

    def both(there: Tensor) -> Tensor:
        return torch.cat([there, there[:, first] & there[:, second]], dim=1).double()

    best = _least_squares(known.double(), answers)
    sums = predictors(groups) | {"fitted": lambda on: best(on.double())}
    pairs = predictors(groups + len(first))
    found = {f"sum, {name}": (groups + 1, one) for name, one in sums.items()}
    return found | {f"pairs, {name}": (groups + 1 + len(first), one) for name, one in pairs.items()}


def _least_squares(x: Tensor, y: Tensor) -> Predictor:
    """A constant and a weight for each column, fitted. x: [row, column], y: [row]"""

    def full(x: Tensor) -> Tensor:
        return torch.cat([x, torch.ones_like(x[:, :1])], dim=1)

    weights = torch.linalg.pinv(full(x)) @ y
    return lambda x: full(x) @ weights


def _logit_diffs(setting: Setting, switches: Tensor, subsets: Tensor) -> tuple[Tensor, Tensor]:
    """Margins above the corrupted run's of the model with these groups kept and the others removed, and of the model.

    subsets: [row, group] -> [row, example], [example]. Subsets that begin alike follow each other: they share runs.
    """
    model, graph = setting.model, setting.graph
    rows, which = subsets.unique(dim=0, return_inverse=True)
    circuits = [graph.empty(), graph.full(), *(Circuit(graph, ~switches[~row].any(dim=0)) for row in rows)]
    found = torch.empty(len(circuits), len(setting), dtype=torch.float64)
    batches = setting.batches()
    with progress_bar("running subsets", len(circuits) * len(batches)) as bar:
        for batch in batches:
            engine = SparseEngine(model, setting.intervention(batch))
            logit_diff = residual_values(model, batch.pairs, setting.value)
            for row, circuit in enumerate(circuits):
                found[row, batch.first : batch.first + len(batch.pairs)] = logit_diff(engine.residual(circuit)).cpu()
                bar.advance()
    found -= found[0].clone()
    return found[2:][which], checked_total(found[1])


def _scored(
    name: str, parameters: int, plain: Tensor, calibrated: Tensor, logit_diffs: Tensor, total: Tensor
) -> Predicted:
    measured = logit_diffs.mean(dim=-1) / total.mean()
    errors = [float((measured - predicted).abs().mean()) for predicted in (plain, calibrated)]
    r2 = [_r2_over_pairs(logit_diffs, total, predicted) for predicted in (plain, calibrated)]
    return Predicted(name, parameters, r2[0], errors[0], r2[1], errors[1])


def _r2_over_pairs(logit_diffs: Tensor, total: Tensor, predicted: Tensor) -> Interval:
    """R2 of normalised effects [subset], with its interval over pairs. logit differences: [subset, example]"""
    weights = resampling_weights(len(total)).T
    low, high = percentile_interval(_r2((weights @ logit_diffs.T) / (weights @ total)[:, None], predicted))
    value = _r2(logit_diffs.mean(dim=-1) / total.mean(), predicted)
    return Interval(float(value), float(low), float(high), len(total))


def _r2(measured: Tensor, predicted: Tensor) -> Tensor:
    """Share of the variance of what was measured [..., subset] that is predicted [subset]."""
    spread = (measured - measured.mean(dim=-1, keepdim=True)).square().sum(dim=-1)
    return 1 - (measured - predicted).square().sum(dim=-1) / spread
