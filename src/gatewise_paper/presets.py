"""How large: presets of the same experiments, and what was decided before looking at any result.

Methods that rank all edges at once are run at the shares of the graph that the paper's 100 to 5,000 edges are of
GPT-2's 32,491 (0.3 to 15 %), and at the sizes that were chosen by a calibration (`calibration.py`); others at its
primary sizes. Edge Pruning trains at the larger of these, and its masks rank the edges for the smaller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from gatewise.circuits.graph import Graph
from gatewise.errors import GatewiseError
from gatewise_paper.size_calibration import MEASURES, REDUNDANCY, ChosenSizes, committed

_PAPER_SIZES = (100, 200, 500, 1_000, 2_000, 5_000)
_PAPER_EDGES = 32_491
_NEAR = 2  # times a size
STAND_IN = "backup"
SAFE_RLHF = "PKU-Alignment/PKU-SafeRLHF"
FORGET = "forget"  # the task of the pairs to unlearn


def _shares(graph: Graph) -> set[int]:
    """The paper's sizes, as shares of its graph."""
    return {max(2, round(size * graph.n_edges / _PAPER_EDGES)) for size in _PAPER_SIZES}


def plain_task(task: str) -> str:
    """The name of a task without its options."""
    return task.partition(":")[0]


class LeftOutError(GatewiseError):
    """An experiment has nothing to do with the methods that were asked for."""


class Fitting(NamedTuple):
    """How it is measured whether Ns and Dn circuits fit."""

    scales: tuple[float, ...] = (0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4)  # the paper's 60 to 140 for 100
    pairs: int = 16  # of the held-out pairs
    sets: int = 20  # K, for each score
    draws: int = 10  # of two edges, for each K

    def __str__(self) -> str:
        return f"{len(self.scales)} sizes, {self.sets} sets of {self.draws} draws on {self.pairs} pairs"


@dataclass(frozen=True)
class Preset:
    """What the experiments run on. What matters to a result is part of its key in the run store."""

    name: str
    model: str
    pairs: Mapping[str, int]  # to search on, by method; every seed has its own
    held_out: int  # to measure on
    seeds: Mapping[str, int]  # by method; fewer than six decide nothing
    own_seeds: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # of some experiments instead, by method
    parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of the methods
    sizes: Mapping[str, Sequence[int]] = field(default_factory=dict)  # by method, in place of the calibration's
    curves: tuple[str, ...] = ("eap",)  # methods that have the paper's shares too
    measures: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By method without curves: the measures whose primary sizes it has; all of them by default."""
    left_out: Mapping[str, Sequence[str]] = field(default_factory=dict)  # by method: experiments that do without it
    judged_sizes: Mapping[str, Mapping[str, Sequence[int]]] = field(default_factory=dict)
    """By measure and task: the sizes that verdicts are about, chosen by a calibration; without one all of them."""
    primary_sizes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By measure and task: the size nearest to half of the effect; where gates are split it is that of faithfulness."""
    smallest: float = 0.05  # differences up to this do not matter: shares, accuracies, KL as a share of its range
    smallest_cost: float = 0.1  # the same for ratios of times
    floor: float = 0.01  # share of the KL between the runs below which what is removed together has no effect
    repeats: int = 30  # removals for each receiver
    removed_gates: int | None = None  # of each type and seed, in experiments that remove gates; None: all
    removal_pairs: int | None = None  # to measure removals of gates and of single edges on; None: all there are
    sampled_pairs: int = 16  # of the held-out pairs, for the metric of completeness that samples sets of edges
    fitting: Fitting = field(default_factory=Fitting)
    gate_pairs: int = 32  # to find tested gates with, half to search on and half to test on; every seed has its own
    tasks: tuple[str, ...] = ("ioi", "gt", "sa")
    gates_tested_on: tuple[str, ...] | None = None  # tasks with tested gates beside those of the split; None: all
    methods: tuple[str, ...] = ("acdc", "eap", "edge-pruning")
    dtype: str = "float32"
    threads: int = 1  # of each process; searches run in several processes instead
    forget: str = STAND_IN  # what to unlearn: the backup, the dataset PKU-SafeRLHF, or a file
    forget_sizes: tuple[int, ...] = (1, 2, 5, 10, 20, 50)  # edges to remove for unlearning
    costly: float = 0.05  # share of the KL between the runs that an edge costs alone if it is costly
    candidates: int = 100  # edges by Ns and by Dn that may be costly alone, the strongest
    note: str = ""  # what a reader of the results has to know

    def sizes_for(self, method: str, graph: Graph, task: str) -> tuple[int, ...]:
        """Ascending."""
        if task == FORGET:
            return self.forget_sizes
        if self.sizes.get(method):
            return tuple(sorted(set(self.sizes[method])))
        plain = plain_task(task)
        own = self.measures.get(method, MEASURES)
        primary = [self.primary_sizes.get(measure, {}) for measure in own]
        chosen = {sizes[plain] for sizes in primary if plain in sizes}
        shares = _shares(graph)
        if method in self.curves:
            chosen |= shares.union(*(self.judged_sizes.get(measure, {}).get(plain, ()) for measure in MEASURES))
        return tuple(sorted(chosen or shares))

    def measured_sizes(
        self, measure: str, method: str, graph: Graph, task: str, *, judged: bool = False
    ) -> tuple[int, ...]:
        """Those at which a measure is taken: those that verdicts are about, and the paper's shares near them.

        Further away all circuits do nothing, or everything, by the calibration. judged: without the paper's shares.
        """
        sizes, plain = self.sizes_for(method, graph, task), plain_task(task)
        wanted = set(self.judged_sizes.get(measure, {}).get(plain, ()))
        if not wanted:
            return sizes
        wanted.add(self.primary_sizes[measure][plain])
        near = {n for n in _shares(graph) if min(wanted) <= _NEAR * n and n <= _NEAR * max(wanted)}
        return tuple(size for size in sizes if size in (wanted if judged else wanted | near))

    @property
    def tested_tasks(self) -> tuple[str, ...]:
        chosen = self.gates_tested_on
        return tuple(task for task in self.tasks if chosen is None or plain_task(task) in chosen)

    def for_removals(self, pairs: int) -> int:
        """On how many of so many pairs removals are measured."""
        return pairs if self.removal_pairs is None else min(self.removal_pairs, pairs)

    @property
    def pool(self) -> int:
        """Pairs from which all seeds draw theirs, without overlap; not a matter of which methods are run."""
        every = (self.seeds, *self.own_seeds.values())
        most = {m: max(seeds.get(m, 0) for seeds in every) for m in self.pairs}
        most["eap"] = max(most["eap"], 2 * self.seeds_for("stability").get("eap", 0))  # its control has twice the pairs
        return max(self.pairs[m] * most[m] for m in self.pairs)

    @property
    def gate_pool(self) -> int:
        """Pairs beyond those, from which all seeds draw theirs for tested gates."""
        return self.gate_pairs * max(self.seeds_for("tested-gates").values())

    def of(self, experiment: str) -> Preset:
        """For one experiment: without the methods that it does without."""
        some = tuple(one for one in self.methods if experiment not in self.left_out.get(one, ()))
        if not some:
            raise LeftOutError(f"{experiment} does without {', '.join(self.methods)} in the preset {self.name}.")
        return self if some == self.methods else replace(self, methods=some)

    def seeds_for(self, experiment: str) -> Mapping[str, int]:
        """By method."""
        return self.own_seeds.get(experiment, self.seeds)

    def calibrated(self, found: ChosenSizes) -> Preset:
        """With the sizes that a calibration chose."""
        measures = (*MEASURES, REDUNDANCY)
        by_measure = {m: {task: one[m] for task, one in found["tasks"].items() if m in one} for m in measures}
        return replace(
            self,
            judged_sizes={
                m: {task: tuple(one["judged"]) for task, one in some.items()} for m, some in by_measure.items()
            },
            primary_sizes={m: {task: one["primary"] for task, one in some.items()} for m, some in by_measure.items()},
        )

    @property
    def needs_calibration(self) -> bool:
        return not self.sizes and not self.primary_sizes

    def as_committed(self) -> Preset:
        """With the sizes that were chosen for its model beforehand, if it has none and there are any."""
        found = committed(self.model) if self.needs_calibration else None
        return self if found is None else self.calibrated(found)

    def changed(self, **changes: Any) -> Preset:
        """With some fields replaced; a number for a field by method counts for all methods, one of seeds for all.

        Another model, or other sizes, have nothing to do with what was chosen for those of the preset.
        """
        if changes.keys() & {"model", "sizes"}:
            changes = {"judged_sizes": {}, "primary_sizes": {}, **changes}
        if isinstance(changes.get("seeds"), int):
            changes.setdefault("own_seeds", {})
        for name, value in changes.items():
            if name in ("pairs", "seeds") and isinstance(value, int):
                if value < 1:
                    raise GatewiseError(f"{name} is {value}; expected 1 or more.")
                changes[name] = dict.fromkeys(self.pairs, value)
            if name == "sizes" and not isinstance(value, Mapping):
                changes[name] = dict.fromkeys(self.pairs, tuple(value))
        found = replace(self, **changes).as_committed()
        unknown = set(changes.get("gates_tested_on") or ()) - set(map(plain_task, found.tasks))
        if unknown:
            raise GatewiseError(
                f"gates are to be tested on {', '.join(sorted(unknown))}; the tasks are {', '.join(found.tasks)}."
            )
        return found


def _each(acdc: Any, eap: Any, edge_pruning: Any) -> dict[str, Any]:
    return {"acdc": acdc, "eap": eap, "edge-pruning": edge_pruning}


QUICK = Preset(
    name="quick",
    model="tiny",
    pairs=_each(8, 16, 8),
    held_out=64,
    sampled_pairs=8,
    fitting=Fitting(pairs=8, sets=10),
    gate_pairs=64,  # on single pairs tiny is less sure than larger models
    seeds=_each(6, 20, 6),
    own_seeds={
        "misalignment": _each(1, 6, 1),  # what samples many sets of edges takes long
        "completeness-metrics": _each(6, 6, 6),
        "gate-ablation": _each(6, 6, 6),
        "tested-gates": _each(6, 6, 6),  # in all experiments that have them
        "cost": _each(6, 6, 1),  # Edge Pruning has to train again for it
    },
    parameters={"edge-pruning": {"steps": 300}},
).as_committed()
_LAPTOP: dict[str, Any] = {
    "pairs": _each(8, 16, 8),
    "held_out": 32,
    "sampled_pairs": 8,
    "fitting": Fitting((0.6, 0.8, 1.0, 1.2, 1.4), pairs=4, sets=4, draws=4),
    # A circuit has hundreds of gates, and a removal takes up to 0.03 s for each pair.
    "repeats": 4,
    "removed_gates": 20,
    "removal_pairs": 8,
    "forget_sizes": (1, 5, 20, 50, 100, 200),
    # Circuits of hundreds of edges take ACDC many minutes each: so it has the few edges of completeness, and no gates.
    # Edge Pruning trains for a circuit that does the task: three edges do nothing, so it has the sizes of faithfulness.
    "measures": {"acdc": ("completeness",), "edge-pruning": ("faithfulness",)},
    "left_out": {
        "acdc": (
            "gate-ablation",
            "faithfulness",
            "completeness-metrics",
            "misalignment",
            "graph-study",
            "contribution",
            "proportion",
        ),
        "edge-pruning": ("completeness", "misalignment", "completeness-metrics", "unlearning"),
    },
    "parameters": {"edge-pruning": {"steps": 300}},
}
_LAPTOP_SEEDS = {
    "gate-ablation": _each(1, 6, 6),
    "tested-gates": _each(6, 6, 6),  # in all experiments that have them
    "cost": _each(1, 6, 1),
}
LAPTOP = Preset(
    name="laptop",
    model="gemma3-270m",
    methods=("acdc", "eap"),
    **_LAPTOP,
    seeds=_each(6, 20, 6),
    own_seeds={  # what samples many sets of edges takes long
        **_LAPTOP_SEEDS,
        "misalignment": _each(1, 6, 1),
        "completeness-metrics": _each(1, 6, 1),
    },
    note="Where a method has fewer than six seeds its rows describe and decide nothing. Edge Pruning has pages of its "
    "own, by --methods edge-pruning --out FOLDER: it trains for three minutes, twice for Ns, Dn and Ns+Dn.",
).as_committed()
SMOLLM2 = Preset(
    name="smollm2",
    model="smollm2-135m",
    methods=("eap",),
    **_LAPTOP,
    seeds=_each(3, 20, 1),
    own_seeds={
        **_LAPTOP_SEEDS,
        "unlearning": _each(1, 3, 1),
        "contribution": _each(1, 6, 1),
        "misalignment": _each(1, 6, 1),
        "completeness-metrics": _each(1, 3, 1),
    },
    gates_tested_on=("ioi",),
    note="Gemma-3-270M decides; this model stands beside it, with EAP alone (--methods acdc or edge-pruning runs "
    "those, with few seeds), and with tested gates on IOI alone. What has fewer than six seeds describes and decides "
    "nothing.",
).as_committed()
PAPER = Preset(
    name="paper",
    model="gpt2",
    pairs=_each(32, 64, 64),
    held_out=128,
    sizes=dict.fromkeys(("acdc", "eap", "edge-pruning"), _PAPER_SIZES),
    seeds=_each(6, 20, 6),  # the paper's five could decide nothing
    own_seeds={"stability": _each(30, 30, 30), "misalignment": _each(6, 6, 6), "tested-gates": _each(6, 6, 6)},
    forget=SAFE_RLHF,
    forget_sizes=_PAPER_SIZES,
)
PRESETS = {preset.name: preset for preset in (QUICK, LAPTOP, SMOLLM2, PAPER)}
