"""ACDC: greedy search from the output back, exact, on the incremental engine.

An edge is removed if D(H without it) - D(H) < tau (signed, strict), D = KL(reference || circuit), or the mean distance
of another metric from the reference's. With `ns+dn` there
is one H, judged by the sum of both directions' changes (`combine="sum"`, the paper) or by each (`"either"`). Receivers
come from the output back, node by node; the senders of a port are permuted by the seed.

Most candidates are removed, so a *chain* H\\e1, H\\e1e2, ... is evaluated at once and accepted up to the first edge
that has to stay: the result is the sequential one. Values closer to tau than `BAND` could depend on how the work was
cut up; those are decided by one canonical evaluation with the dense engine, on the same batches however the rest is
cut. (With a tau below 4e-4 the band is 5 % of tau. Below 1e-5 float32 is too coarse for any search: use float64.)

Searches with several taus share their beginning: one starts at the sublayer in which it first could decide otherwise
than an earlier one did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gatewise.circuits.graph import Graph
from gatewise.circuits.selection import select_edges
from gatewise.engine.forward.dense import DenseEngine
from gatewise.engine.metrics import Deviation
from gatewise.engine.patching.incremental import ROW_BYTES, Proposal, State
from gatewise.engine.patching.kl_screening import Divergence
from gatewise.engine.patching.low_rank_unembedding import UnembeddingBases, UnembeddingBasis
from gatewise.engine.patching.propagation import DEAD, Route, all_liveness, liveness
from gatewise.engine.runs.activations import Direction, both_runs
from gatewise.engine.runs.batches import bytes_per_example, check_free_memory, window_of
from gatewise.engine.runs.counting import Counter
from gatewise.engine.setting import Batch
from gatewise.errors import GatewiseError
from gatewise.methods.acdc._state import Outcome, Progress, load_state, save_state
from gatewise.methods.acdc._threshold import enough
from gatewise.methods.base import Finding, Method, Problem, SearchDirection, Work, kl_price
from gatewise.methods.configs import OFFERED, AcdcConfig
from gatewise.progress import progress_bar
from gatewise.tasks.pairs import Pairs

Distances = Divergence | Deviation
BAND = {torch.float32: 2e-5, torch.float64: 1e-10}  # around tau, in nats, at most; wider for other dtypes
_BAND_SHARE = 0.05  # of tau: below, float noise of the canonical evaluation itself would decide, at a high price
_WIDEST_BAND = 1e-3
_WANTED_BOUND = 0.25  # share of tau that bounds on D may have
_FIRST_CHAIN = 8  # length of a sublayer's first chain
_TINY = 1e-6  # nats, of runs that hardly differ
_CANONICAL_BATCH = 8  # examples; no parameter: canonical values must not depend on how a search was cut up
_TYPICAL_THRESHOLDS = 4  # tried for a number of edges, about
_TYPICAL_EDGES = 100  # kept by one threshold, about
_LEAST_F = 3.0  # both runs and a canonical evaluation


def receiver_order(graph: Graph) -> list[int]:
    """Ports in the order of the search: from the output back, node by node."""
    nodes = [graph.ports_of_sender[sender] for sender in reversed(range(len(graph.senders)))]
    return [len(graph.ports) - 1, *(port for ports in nodes for port in reversed(ports))]


def sender_order(graph: Graph, port: int, seed: int) -> list[int]:
    """The senders of a port in the order of the search, permuted by the seed."""
    reads = graph.sublayers[graph.sublayer_of_port[port]].reads
    generator = torch.Generator().manual_seed(seed * 1_000_003 + port)
    return torch.randperm(reads, generator=generator).tolist()


class _Side:
    """One direction of a search: the states of all batches, and their distance from the reference."""

    def __init__(self, acdc: Acdc, direction: Direction, kept: Tensor, spans: UnembeddingBases) -> None:
        self._spans = spans
        self._span: UnembeddingBasis | None = None  # what candidates of the node at hand change the last residual in
        self.states = []
        self.divergences = []
        for batch, run in acdc.runs:
            reference = run.reference(direction)
            self.states.append(State(acdc.model, run.intervention(acdc.model, direction), reference.outputs, kept))
            self.divergences.append(acdc.distance(reference.logits, batch.pairs))
        self._examples = len(acdc.problem.pairs)
        self.now, self.bound = 0.0, 0.0  # D of the current circuit, and how much larger it may be
        self._routes: list[Route | None] = []
        self._proposals: list[Proposal] = []

    def _mean(self, parts: Sequence[Tensor]) -> Tensor:
        """Mean over all examples. parts: [row, example] each -> [row]"""
        total: Tensor = torch.stack([part.sum(dim=-1) for part in parts]).sum(dim=0) / self._examples
        return total.cpu()

    def settle(self) -> None:
        """Measure the current D exactly."""
        values = [d.exact(s.last[None]) for s, d in zip(self.states, self.divergences, strict=True)]
        self.now, self.bound = float(self._mean(values)[0]), 0.0

    def rebuild(self, kept: Tensor, live: Sequence[int], first_sublayer: int, spans: UnembeddingBases) -> None:
        """Begin a sublayer with values that depend on what is kept alone, not on how the search got there."""
        for state in self.states:
            state.rebuild(kept, live, first_sublayer)
        self._spans = spans
        graph = self.states[0].graph
        ports, reads = graph.port_slices[first_sublayer - 1], graph.sublayers[first_sublayer - 1].reads
        for divergence in self.divergences:
            divergence.restart((ports.stop - ports.start) * reads)
        self.settle()

    def begin(self, node: int, live: Sequence[int]) -> None:
        """Find the way from a node, or the logits (-1), on which its candidates change things."""
        self._routes = [None if node < 0 else state.route(node, live) for state in self.states]
        self._span = None
        if self._routes[0] is not None and self.divergences[0].screens:
            graph = self.states[0].graph
            ports = graph.ports_of_sender[node]
            candidates = len(ports) * graph.sublayers[graph.sublayer_of_port[ports[0]]].reads
            self._span = self._spans.of(self._routes[0].read_by_logits, candidates, len(self.states[0].last))

    def longest_chain(self) -> int:
        """Rows that fit the memory meant for them."""
        return min(state.rows_at_once(route) for state, route in zip(self.states, self._routes, strict=True))

    def try_chain(self, port: int, senders: Sequence[int], wanted: float) -> tuple[Tensor, Tensor]:
        """D after removing the first, the first two, ... of these senders, and bounds on how much larger it is."""
        self._proposals = []
        found = []
        for state, route, divergence in zip(self.states, self._routes, self.divergences, strict=True):
            proposal = state.propose(route, {port: state.removed(senders, state.positions_read(route, port))})
            self._proposals.append(proposal)
            found.append(divergence.estimate(proposal.residual, wanted, self._span, state.last))
        values = self._mean([value for value, _ in found])
        if not bool(torch.isfinite(values).all()):
            raise GatewiseError(
                f"removing edges into {self.states[0].graph.ports[port]} gives NaN or infinity. "
                f"Load the model with dtype='float32' or 'float64'."
            )
        return values, self._mean([bound for _, bound in found])

    def exact(self, rows: Sequence[int]) -> list[float]:
        """D of rows of the last chain, with the whole vocabulary; row -1 is the current circuit."""
        values = []
        for state, proposal, divergence in zip(self.states, self._proposals, self.divergences, strict=True):
            residuals = [state.last if row < 0 else proposal.residual[row] for row in rows]
            values.append(divergence.exact(torch.stack(residuals)))
        return self._mean(values).tolist()

    def accept(self, port: int, senders: Sequence[int], value: float, bound: float) -> None:
        """Remove these first senders of the last chain."""
        for state, proposal in zip(self.states, self._proposals, strict=True):
            state.accept(proposal, len(senders) - 1, {port: senders})
        self.now, self.bound = value, bound


class _Canonical:
    """D by the dense engine, on batches that are always the same: depends on the circuit and the pairs alone."""

    def __init__(self, acdc: Acdc) -> None:
        self._acdc, self._model, self._directions = acdc, acdc.model, acdc.directions
        self._engines: list[tuple[Direction, DenseEngine, Distances]] = []

    def change(self, kept: Tensor, port: int, sender: int) -> list[float]:
        """D(H without the edge) - D(H) for each direction."""
        setting = self._acdc.problem.setting
        if not self._engines:
            for first in range(0, len(setting), _CANONICAL_BATCH):
                some = Batch(first, setting.pairs[first : first + _CANONICAL_BATCH])
                runs = setting.runs(some, keep=False)
                for direction in self._directions:
                    engine = DenseEngine(self._model, runs.intervention(self._model, direction))
                    divergence = self._acdc.distance(runs.reference(direction).logits, some.pairs)
                    self._engines.append((direction, engine, divergence))
        without = kept.clone()
        without[port, sender] = False
        totals = dict.fromkeys(self._directions, 0.0)
        for direction, engine, divergence in self._engines:
            masks = (mask.to(self._model.device, self._model.dtype) for mask in (kept, without))
            before, after = divergence.exact(torch.stack([engine.residual(mask) for mask in masks])).sum(dim=-1)
            totals[direction] += float(after - before) / len(setting)
        return [totals[direction] for direction in self._directions]


class Acdc:
    """Greedy searches on one set of pairs, for several thresholds."""

    def __init__(self, problem: Problem, config: AcdcConfig) -> None:
        self.problem, self.config = problem, config
        self.model, self.graph = problem.model, problem.model.graph
        self.directions = problem.runs
        self._check_memory()
        self._widest_band = BAND.get(self.model.dtype, _WIDEST_BAND)
        self.runs = [(batch, problem.setting.runs(batch)) for batch in self._batches()]
        self.canonical = _Canonical(self)

    def distance(self, reference_logits: Tensor, pairs: Pairs) -> Distances:
        """How far residuals of these pairs are from the reference."""
        metric = self.problem.setting.metric
        if metric is None or metric.function is None:
            return Divergence(self.model, reference_logits)
        return Deviation(self.model, reference_logits, pairs, metric)

    def first_threshold(self, size: int) -> float:
        """The tau at which so many edges would do the same, all together what the runs differ by."""
        if self.config.first_threshold is not None:
            return self.config.first_threshold
        return max(self._distance_of_runs(), _TINY) / (size if size < self.graph.n_edges else min(_TYPICAL_EDGES, size))

    def _distance_of_runs(self) -> float:
        """D of the empty circuit, in two digits: the same however the pairs are cut into batches."""
        total = 0.0
        for batch, runs in self.runs:
            for direction in self.directions:
                reference = runs.reference(direction)
                other = runs.corrupted if reference is runs.clean else runs.clean
                distance = self.distance(reference.logits, batch.pairs)
                total += float(distance.exact(other.outputs[:, :, -1].sum(dim=0)).sum())
        return float(f"{total / len(self.problem.pairs):.2g}")

    def _check_memory(self) -> None:
        """All examples' states stay in memory: both runs, and each direction's outputs, inputs, queries and keys."""
        pairs, buffers = self.problem.pairs, 2 + 2 * len(self.directions)
        window = window_of(pairs) if self.problem.setting.ablation == "patching" else pairs.width
        needed = len(pairs) * bytes_per_example(self.model, window, buffers=buffers) + ROW_BYTES
        check_free_memory(self.model, needed, f"ACDC with {len(pairs)} examples on {self.model.name}")

    def _batches(self) -> list[Batch]:
        pairs, size = self.problem.pairs, self.config.batch
        if size is None:
            return self.problem.setting.batches()
        return [Batch(start, pairs[start : start + size]) for start in range(0, len(pairs), size)]

    def search(
        self,
        threshold: float,
        advance: Callable[[int], None] = lambda edges: None,
        save: Callable[[Progress], None] = lambda progress: None,
        start: Progress | None = None,
        expected: Tensor | None = None,
    ) -> Outcome:
        """Run the greedy search for one tau, or the rest of it. `save` is called where a sublayer begins.

        expected: [edge], what may well be kept. It says where to end chains: it changes the speed, not the result.
        """
        return _Search(self, threshold, advance, save, expected).run(start)

    def shared_start(self, threshold: float, done: Iterable[Outcome]) -> Progress | None:
        """Where a search with this tau may begin, after what it decides as one of the searches before it did.

        All decisions up to there are the same, so the circuit is: what follows depends on nothing else.
        """
        places = [(self._first_doubt(threshold, outcome), outcome) for outcome in done]
        place, outcome = max(places, key=lambda one: one[0], default=(0, None))
        if outcome is None or place == 0:
            return None
        decided = torch.zeros(len(self.graph.ports), dtype=torch.bool)
        decided[receiver_order(self.graph)[:place]] = True
        decided = decided[self.graph.edge_port]
        kept = outcome.kept | ~decided
        reached = self.graph.sublayer_of_port[receiver_order(self.graph)[place]]
        live = all_liveness(self.model, self.graph.matrix(kept))
        known = (one if self.graph.sublayer_of_sender[i] > reached else DEAD for i, one in enumerate(live))
        return Progress(threshold, place, kept, outcome.effects * decided, tuple(known), 0, 0)

    def _first_doubt(self, threshold: float, outcome: Outcome) -> int:
        """The place in the order of receivers where the sublayer begins in which another tau might decide otherwise."""
        beyond = torch.where(outcome.kept, outcome.effects - threshold, threshold - outcome.effects)
        doubtful = set(self.graph.edge_port[beyond <= self.band(threshold)].tolist())
        order = receiver_order(self.graph)
        place = next((i for i, port in enumerate(order) if port in doubtful), len(order) - 1)
        sublayer = self.graph.sublayer_of_port[order[place]]
        return next(i for i, port in enumerate(order) if self.graph.sublayer_of_port[port] == sublayer)

    def band(self, threshold: float) -> float:
        """How close to tau a change has to be for the canonical evaluation."""
        return min(self._widest_band, _BAND_SHARE * threshold)

    def removable(self, changes: Sequence[float], threshold: float) -> float:
        """How far below tau the combined change is: positive means removable."""
        return threshold - (sum(changes) if self.config.combine == "sum" else max(changes))


class _Search:
    """One greedy search: what is kept so far, and what was measured."""

    def __init__(
        self,
        acdc: Acdc,
        threshold: float,
        advance: Callable[[int], None],
        save: Callable[[Progress], None],
        expected: Tensor | None,
    ) -> None:
        self.acdc, self.threshold, self.advance, self.save = acdc, threshold, advance, save
        self.graph = acdc.graph
        self.expected = None if expected is None else self.graph.matrix(expected)  # [port, sender]
        self.kept = self.graph.edge_index >= 0  # [port, sender]
        self.effects = torch.zeros(self.graph.n_edges, dtype=torch.float64)
        self.live = [DEAD] * len(self.graph.senders)
        spans = UnembeddingBases(acdc.model)
        self.sides = [_Side(acdc, direction, self.kept, spans) for direction in acdc.directions]
        self.trials = self.canonical = 0
        self.length = _FIRST_CHAIN  # of the next chain

    def run(self, start: Progress | None = None) -> Outcome:
        order, first = receiver_order(self.graph), 0
        if start is not None:
            first = start.place
            self.kept = self.graph.matrix(start.kept)
            self.effects, self.live = start.effects.clone(), list(start.live)
            self.trials, self.canonical = start.trials, start.canonical
            self.advance(sum(self.graph.sublayers[self.graph.sublayer_of_port[port]].reads for port in order[:first]))
        sublayer, node = -1, -2
        for place, port in enumerate(order[first:], first):
            receiver = self.graph.port_sender[port]
            if receiver >= 0 and receiver != node:
                self.live[receiver] = liveness(self.acdc.model, self.kept, receiver, self.live)
            senders = sender_order(self.graph, port, self.acdc.problem.seed)
            if receiver >= 0 and self.live[receiver] == DEAD:
                self.kept[port] = False
                self.advance(len(senders))
                continue
            if self.graph.sublayer_of_port[port] != sublayer:
                sublayer = self.graph.sublayer_of_port[port]
                if start is None or place > first:
                    self._save(place)
                self._begin(sublayer)
            if receiver != node:
                node = receiver
                for side in self.sides:
                    side.begin(node, self.live)
            self._port(port, senders)
        for side in self.sides:
            side.settle()
        return Outcome(
            self.threshold,
            self.graph.vector(self.kept),
            self.effects,
            self.trials,
            self.canonical,
            tuple(side.now for side in self.sides),
        )

    def _save(self, place: int) -> None:
        kept, live = self.graph.vector(self.kept), tuple(self.live)
        self.save(Progress(self.threshold, place, kept, self.effects, live, self.trials, self.canonical))

    def _begin(self, sublayer: int) -> None:
        """Begin a sublayer, in the same way after an interruption as without one."""
        self.length = _FIRST_CHAIN
        spans = UnembeddingBases(self.acdc.model)
        for side in self.sides:
            side.rebuild(self.kept, self.live, sublayer + 1, spans)

    def _port(self, port: int, senders: list[int]) -> None:
        """Decide all edges into one port."""
        longest = min(self.acdc.config.chain, *(side.longest_chain() for side in self.sides))
        while senders:
            chain = self._until_expected(port, senders[: min(self.length, longest)])
            removed, stopped = self._chain(port, chain)
            decided = removed + (1 if stopped else 0)
            senders = senders[decided:]
            self.advance(decided)
            unforeseen = stopped and (self.expected is None or not self.expected[port, chain[removed]])
            self.length = max(2, removed + 1) if unforeseen else min(2 * self.length, max(longest, self.length))

    def _until_expected(self, port: int, senders: list[int]) -> list[int]:
        """These senders, up to the first one whose edge may well stay."""
        if self.expected is None:
            return senders
        stays = self.expected[port, senders].nonzero().flatten().tolist()
        return senders[: stays[0] + 1] if stays else senders

    def _chain(self, port: int, chain: list[int]) -> tuple[int, bool]:
        """Remove the longest run of removable edges; say how many, and whether the next one has to stay."""
        tried = [side.try_chain(port, chain, _WANTED_BOUND * self.threshold) for side in self.sides]
        values = [[side.now, *value.tolist()] for side, (value, _) in zip(self.sides, tried, strict=True)]
        bounds = [[side.bound, *bound.tolist()] for side, (_, bound) in zip(self.sides, tried, strict=True)]
        removed, stopped = 0, False
        for row, sender in enumerate(chain):
            self.trials += 1
            if not self._decide(port, sender, row, chain[:row], values, bounds):
                stopped = True
                break
            removed += 1
        if removed:
            for side, value, bound in zip(self.sides, values, bounds, strict=True):
                side.accept(port, chain[:removed], value[removed], bound[removed])
            self.kept[port, chain[:removed]] = False
            if any(side.bound > _WANTED_BOUND * self.threshold for side in self.sides):
                for side in self.sides:
                    side.settle()
        return removed, stopped

    def _decide(
        self,
        port: int,
        sender: int,
        row: int,
        gone: list[int],
        values: list[list[float]],
        bounds: list[list[float]],
    ) -> bool:
        """Whether this edge of a chain is removed. Values and bounds have the current circuit before row 0.

        The change is at most value + bound after, minus value before: if that is below tau, nothing is left to ask.
        """
        acdc, band = self.acdc, self.acdc.band(self.threshold)
        at = row + 1
        most = [v[at] + b[at] - v[row] for v, b in zip(values, bounds, strict=True)]
        if acdc.removable(most, self.threshold) <= band:  # it may stay, and then its effect may rank it: measure
            self._make_exact(row, values, bounds)
            most = [v[at] - v[row] for v in values]
        logit_diff = acdc.removable(most, self.threshold)
        if abs(logit_diff) <= band:
            self.canonical += 1
            circuit = self.kept.clone()
            circuit[port, gone] = False
            logit_diff = acdc.removable(acdc.canonical.change(circuit, port, sender), self.threshold)
        self.effects[int(self.graph.edge_index[port, sender])] = self.threshold - logit_diff
        return logit_diff > 0

    def _make_exact(self, row: int, values: list[list[float]], bounds: list[list[float]]) -> None:
        """Unembed the two rows wholly that a decision needs, and with them all later ones that will need it too."""
        for side, value, bound in zip(self.sides, values, bounds, strict=True):
            loose = [at for at in range(row + 2, len(bound)) if bound[at] > 0.25 * self.threshold]
            places = [at for at in (row, row + 1, *loose) if bound[at] > 0]
            for at, exact in zip(places, side.exact([at - 1 for at in places]) if places else (), strict=True):
                value[at], bound[at] = exact, 0.0


def _search(problem: Problem, config: AcdcConfig) -> dict[SearchDirection, list[Finding]]:
    """Of one direction: directions share nothing."""
    (direction,) = problem.directions
    acdc = Acdc(problem, config)
    known: dict[float, Outcome] = {}
    earlier, interrupted = load_state(problem.checkpoint)  # asked for again in the same order

    def run(threshold: float) -> Outcome:
        if threshold not in known:
            known[threshold] = earlier[threshold] if threshold in earlier else search(threshold)
        return known[threshold]

    def search(threshold: float) -> Outcome:
        done = list(known.values())
        resumed = interrupted is not None and interrupted.threshold == threshold
        start = interrupted if resumed else acdc.shared_start(threshold, done)
        nearest = min(done, key=lambda one: abs(one.threshold - threshold), default=None)
        expected = None if nearest is None else nearest.kept
        with progress_bar(f"ACDC, tau {threshold:.3g}, run {len(known) + 1}", acdc.graph.n_edges) as bar:
            save = partial(save_state, problem.checkpoint, done)
            return acdc.search(threshold, bar.advance, save, start, expected)

    if problem.threshold is not None:
        outcome = run(problem.threshold)
        return {direction: [Finding(outcome.kept, outcome.effects, notes_of(outcome, 1))]}
    findings = {}
    for size in sorted(set(problem.sizes[direction])):  # few edges are found soon, and say where more are
        if not known:
            run(acdc.first_threshold(size))
        every = size == acdc.graph.n_edges  # then edges are ranked, by any tau
        outcome = next(iter(known.values())) if every else enough(size, known, run, config)
        findings[size] = _exactly(problem, size, outcome, len(known))
    return {direction: [findings[size] for size in problem.sizes[direction]]}


def _exactly(problem: Problem, size: int, outcome: Outcome, runs: int) -> Finding:
    """Settle the remainder: of the kept edges those with the largest effect, then removed ones if too few."""
    strength = torch.where(outcome.kept, outcome.effects + 1e6, outcome.effects)
    mask = select_edges(problem.graph, strength, size, problem.select)
    return Finding(mask, outcome.effects, notes_of(outcome, runs))


def notes_of(outcome: Outcome, runs: int) -> dict[str, Any]:
    """What a finding tells of its search. runs: thresholds tried so far"""
    return {
        "tau": outcome.threshold,
        "kept_at_tau": int(outcome.kept.sum()),
        "runs": runs,
        "trials": outcome.trials,
        "canonical_evaluations": outcome.canonical,
        "divergence": list(outcome.divergence),
    }


def _forecast(problem: Problem, config: AcdcConfig) -> Work:
    """The states of all examples; inputs of ports that no longer read what all others read; a chain.

    How much work there is depends on what is found. A rule of thumb: a threshold costs more if it keeps more edges;
    with 100 of them a trial runs about one node, which is one F for as many edges as the model has nodes.
    """
    model, directions = problem.model, problem.runs
    kept = model.graph.edge_index >= 0
    with Counter() as counter, torch.no_grad():
        runs = both_runs(model, problem.pairs)
        states = [State(model, runs.intervention(model, d), runs.reference(d).outputs, kept) for d in directions]
        one = states[0].shared[0]
    stream = one.numel() * one.element_size()
    inputs = len(directions) * len(model.graph.ports) * stream // 2  # of about half of the ports
    chain = 4 * min(config.chain, len(model.graph.senders)) * stream
    sizes = [size for some in problem.sizes.values() for size in some]
    thresholds = _TYPICAL_THRESHOLDS * max(sizes) / _TYPICAL_EDGES if sizes else 1
    return Work(
        runs=counter.peak + inputs,
        buffers=min(ROW_BYTES, chain) * len(directions),
        operations=counter.operations,
        moved=counter.moved,
        micro_batch=len(problem.pairs),
        micro_batches=1,
        rough_f=len(directions) * (_LEAST_F + model.graph.n_edges / len(model.graph.senders) * thresholds),
    )


ACDC = Method(
    **vars(OFFERED["acdc"]),
    search=_search,
    version="2",
    for_share=lambda setting, direction, share: {"threshold": kl_price(setting, direction, share)},
    forecast=_forecast,
)
