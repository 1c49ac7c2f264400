"""How large: presets of the same experiments, and what was decided before looking at any result.

What is declared for all presets alike (which differences are too small to matter, which effects are none) stands in
`claims.py` and `bottlenecks.py`; which sizes circuits have, and why, in `sizes.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from gatewise.errors import GatewiseError
from gatewise_paper.naming import plain_task
from gatewise_paper.size_calibration import MEASURES, ChosenSizes, TaskSizes, committed

PAPER_SIZES = (100, 200, 500, 1_000, 2_000, 5_000)
PAPER_EDGES = 32_491  # of GPT-2 small
FORGET, KEEP = "forget", "keep"  # tasks of the pairs to unlearn, and of some to keep
IOI_TEMPLATE = "ioi-template"  # to be forgotten where nothing harmful is at hand, see unlearning_data.py
SAFE_RLHF = "PKU-Alignment/PKU-SafeRLHF"
DTYPE = "float32"
THREADS = 1  # of each process; searches run in several processes instead


class LeftOutError(GatewiseError):
    """An experiment has nothing to do with the methods that were asked for."""


@dataclass(frozen=True)
class MethodSetup:
    """How a preset runs one method."""

    pairs: int  # to search on; every seed has its own
    seeds: int  # fewer than six decide nothing
    own_seeds: Mapping[str, int] = field(default_factory=dict)  # of single experiments instead
    parameters: Mapping[str, Any] = field(default_factory=dict)  # of the method
    sizes: Sequence[int] = ()  # in place of the calibrated ones
    measures: Sequence[str] = MEASURES  # whose primary sizes it has
    left_out: Sequence[str] = ()  # experiments that do without it

    def seeds_for(self, experiment: str) -> int:
        return self.own_seeds.get(experiment, self.seeds)


class Ablating(NamedTuple):
    """How gates and single edges are removed."""

    repeats: int = 30  # draws of two edges for each gate
    gates: int | None = None  # of each type and seed; None: all
    pairs: int | None = None  # to measure removals on; None: all there are

    def pairs_of(self, available: int) -> int:
        return available if self.pairs is None else min(self.pairs, available)


class Fitting(NamedTuple):
    """How it is measured whether Ns and Dn circuits fit."""

    scales: tuple[float, ...] = (0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4)  # the paper's 60 to 140 for 100
    pairs: int = 16  # of the held-out pairs
    sets: int = 20  # K, for each score
    draws: int = 10  # of two edges, for each K


class Testing(NamedTuple):
    """How gates are found by test, beside those by set difference."""

    pairs: int = 32  # half to search on and half to test on; every seed has its own
    seeds: int = 6
    tasks: tuple[str, ...] | None = None  # None: all of the preset


class Forgetting(NamedTuple):
    """What is to be unlearned."""

    source: str = IOI_TEMPLATE  # or the dataset PKU-SafeRLHF, or a file
    sizes: tuple[int, ...] = (1, 2, 5, 10, 20, 50)  # edges to remove


@dataclass(frozen=True)
class Preset:
    """What the experiments run on. What matters to a value is part of its key in the run store."""

    name: str
    model: str
    setups: Mapping[str, MethodSetup]  # of all methods
    held_out: int  # pairs to measure on
    methods: tuple[str, ...] = ("acdc", "eap", "edge-pruning")  # that are run
    tasks: tuple[str, ...] = ("ioi", "gt", "sa")
    sampled_pairs: int = 16  # of the held-out pairs, for the metric of completeness that samples sets of edges
    ablating: Ablating = field(default_factory=Ablating)
    fitting: Fitting = field(default_factory=Fitting)
    testing: Testing = field(default_factory=Testing)
    forgetting: Forgetting = field(default_factory=Forgetting)
    calibration: Mapping[str, TaskSizes] = field(default_factory=dict)  # by task, see size_calibration.py
    note: str = ""  # what a reader of the results has to know

    @property
    def tested_tasks(self) -> tuple[str, ...]:
        """Tasks with tested gates."""
        chosen = self.testing.tasks
        return tuple(task for task in self.tasks if chosen is None or plain_task(task) in chosen)

    @property
    def search_pairs(self) -> int:
        """Pairs from which all seeds draw theirs, without overlap; not a matter of which methods are run."""
        counts = []
        for method, setup in self.setups.items():
            seeds = max(setup.seeds, *setup.own_seeds.values(), self.testing.seeds)
            if method == "eap":  # its control has twice the pairs
                seeds = max(seeds, 2 * setup.seeds_for("stability"))
            counts.append(setup.pairs * seeds)
        return max(counts)

    def of(self, experiment: str) -> Preset:
        """For one experiment: without the methods that it does without."""
        methods = tuple(name for name in self.methods if experiment not in self.setups[name].left_out)
        if not methods:
            raise LeftOutError(f"{experiment} does without {', '.join(self.methods)} in the preset {self.name}.")
        return replace(self, methods=methods)

    def seeds_for(self, experiment: str = "", methods: Sequence[str] | None = None) -> dict[str, int]:
        """By method."""
        return {name: self.setups[name].seeds_for(experiment) for name in methods or self.methods}

    @property
    def needs_calibration(self) -> bool:
        return not self.calibration and not any(setup.sizes for setup in self.setups.values())

    def calibrated(self, chosen: ChosenSizes) -> Preset:
        """With the sizes that a calibration chose."""
        return replace(self, calibration=chosen["tasks"])

    def as_committed(self) -> Preset:
        """With the sizes that were chosen for its model beforehand, if it has none and there are any."""
        chosen = committed(self.model) if self.needs_calibration else None
        return self if chosen is None else self.calibrated(chosen)

    def changed(
        self,
        *,
        pairs: int | None = None,
        seeds: int | None = None,
        sizes: Sequence[int] | None = None,
        parameters: Mapping[str, Mapping[str, Any]] | None = None,
        tested_tasks: tuple[str, ...] | None = None,
        **fields: Any,
    ) -> Preset:
        """With other numbers for all methods, other parameters by method, and other fields.

        Seeds are then those of all experiments. Another model, or other sizes, have nothing to do with what was
        chosen for those of the preset.
        """
        for name, number in (("pairs", pairs), ("seeds", seeds)):
            if number is not None and number < 1:
                raise GatewiseError(f"{name} is {number}; expected 1 or more.")
        testing = fields.get("testing", self.testing if seeds is None else self.testing._replace(seeds=seeds))
        fields["testing"] = testing if tested_tasks is None else testing._replace(tasks=tested_tasks)
        setups = fields.get("setups", self.setups)
        numbers: dict[str, Any] = {} if pairs is None else {"pairs": pairs}
        if seeds is not None:
            numbers |= {"seeds": seeds, "own_seeds": {}}
        if sizes is not None:
            numbers["sizes"] = tuple(sizes)
        if sizes is not None or "model" in fields:
            fields.setdefault("calibration", {})
        fields["setups"] = {
            name: replace(setup, parameters={**setup.parameters, **(parameters or {}).get(name, {})}, **numbers)
            for name, setup in setups.items()
        }
        preset = replace(self, **fields).as_committed()
        unknown = set(preset.testing.tasks or ()) - set(map(plain_task, preset.tasks))
        if tested_tasks and unknown:
            raise GatewiseError(
                f"gates are to be tested on {', '.join(sorted(unknown))}; the tasks are {', '.join(preset.tasks)}."
            )
        return preset


_EAP = MethodSetup(  # what samples or removes many sets of edges takes long
    pairs=16, seeds=20, own_seeds={"misalignment": 6, "completeness-metrics": 6, "gate-ablation": 6, "cost": 6}
)
QUICK = Preset(
    name="quick",
    model="tiny",
    held_out=64,
    setups={
        "acdc": MethodSetup(pairs=8, seeds=6, own_seeds={"misalignment": 1}),
        "eap": _EAP,
        "edge-pruning": MethodSetup(
            pairs=8, seeds=6, own_seeds={"misalignment": 1, "cost": 1}, parameters={"steps": 300}
        ),
    },
    sampled_pairs=8,
    fitting=Fitting(pairs=8, sets=10),
    testing=Testing(pairs=64),  # on single pairs tiny is less sure than larger models
).as_committed()
_GATES_AND_LARGE_CIRCUITS = (
    *("gate-ablation", "graph-study", "contribution", "proportion", "misalignment"),
    *("faithfulness", "completeness-metrics"),
)
_LAPTOP = Preset(
    name="laptop",
    model="gemma3-270m",
    methods=("acdc", "eap"),
    held_out=32,
    setups={
        # Circuits of hundreds of edges take ACDC many minutes each: it has the few edges of completeness, and no gates.
        "acdc": MethodSetup(
            pairs=8, seeds=6, own_seeds={"cost": 1}, measures=("completeness",), left_out=_GATES_AND_LARGE_CIRCUITS
        ),
        "eap": _EAP,
        # Edge Pruning trains for a circuit that does the task: three edges do nothing, so it has those of faithfulness.
        "edge-pruning": MethodSetup(
            pairs=8,
            seeds=6,
            own_seeds={"cost": 1},
            parameters={"steps": 300},
            measures=("faithfulness",),
            left_out=("completeness", "misalignment", "completeness-metrics", "unlearning"),
        ),
    },
    sampled_pairs=8,
    fitting=Fitting((0.6, 0.8, 1.0, 1.2, 1.4), pairs=4, sets=4, draws=4),
    ablating=Ablating(repeats=4, gates=20, pairs=8),  # a removal takes up to 0.03 s for each pair
    forgetting=Forgetting(sizes=(1, 5, 20, 50, 100, 200)),
    note="Where a method has fewer than six seeds its rows describe and decide nothing. Edge Pruning has pages of its "
    "own, by --methods edge-pruning --out FOLDER: it trains for three minutes, twice for Ns, Dn and Ns+Dn.",
)
LAPTOP = _LAPTOP.as_committed()
_FEWER = {  # seeds of SmolLM2, by method: of everything, of single experiments
    "acdc": (3, {"unlearning": 1}),
    "eap": (20, {"unlearning": 3, "contribution": 6, "completeness-metrics": 3}),
    "edge-pruning": (1, {"gate-ablation": 6}),
}
SMOLLM2 = replace(
    _LAPTOP,
    name="smollm2",
    model="smollm2-135m",
    methods=("eap",),
    setups={
        name: replace(setup, seeds=_FEWER[name][0], own_seeds={**setup.own_seeds, **_FEWER[name][1]})
        for name, setup in _LAPTOP.setups.items()
    },
    testing=Testing(tasks=("ioi",)),
    note="Gemma-3-270M is the primary model; this one has EAP alone (--methods acdc or edge-pruning runs "
    "those, with few seeds), and with tested gates on IOI alone. What has fewer than six seeds describes and decides "
    "nothing.",
).as_committed()
PAPER = Preset(
    name="paper",
    model="gpt2",
    held_out=128,
    setups={  # the paper's five seeds could decide nothing
        "acdc": MethodSetup(pairs=32, seeds=6, own_seeds={"stability": 30}, sizes=PAPER_SIZES),
        "eap": MethodSetup(pairs=64, seeds=20, own_seeds={"stability": 30, "misalignment": 6}, sizes=PAPER_SIZES),
        "edge-pruning": MethodSetup(pairs=64, seeds=6, own_seeds={"stability": 30}, sizes=PAPER_SIZES),
    },
    forgetting=Forgetting(SAFE_RLHF, PAPER_SIZES),
)
PRESETS = {preset.name: preset for preset in (QUICK, LAPTOP, SMOLLM2, PAPER)}


def find_preset(name: str) -> Preset:
    if name not in PRESETS:
        raise GatewiseError(f"there is no preset {name!r}; there are {', '.join(PRESETS)}.")
    return PRESETS[name]
