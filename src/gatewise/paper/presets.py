"""How large: three presets of the same experiments, and what was decided before looking at any result.

Sizes are shares of the graph that the paper's 100 to 5,000 edges are of GPT-2's 32,491 (0.3 to 15 %), but for
SmolLM2, whose circuits are complete with far fewer edges: there they are numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gatewise.circuits.graph import Graph
from gatewise.errors import GatewiseError

_PAPER_SIZES = (100, 200, 500, 1_000, 2_000, 5_000)
_PAPER_EDGES = 32_491
STAND_IN = "stand-in"
SAFE_RLHF = "PKU-Alignment/PKU-SafeRLHF"
FORGET = "forget"  # the task of the pairs to unlearn


@dataclass(frozen=True)
class Preset:
    """What the experiments run on. What matters to a result is part of its key in the run store."""

    name: str
    model: str
    pairs: Mapping[str, int]  # to search on, by method; every seed has its own
    held_out: int  # to measure on
    sizes: Mapping[str, Sequence[int]]  # by method; empty: the paper's shares of the graph, and `small_sizes`
    seeds: Mapping[str, int]  # by method; fewer than six decide nothing
    own_seeds: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # of some experiments instead, by method
    parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of the methods
    small_sizes: tuple[int, ...] = ()  # below the paper's shares, where those already break the behaviour wholly

    judged_sizes: Mapping[str, Mapping[str, Sequence[int]]] = field(default_factory=dict)
    """By experiment and task: the sizes that verdicts are about, chosen by a calibration; none: all of them."""
    smallest: float = 0.05  # differences up to this do not matter: shares, accuracies, KL as a share of its range
    smallest_cost: float = 0.1  # the same for ratios of times
    floor: float = 0.01  # share of the KL between the runs below which what is removed together has no effect
    repeats: int = 30  # removals for each receiver
    sampled_pairs: int = 16  # of the held-out pairs, for measures that sample many sets of edges
    sampled_sets: int = 20  # sets K for a misalignment score
    gate_pairs: int = 32  # to find tested gates with, half to search on and half to test on; every seed has its own
    tasks: tuple[str, ...] = ("ioi", "gt", "sa")
    methods: tuple[str, ...] = ("acdc", "eap", "edge-pruning")
    dtype: str = "float32"
    threads: int = 1  # of each process; searches run in several processes instead
    forget: str = STAND_IN  # what to unlearn: the stand-in, the dataset PKU-SafeRLHF, or a file
    few_edges: tuple[int, ...] = (1, 2, 5)  # to remove for unlearning, and the three smallest sizes; empty: all sizes
    note: str = ""  # what a reader of the results has to know

    def sizes_for(self, method: str, graph: Graph, task: str = "") -> tuple[int, ...]:
        """Ascending."""
        if self.sizes.get(method):
            sizes = set(self.sizes[method])
        else:
            shares = (max(2, round(size * graph.n_edges / _PAPER_EDGES)) for size in _PAPER_SIZES)
            sizes = {*self.small_sizes, *shares}
        if task == FORGET and self.few_edges:
            return tuple(sorted({*self.few_edges, *sizes}))[: len(self.few_edges) + 3]
        return tuple(sorted(sizes))

    @property
    def pool(self) -> int:
        """Pairs from which all seeds draw theirs, without overlap; not a matter of which methods are run."""
        every = (self.seeds, *self.own_seeds.values())
        return max(self.pairs[m] * max(seeds.get(m, 0) for seeds in every) for m in self.pairs)

    @property
    def gate_pool(self) -> int:
        """Pairs beyond those, from which all seeds draw theirs for tested gates."""
        return self.gate_pairs * max(self.seeds_for("tested-gates").values())

    def seeds_for(self, experiment: str) -> Mapping[str, int]:
        """By method."""
        return self.own_seeds.get(experiment, self.seeds)

    def changed(self, **changes: Any) -> Preset:
        """With some fields replaced; a number for a field by method counts for all methods, one of seeds for all."""
        if isinstance(changes.get("seeds"), int):
            changes.setdefault("own_seeds", {})
        for name, value in changes.items():
            if name in ("pairs", "seeds") and isinstance(value, int):
                if value < 1:
                    raise GatewiseError(f"{name} is {value}; expected 1 or more.")
                changes[name] = dict.fromkeys(self.pairs, value)
            if name == "sizes" and not isinstance(value, Mapping):
                changes[name] = dict.fromkeys(self.pairs, tuple(value))
        return replace(self, **changes)


def _each(acdc: Any, eap: Any, edge_pruning: Any) -> dict[str, Any]:
    return {"acdc": acdc, "eap": eap, "edge-pruning": edge_pruning}


QUICK = Preset(
    name="quick",
    model="tiny",
    pairs=_each(4, 16, 8),
    held_out=64,
    sizes={},
    small_sizes=(3, 6),  # with 11 edges, the paper's smallest share, removal is already as bad as the corrupted run
    seeds=_each(6, 20, 6),
    own_seeds={
        "stability": _each(10, 30, 6),
        "misalignment": _each(1, 6, 1),  # what samples many sets of edges takes long
        "completeness-metrics": _each(6, 6, 6),
        "gate-ablation": _each(6, 6, 6),
        "tested-gates": _each(6, 6, 6),  # in all experiments that have them
        "cost": _each(6, 6, 1),  # Edge Pruning has to train again for it
    },
    parameters={"acdc": {"tolerance": 3.0}, "edge-pruning": {"steps": 60}},
)
LAPTOP = Preset(
    name="laptop",
    model="smollm2-135m",
    pairs=_each(4, 8, 4),
    held_out=16,
    sizes=_each((20, 100), (5, 20, 50, 100, 200, 500), (20, 50, 100, 200)),
    seeds=_each(1, 3, 1),
    own_seeds={"stability": _each(2, 10, 3), "misalignment": _each(1, 1, 1)},
    parameters={"acdc": {"tolerance": 4.0, "first_threshold": 0.02}, "edge-pruning": {"steps": 60, "rank_all": True}},
    sampled_pairs=4,
    sampled_sets=5,
    note="Edge Pruning trains for 60 steps on 4 pairs here, far too few for a model of this size: over seeds its "
    "Ns circuits are hardly more alike than random ones, and they do hardly more. Its rows show that the experiment "
    "runs, not what the method can do, and verdicts over all methods are to be read with that in mind: "
    "--methods acdc,eap leaves it out, --set edge-pruning.steps=300 gives it time.",
)
PAPER = Preset(
    name="paper",
    model="gpt2",
    pairs=_each(32, 64, 64),
    held_out=128,
    sizes=dict.fromkeys(("acdc", "eap", "edge-pruning"), _PAPER_SIZES),
    seeds=_each(6, 20, 6),  # the paper's five could decide nothing
    own_seeds={"stability": _each(30, 30, 30), "misalignment": _each(6, 6, 6), "tested-gates": _each(6, 6, 6)},
    forget=SAFE_RLHF,
    few_edges=(),
)
PRESETS = {preset.name: preset for preset in (QUICK, LAPTOP, PAPER)}
