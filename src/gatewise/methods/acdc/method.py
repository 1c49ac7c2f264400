"""`Acdc`: the method and its parameters; greedy searches at as many thresholds as a number of edges needs."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.selection import select_edges
from gatewise.engine.patching.incremental import State
from gatewise.engine.runs.activations import both_runs
from gatewise.engine.runs.counting import Counter
from gatewise.engine.setting import Setting
from gatewise.errors import GatewiseError, GatewiseWarning
from gatewise.methods.acdc._checkpoint import Outcome, load_state, save_state
from gatewise.methods.acdc._threshold import nearest_outcome
from gatewise.methods.acdc.search import Searcher, check_memory, float_noise
from gatewise.methods.base import Finding, Method, Problem, SearchDirection, Work, kl_of_share
from gatewise.progress import progress_bar

_TINY = 1e-6  # nats, of runs that hardly differ
_TYPICAL_THRESHOLDS = 4  # tried for a number of edges, about
_TYPICAL_EDGES = 100  # kept by one threshold, about
_LEAST_F = 3.0  # both runs and a canonical evaluation


@dataclass(frozen=True)
class Acdc(Method):
    """ACDC: greedy search, from the output back, that removes every edge whose removal changes the output little.

    Args:
        combine: How ns+dn judges an edge: by the sum of both directions' changes (the paper), or by "either".
        chain: Longest chain of edges that are tried at once; changes the speed, not the result.
        batch: Examples at a time; changes the memory, not the result.
        tolerance: A tau that keeps at most this share more edges than asked for is good enough.
        max_thresholds: Most values of tau to try for a number of edges.
        first_threshold: The first tau to try; None: the distance of the runs over the number of edges.
    """

    name = "acdc"
    title = "ACDC"
    summary = "Greedy search: remove every edge whose removal changes the output by less than tau."
    version = "2"
    threshold_meaning = "tau, the change of KL in nats"

    combine: Literal["sum", "either"] = "sum"
    chain: int = 128
    batch: int | None = None
    tolerance: float = 0.1
    max_thresholds: int = 12
    first_threshold: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chain < 1 or self.max_thresholds < 1 or (self.batch is not None and self.batch < 1):
            raise GatewiseError("chain, batch and max_thresholds are at least 1.")
        if self.first_threshold is not None and not self.first_threshold > 0:
            raise GatewiseError(f"first_threshold is a tau above 0, got {self.first_threshold!r}.")

    def check(self, problem: Problem) -> None:
        """Warn of a tau that the number type cannot tell from 0, before a search that keeps nearly everything."""
        dtype = str(problem.model.dtype).removeprefix("torch.")
        if problem.threshold is not None and problem.threshold < float_noise(dtype):
            warnings.warn(_noise(problem.threshold, dtype), GatewiseWarning, stacklevel=4)

    def doubts(self, circuit: Circuit) -> list[str]:
        """Point out that the tau that was found for a number of edges is below the noise of the number type."""
        record = circuit.provenance
        tau, dtype = record.get("notes", {}).get("tau", 1.0), str(record.get("dtype"))
        sought = record.get("threshold") is None
        return [f"was found with a tau where {_noise(tau, dtype)}"] if sought and tau < float_noise(dtype) else []

    def search(self, problem: Problem) -> dict[SearchDirection, list[Finding]]:
        """Search in one direction: directions share nothing."""
        (direction,) = problem.directions
        searcher = Searcher(problem, combine=self.combine, chain=self.chain, batch=self.batch)
        outcomes: dict[float, Outcome] = {}
        # The same taus are tried in the same order as before an interruption, so saved outcomes are found by their tau.
        earlier, interrupted = load_state(problem.checkpoint)

        def outcome_at(threshold: float) -> Outcome:
            if threshold not in outcomes:
                outcomes[threshold] = earlier.get(threshold) or search_at(threshold)
            return outcomes[threshold]

        def search_at(threshold: float) -> Outcome:
            done = list(outcomes.values())
            resumed = interrupted is not None and interrupted.threshold == threshold
            start = interrupted if resumed else searcher.shared_start(threshold, done)
            nearest = min(done, key=lambda outcome: abs(outcome.threshold - threshold), default=None)
            expected = None if nearest is None else nearest.mask
            with progress_bar(f"ACDC, tau {threshold:.3g}, search {len(done) + 1}", problem.graph.n_edges) as bar:
                save = partial(save_state, problem.checkpoint, done)
                return searcher.search(threshold, bar.advance, save, start, expected)

        if problem.threshold is not None:
            outcome = outcome_at(problem.threshold)
            return {direction: [Finding(outcome.mask, outcome.effects, notes_of(outcome, 1))]}
        findings = {}
        for size in sorted(set(problem.sizes[direction])):  # few edges are found soon, and say where more are
            if not outcomes:
                outcome_at(self._first_threshold(searcher, size))
            if size == problem.graph.n_edges:  # then edges are only ranked, which any tau does
                outcome = next(iter(outcomes.values()))
            else:
                outcome = nearest_outcome(
                    size, outcomes, outcome_at, tolerance=self.tolerance, max_thresholds=self.max_thresholds
                )
            findings[size] = _exactly(problem, size, outcome, len(outcomes))
        return {direction: [findings[size] for size in problem.sizes[direction]]}

    def _first_threshold(self, searcher: Searcher, size: int) -> float:
        """Return the tau at which so many edges, all alike, would together do what the runs differ by."""
        if self.first_threshold is not None:
            return self.first_threshold
        edges = searcher.graph.n_edges
        return max(searcher.distance_of_runs(), _TINY) / (size if size < edges else min(_TYPICAL_EDGES, size))

    def threshold_for(self, setting: Setting, direction: SearchDirection, share: float) -> tuple[Method, float]:
        """Return the KL of an edge that carries this share of the effect."""
        return self, kl_of_share(setting, direction, share)

    def forecast(self, problem: Problem) -> Work:
        """Count the states of all examples, the inputs of ports that read something of their own, and a chain.

        How much work there is depends on what is found. A rule of thumb: a threshold costs more if it keeps more
        edges; with 100 of them a trial runs about one node, which is one F for as many edges as the model has nodes.
        """
        check_memory(problem)
        model, graph, directions = problem.model, problem.graph, problem.single_directions
        with Counter() as counter, torch.no_grad():
            runs = both_runs(model, problem.pairs)
            states = []
            for direction in directions:
                outputs = runs.reference(direction).outputs
                states.append(State(model, runs.intervention(model, direction), outputs, graph.edge_index >= 0))
        stream = states[0].shared[0].nbytes
        inputs = len(directions) * len(graph.ports) * stream // 2  # of about half of the ports
        chain = 4 * min(self.chain, len(graph.senders)) * stream
        largest = max((size for sizes in problem.sizes.values() for size in sizes), default=None)
        thresholds = 1 if largest is None else _TYPICAL_THRESHOLDS * largest / _TYPICAL_EDGES
        return Work(
            runs=counter.peak + inputs,
            buffers=min(problem.setting.row_bytes, chain) * len(directions),
            operations=counter.operations,
            moved=counter.moved,
            micro_batch=len(problem.pairs),
            micro_batches=1,
            rough_f=len(directions) * (_LEAST_F + graph.n_edges / len(graph.senders) * thresholds),
        )


def _noise(tau: float, dtype: str) -> str:
    return (
        f"tau {tau:.2g} is below the noise of sums in {dtype} ({float_noise(dtype):.0e}): which edges stay depends on "
        f"rounding. Use a larger tau, fewer edges, or dtype='float64'."
    )


def _exactly(problem: Problem, size: int, outcome: Outcome, thresholds: int) -> Finding:
    """Choose exactly `size` edges: of the kept ones those with the largest effect, then removed ones if too few."""
    strength = torch.where(outcome.mask, outcome.effects + 1e6, outcome.effects)
    mask = select_edges(problem.graph, strength, size, problem.select)
    return Finding(mask, outcome.effects, notes_of(outcome, thresholds))


def notes_of(outcome: Outcome, thresholds: int) -> dict[str, Any]:
    """Return what a finding tells of its search. thresholds: how many were tried so far"""
    return {
        "tau": outcome.threshold,
        "kept_at_tau": outcome.edges,
        "thresholds_tried": thresholds,
        "trials": outcome.trials,
        "canonical_evaluations": outcome.canonical,
        "divergence": list(outcome.divergence),
    }
