"""Whether gates predict: the logit difference of interventions that nobody has looked at, by sums, pairs and gates.

Switches are groups of edges. In the run of a subset of groups, the edges of all groups outside it are ablated by
noising and all other edges are kept: a circuit of the whole model. Its logit difference is normalised, 0 on the
corrupted run and 1 on the clean one. All predictors come from the search pairs:

    sum      1 less what each ablated group takes away alone (Ns); what is left without all groups, and what each kept
             one brings alone (Dn); the mean of both; and the best sum there is, by least squares on some subsets
    pairs    the same, with what every two groups do beyond the sum: ablated from all (Ns), kept alone (Dn), the mean
    gates    the receivers' tables: added up; composed; composed by reader (`program`). And as a control `sum,
             composed`: the same composition with every receiver as a sum

Then other subsets are run on held-out pairs, none of them with fewer than three groups in it or outside it: those are
what sums and pairs are made of. Predictors are scored uncalibrated, and affine-calibrated: after a line that was
fitted, on the search pairs, to the same subsets as the best sum.
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
from gatewise.engine.forward.sparse import SparseEngine
from gatewise.engine.metrics import residual_values
from gatewise.engine.patching.node_patching import LOGITS, PatchedBatches
from gatewise.engine.setting import Data, Setting
from gatewise.errors import GatewiseError
from gatewise.gates.programs.program import Program, compose
from gatewise.gates.testing.candidates import (
    Candidate,
    Groups,
    candidate_of_masks,
    edges_into,
    read_candidate,
)
from gatewise.gates.testing.gate_test import GateTest
from gatewise.gates.testing.measurement import check_total_effect, measure_tables, search_and_held_out
from gatewise.gates.testing.search import port_groups
from gatewise.models.model import Model
from gatewise.progress import progress_bar
from gatewise.statistics import Interval, percentile_interval, resampling_weights
from gatewise.tasks.pairs import Pairs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Predictor = Callable[[Tensor], Tensor]  # [subset, group] of bool -> normalised logit differences [subset]
RECEIVERS, SUBSETS, FIT_SUBSETS = 12, 1_000, 200
_COLOURS = {"sum": "#0072B2", "pairs": "#E69F00", "gates": "#009E73"}
_LISTED = 16  # groups, up to which all subsets are listed and then drawn from


@dataclass(frozen=True)
class PredictorScore:
    """How well one predictor does on unseen subsets. R2 has intervals over held-out pairs."""

    name: str
    parameters: int
    r2: Interval  # uncalibrated
    mae: float
    calibrated_r2: Interval  # affine-calibrated on other subsets
    calibrated_mae: float


@dataclass(frozen=True, eq=False)
class Prediction:
    """The logit difference of unseen subsets of groups, and how well it was predicted."""

    groups: tuple[str, ...]  # receiver and name
    subsets: Tensor  # [subset, group] of bool, whether it is kept
    measured: Tensor  # [subset], normalised logit difference on the held-out pairs
    predicted: Mapping[str, Tensor]  # [subset] by the name of the predictor
    scores: tuple[PredictorScore, ...]
    ceiling: Interval  # R2 of running other subsets on the search pairs: no predictor from these can be expected above
    program: Program  # of `gates, composed`
    pairs: tuple[int, int]  # search, held out

    def __getitem__(self, name: str) -> PredictorScore:
        return next(score for score in self.scores if score.name == name)

    def to_json(self) -> dict[str, Any]:
        """Return plain data.

        Returns:
            The score of every predictor, and the program as lines of text.
        """
        return {
            "groups": self.groups,
            "subsets": len(self.subsets),
            "search_pairs": self.pairs[0],
            "held_out_pairs": self.pairs[1],
            "measured": {"mean": float(self.measured.mean()), "standard_deviation": float(self.measured.std())},
            "ceiling": asdict(self.ceiling),
            "predictors": [asdict(score) for score in self.scores],
            "program": str(self.program).splitlines(),
        }

    def __str__(self) -> str:
        lines = [f"{len(self.subsets):,} unseen subsets of {len(self.groups)} groups on {self.pairs[1]} held-out pairs"]
        lines.append(f"{'':20} parameters     R2    MAE   calibrated R2, MAE")
        for score in self.scores:
            calibrated = score.calibrated_r2
            lines.append(
                f"{score.name:20} {score.parameters:10,} {score.r2.value:6.3f} {score.mae:6.3f}   "
                f"{calibrated.value:.3f} ({calibrated.low:.3f} to {calibrated.high:.3f}), {score.calibrated_mae:.3f}"
            )
        return "\n".join([*lines, f"{'run on search pairs':20} {'':10} {self.ceiling.value:6.3f}"])

    def __repr__(self) -> str:
        best = max(self.scores, key=lambda score: score.calibrated_r2.value)
        return (
            f"<Prediction of {len(self.subsets):,} subsets of {len(self.groups)} groups: best by {best.name} with "
            f"{best.parameters:,} parameters, calibrated R2 {best.calibrated_r2.value:.2f}>"
        )

    def draw(self, path: str | Path) -> Path:
        """Draw R2 against the number of parameters.

        Args:
            path: File to write; its suffix decides the format: .svg, .pdf or .png.

        Returns:
            The path.
        """
        check_can_draw(Path(path))
        return save_figure(self._figure, Path(path))

    def _figure(self) -> Figure:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6.4, 3.8), layout="constrained")
        axes = figure.subplots()
        axes.set(xscale="log", xlabel="parameters", ylabel="R2 on unseen subsets")
        ticks = sorted({score.parameters for score in self.scores})
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()
        lowest = min(score.calibrated_r2.value for score in self.scores)
        axes.set_ylim(max(-0.05, lowest - 0.15), 1.02)
        taken: list[tuple[int, float]] = []  # where names are, so that no two lie upon each other
        for score in sorted(self.scores, key=lambda score: -score.calibrated_r2.value):
            x, r2, colour = score.parameters, score.calibrated_r2, _COLOURS[score.name.partition(",")[0]]
            axes.plot([x, x], [r2.low, r2.high], color=colour, linewidth=1)
            axes.plot(x, r2.value, "o", color=colour, markersize=5)
            axes.plot(x, score.r2.value, "o", color=colour, markersize=5, markerfacecolor="none")
            height = min([r2.value, *(y - 0.03 for other, y in taken if other == x)])
            beside = any(ticks[0] < x < other < 2 * x and abs(y - height) < 0.04 for other, y in taken)
            side, shift = ("right", -6) if x == ticks[-1] or beside else ("left", 6)
            text: dict[str, Any] = {"textcoords": "offset points", "ha": side, "fontsize": 7, "color": colour}
            axes.annotate(score.name, (x, height), (shift, -2), **text)
            taken.append((x, height))
        axes.set_title("full: affine-calibrated on other subsets, hollow: uncalibrated", fontsize=8, loc="left")
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
    fit_subsets: int = FIT_SUBSETS,
    seed: int = 0,
    compute: Compute | None = None,
) -> Prediction:
    """Predict the logit difference of subsets of groups by sums, pairs and gates, and run them on held-out pairs.

    Args:
        model: The model.
        data: Pairs to search on, or a task, of which the train pairs are searched and the others held out.
        gates: {receiver: groups} with groups as in `test_gate`, or gates that were tested (of each receiver the first).
            By default the ports of the strongest heads.
        test: The held-out pairs. Without them, those of the task, or the second half of the pairs.
        receivers: Number of heads, where no gates are given.
        subsets: Number of subsets that are predicted.
        fit_subsets: Number of other subsets, to which affine calibrations and the best sum are fitted.
        seed: Of the subsets.
        compute: Where to run.

    Returns:
        What was measured and predicted, the score of every predictor, and the program of the gates.

    Raises:
        GatewiseError: Unknown receivers or groups, fewer subsets than asked for, or too few pairs.
    """
    search, held_out = search_and_held_out(model, data, test, compute=compute)
    graph, batches = search.graph, PatchedBatches(search)
    candidates = _strongest_heads(batches, receivers) if gates is None else _read_gates(graph, gates)
    candidates.sort(key=lambda candidate: candidate.node % (len(graph.senders) + 1))  # graph order; LOGITS, -1, is last
    switches = _switches(graph, candidates)
    drawn = _draw_subsets(len(switches), subsets, fit_subsets, seed)
    unseen, fitted_to = drawn[:subsets], drawn[subsets:]

    # Everything that predicts, on the search pairs.
    if candidates[-1].node != LOGITS:
        candidates.append(candidate_of_masks(graph, LOGITS, {}))
    sums, program, by_reader = compose(batches, candidates)
    design = _design(len(switches))
    runs = _run_subsets(search, switches, torch.cat([design, fitted_to]))
    fit_values = runs.normalised[len(design) :]
    predictors = _sums_and_pairs(runs.normalised[: len(design)], fitted_to, fit_values)
    predictors |= {
        "sum, composed": (sums.parameters, sums),
        "gates, added up": (program.table_parameters, program.added_up),
        "gates, composed": (program.parameters, program),
        "gates, by reader": (by_reader.parameters, by_reader),
    }

    # What happens, on the held-out pairs.
    runs = _run_subsets(held_out, switches, drawn)
    ceiling = runs[subsets:].r2(fit_values)
    runs = runs[:subsets]
    predicted = {name: predictor(unseen) for name, (_, predictor) in predictors.items()}
    scores = []
    for name, (parameters, predictor) in predictors.items():
        line = _least_squares(predictor(fitted_to)[:, None], fit_values)
        plain, calibrated = predicted[name], line(predicted[name][:, None])
        accuracy = (runs.r2(plain), runs.mae(plain), runs.r2(calibrated), runs.mae(calibrated))
        scores.append(PredictorScore(name, parameters, *accuracy))
    sizes = (len(search), len(held_out))
    return Prediction(program.switches, unseen, runs.normalised, predicted, tuple(scores), ceiling, program, sizes)


def _strongest_heads(batches: PatchedBatches, count: int) -> list[Candidate]:
    """Ports as groups, of the heads with the largest effect of any set of ports on the search pairs."""
    graph = batches.model.graph
    heads = [node for node, ports in enumerate(graph.ports_of_sender) if len(ports) > 1]
    if not 1 <= count <= len(heads):
        raise GatewiseError(
            f"the ports of {count} heads were asked for, and {len(heads)} nodes have several ports; ask for another "
            f"number of receivers, or give gates of your own, {{receiver: groups}}."
        )
    candidates = [candidate_of_masks(graph, node, port_groups(graph, node, edges_into(graph, node))) for node in heads]
    tables, _ = measure_tables(batches, candidates)
    sizes = [float(table.mean(dim=-1).abs().max()) for table in tables]
    order = sorted(range(len(heads)), key=lambda index: -sizes[index])
    return [candidates[index] for index in order[:count]]


def _read_gates(graph: Graph, gates: Mapping[str, Groups] | Iterable[GateTest]) -> list[Candidate]:
    if isinstance(gates, Mapping):
        candidates = [read_candidate(graph, receiver, groups, "group") for receiver, groups in gates.items()]
        for candidate, other in itertools.combinations(candidates, 2):
            if candidate.node == other.node:
                raise GatewiseError(f"the receiver {candidate.receiver} is given twice; put its groups together.")
        return candidates
    first: dict[str, Candidate] = {}
    for gate in gates:
        if not isinstance(gate, GateTest):
            raise GatewiseError(f"gates are {{receiver: groups}}, or gates that were tested; got {gate!r} among them.")
        if gate.receiver not in first:
            first[gate.receiver] = read_candidate(graph, gate.receiver, gate.groups, "group")
    return list(first.values())


def _switches(graph: Graph, candidates: Sequence[Candidate]) -> Tensor:
    """The edges of every group. [group, edge] of bool"""
    masks = []
    for candidate in candidates:
        for group in candidate.masks[:-1]:
            mask = torch.zeros(len(graph.ports), len(graph.senders), dtype=torch.bool)
            mask[list(graph.ports_of(candidate.node))] = group
            masks.append(graph.vector(mask))
    return torch.stack(masks)


def _draw_subsets(groups: int, subsets: int, fit_subsets: int, seed: int) -> Tensor:
    """Different subsets with three groups or more in them and outside. [subset, group] of bool"""
    if subsets < 2 or fit_subsets <= groups:
        raise GatewiseError(
            f"predicting takes 2 subsets or more, and others than those, more than there are groups ({groups}), to fit "
            f"a sum to; got subsets={subsets} and fit_subsets={fit_subsets}."
        )
    count, generator = subsets + fit_subsets, torch.Generator().manual_seed(seed)
    if groups <= _LISTED:
        rows = torch.tensor(list(itertools.product((False, True), repeat=groups)))
    else:
        rows = torch.randint(0, 2, (2 * count, groups), generator=generator).bool().unique(dim=0)
    size = rows.sum(dim=1)
    rows = rows[(size > 2) & (size < groups - 2)]
    if len(rows) < count:
        raise GatewiseError(
            f"{groups} groups have {len(rows):,} subsets with three or more of them inside and outside, and "
            f"subsets={subsets} and fit_subsets={fit_subsets} were asked for; ask for fewer, or give more groups."
        )
    return rows[torch.randperm(len(rows), generator=generator)[:count]]


def _design(groups: int) -> Tensor:
    """None, all but one or two, one or two alone: what sums and pairs are made of. [subset, group] of bool"""
    single = torch.eye(groups, dtype=torch.bool)
    first, second = torch.combinations(torch.arange(groups)).T
    two = single[first] | single[second]
    return torch.cat([torch.zeros_like(single[:1]), ~single, single, ~two, two])


def _sums_and_pairs(design: Tensor, fitted_to: Tensor, fit_values: Tensor) -> dict[str, tuple[int, Predictor]]:
    """Predictors and their numbers of parameters, by name.

    design: normalised logit differences of `_design` [subset]; fitted_to: [subset, group] with fit_values [subset]
    """
    groups = fitted_to.shape[1]
    first, second = torch.combinations(torch.arange(groups)).T
    parts: Sequence[Tensor] = design.split([1, groups, groups, len(first), len(first)])
    none, without, alone, without_two, two = parts
    ns, dn = 1 - without, alone - none
    lost = torch.cat([ns, 1 - without_two - ns[first] - ns[second]])  # by each group, and by each two beyond the sum
    restored = torch.cat([dn, two - none - dn[first] - dn[second]])
    best = _least_squares(fitted_to.double(), fit_values)

    def weighted(present: Tensor, weights: Tensor) -> Tensor:
        """Sum of the weights of groups, and of pairs of groups if there are such weights, that are present. [subset]"""
        terms = torch.cat([present, present[:, first] & present[:, second]], dim=1).double()
        return terms[:, : len(weights)] @ weights

    def mean(on: Tensor, terms: int) -> Tensor:
        return (1 - weighted(~on, lost[:terms]) + none + weighted(on, restored[:terms])) / 2

    pairs = groups + len(first)
    return {
        "sum, Ns": (groups + 1, lambda on: 1 - weighted(~on, lost[:groups])),
        "sum, Dn": (groups + 1, lambda on: none + weighted(on, restored[:groups])),
        "sum, mean": (groups + 1, lambda on: mean(on, groups)),
        "sum, fitted": (groups + 1, lambda on: best(on.double())),
        "pairs, Ns": (pairs + 1, lambda on: 1 - weighted(~on, lost)),
        "pairs, Dn": (pairs + 1, lambda on: none + weighted(on, restored)),
        "pairs, mean": (pairs + 1, lambda on: mean(on, pairs)),
    }


def _least_squares(x: Tensor, y: Tensor) -> Predictor:
    """A constant and a weight for each column, fitted. x: [row, column], y: [row]"""

    def with_constant(x: Tensor) -> Tensor:
        return torch.cat([x, torch.ones_like(x[:, :1])], dim=1)

    weights = torch.linalg.pinv(with_constant(x)) @ y
    return lambda x: with_constant(x) @ weights


@dataclass(frozen=True, eq=False)
class _SubsetRuns:
    """Logit differences of runs of subsets above the corrupted run's, and those of the clean run."""

    effects: Tensor  # [subset, example]
    total_effect: Tensor  # [example]

    def __getitem__(self, rows: slice) -> _SubsetRuns:
        return _SubsetRuns(self.effects[rows], self.total_effect)

    @property
    def normalised(self) -> Tensor:
        return self.effects.mean(dim=-1) / self.total_effect.mean()

    def mae(self, predicted: Tensor) -> float:
        """Mean of |predicted - measured|. predicted: [subset]"""
        return float((self.normalised - predicted).abs().mean())

    def r2(self, predicted: Tensor) -> Interval:
        """R2 of predictions [subset], with its bootstrap interval over pairs."""
        weights = resampling_weights(len(self.total_effect)).T
        resampled = (weights @ self.effects.T) / (weights @ self.total_effect)[:, None]
        low, high = percentile_interval(_r2(resampled, predicted))
        return Interval(float(_r2(self.normalised, predicted)), float(low), float(high), len(self.total_effect))


def _r2(measured: Tensor, predicted: Tensor) -> Tensor:
    """Share of the variance of what was measured [..., subset] that is predicted [subset]."""
    spread = (measured - measured.mean(dim=-1, keepdim=True)).square().sum(dim=-1)
    return 1 - (measured - predicted).square().sum(dim=-1) / spread


def _run_subsets(setting: Setting, switches: Tensor, subsets: Tensor) -> _SubsetRuns:
    """Run the model with the groups of each subset kept and the others ablated. subsets: [row, group]"""
    model, graph = setting.model, setting.graph
    # Sorted by `unique`: subsets that begin alike follow each other, and the engine shares the runs of beginnings.
    rows, which = subsets.unique(dim=0, return_inverse=True)
    circuits = [graph.empty(), graph.full(), *(Circuit(graph, ~switches[~row].any(dim=0)) for row in rows)]
    logit_diffs = torch.empty(len(circuits), len(setting), dtype=torch.float64)
    batches = setting.batches()
    with progress_bar("running subsets", len(circuits) * len(batches)) as bar:
        for batch in batches:
            engine = SparseEngine(model, setting.intervention(batch))
            metric = residual_values(model, batch.pairs, setting.value)
            examples = slice(batch.first, batch.first + len(batch.pairs))
            measured = []
            for circuit in circuits:
                measured.append(metric(engine.residual(circuit)))
                bar.advance()
            logit_diffs[:, examples] = torch.stack(measured).cpu().double()
    logit_diffs -= logit_diffs[0].clone()
    return _SubsetRuns(logit_diffs[2:][which], check_total_effect(logit_diffs[1]))
