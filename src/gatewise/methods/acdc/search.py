"""ACDC's greedy search: from the output back, exact, on the incremental engine.

An edge is removed if D(H without it) - D(H) < tau (signed, strict), where H is the circuit so far and D is
KL(reference || circuit), or the mean distance of another metric from the reference's. With `ns+dn` there is one H,
judged by the sum of both directions' changes (`combine="sum"`, the paper) or by each (`"either"`). Receivers come from
the output back, node by node; the senders of a port are permuted by the seed.

Most candidates are removed, so a *chain* H\\e1, H\\e1e2, ... is evaluated at once and accepted up to the first edge
that has to stay: the result is the sequential one. Changes closer to tau than the *band* could depend on how the work
was cut up; those are decided by one *canonical evaluation* with the dense engine, on the same batches however the rest
is cut. (With a tau below 4e-4 the band is 5 % of tau. Below 1e-5 float32 is too coarse for any search: use float64.)

Searches with several taus share their beginning: one starts at the sublayer in which it first could decide otherwise
than an earlier one did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from gatewise.circuits.graph import Graph
from gatewise.devices import fetched, on_device
from gatewise.engine.forward.dense import DenseEngine
from gatewise.engine.metrics import Deviation
from gatewise.engine.patching.incremental import Proposal, State
from gatewise.engine.patching.kl_screening import Divergence, screening_bytes
from gatewise.engine.patching.low_rank_unembedding import UnembeddingBases, UnembeddingBasis
from gatewise.engine.patching.propagation import DEAD, Route, all_liveness, liveness
from gatewise.engine.runs.activations import Direction
from gatewise.engine.runs.batches import ROW_BYTES, check_budget, check_free_memory
from gatewise.engine.setting import Batch
from gatewise.errors import GatewiseError
from gatewise.methods.acdc._checkpoint import Outcome, Progress
from gatewise.methods.base import Problem
from gatewise.tasks.pairs import Pairs

Distances = Divergence | Deviation
BAND = {torch.float32: 2e-5, torch.float64: 1e-10}  # around tau, in nats, at most; wider for other dtypes
_BAND_SHARE = 0.05  # of tau: a wider band would have float noise of the canonical evaluation decide, at a high price
_WIDEST_BAND = 1e-3
_WANTED_BOUND = 0.25  # share of tau that bounds on D may have
_FIRST_CHAIN = 8  # length of a sublayer's first chain
_CANONICAL_BATCH = 8  # examples; no parameter: canonical values must not depend on how a search was cut up


def float_noise(dtype: str) -> float:
    """Return the smallest tau, in nats, that decides by more than the rounding of sums in a number type."""
    return {"float64": 1e-11, "float32": 1e-5}.get(dtype, _WIDEST_BAND)


def receiver_order(graph: Graph) -> list[int]:
    """List ports in the order of the search: from the output back, node by node."""
    nodes = [graph.ports_of_sender[sender] for sender in reversed(range(len(graph.senders)))]
    return [len(graph.ports) - 1, *(port for ports in nodes for port in reversed(ports))]


def sender_order(graph: Graph, port: int, seed: int) -> list[int]:
    """List the senders of a port in the order of the search, permuted by the seed."""
    reads = graph.sublayers[graph.sublayer_of_port[port]].reads
    generator = torch.Generator().manual_seed(seed * 1_000_003 + port)
    return torch.randperm(reads, generator=generator).tolist()


def check_memory(problem: Problem) -> None:
    """Refuse what does not fit: of all examples both runs, and each direction's outputs, inputs, queries, keys."""
    setting, model, examples = problem.setting, problem.model, len(problem.pairs)
    directions = len(problem.single_directions)
    needed = setting.needed_bytes(examples, states=directions) + directions * screening_bytes(model, examples)
    needed += min(ROW_BYTES, needed // 3)  # rows take a quarter of the budget, see `Setting.row_bytes`
    what = f"ACDC with {examples} examples of {problem.pairs.width} tokens on {model.name}"
    if setting.has_budget:
        check_budget(needed, setting.memory, what)
    if not model.planned_for:  # a plan says by itself what fits the machine that it is for
        check_free_memory(model, needed, what)


class Searcher:
    """Greedy searches on one set of pairs, for several thresholds."""

    def __init__(self, problem: Problem, *, combine: str = "sum", chain: int = 128, batch: int | None = None) -> None:
        self.problem, self.combine, self.chain = problem, combine, chain
        self.model, self.graph = problem.model, problem.graph
        self.directions = problem.single_directions
        check_memory(problem)
        self.order = receiver_order(self.graph)
        self._widest_band = BAND.get(self.model.dtype, _WIDEST_BAND)
        self.runs = [(part, problem.setting.runs(part)) for part in self._batches(batch)]
        self.canonical = _Canonical(self)

    @property
    def row_bytes(self) -> int:
        """What the rows of a chain may take in each state: all states have theirs at the same time."""
        setting = self.problem.setting
        return setting.row_bytes // (len(self.runs) * len(self.directions)) if setting.has_budget else setting.row_bytes

    def _batches(self, size: int | None) -> list[Batch]:
        pairs = self.problem.pairs
        if size is None:
            return self.problem.setting.batches()
        return [Batch(start, pairs[start : start + size]) for start in range(0, len(pairs), size)]

    def distance(self, reference_logits: Tensor, pairs: Pairs) -> Distances:
        """Return how far residuals of these pairs are from the reference."""
        metric = self.problem.setting.metric
        if metric is None or metric.function is None:
            return Divergence(self.model, reference_logits)
        return Deviation(self.model, reference_logits, pairs, metric)

    def distance_of_runs(self) -> float:
        """Measure D of the empty circuit, to two digits."""
        total = 0.0
        for batch, runs in self.runs:
            for direction in self.directions:
                reference = runs.reference(direction)
                other = runs.corrupted if reference is runs.clean else runs.clean
                distance = self.distance(reference.logits, batch.pairs)
                total += float(distance.exact(other.outputs[:, :, -1].sum(dim=0)).sum())
        # Two digits are the same however the pairs are cut into batches, and all taus follow from the first.
        return float(f"{total / len(self.problem.pairs):.2g}")

    def search(
        self,
        threshold: float,
        advance: Callable[[int], None] = lambda edges: None,
        save: Callable[[Progress], None] = lambda progress: None,
        start: Progress | None = None,
        expected: Tensor | None = None,
    ) -> Outcome:
        """Run the greedy search for one tau, or the rest of it.

        Args:
            threshold: Tau.
            advance: Called with the number of edges that were decided.
            save: Called where a sublayer begins.
            start: Where to begin, if not with all edges.
            expected: Edges that may well be kept. They say where to end chains: the speed changes, not the result.
                [edge] of bool

        Returns:
            What is kept, and what was measured.
        """
        return _GreedySearch(self, threshold, advance, save, expected).run(start)

    def shared_start(self, threshold: float, done: Iterable[Outcome]) -> Progress | None:
        """Return where a search with this tau may begin, given earlier searches; None: with all edges."""
        # Up to the first decision that this tau might take otherwise, its circuit is that of the earlier search, and
        # what follows depends on the circuit alone. So take the earlier search that agrees the longest.
        agreement = [(self._first_doubt(threshold, outcome), outcome) for outcome in done]
        position, outcome = max(agreement, key=lambda agreed: agreed[0], default=(0, None))
        if outcome is None or position == 0:
            return None
        decided_ports = torch.zeros(len(self.graph.ports), dtype=torch.bool)
        decided_ports[self.order[:position]] = True
        decided = decided_ports[self.graph.edge_port]  # [edge]
        mask = outcome.mask | ~decided
        reached = self.graph.sublayer_of_port[self.order[position]]
        live = all_liveness(self.model, self.graph.matrix(mask))
        for sender, sublayer in enumerate(self.graph.sublayer_of_sender):
            if sublayer <= reached:
                live[sender] = DEAD  # the search has not come to it yet
        return Progress(threshold, position, mask, outcome.effects * decided, tuple(live), 0, 0)

    def _first_doubt(self, threshold: float, outcome: Outcome) -> int:
        """Index, in search order, of the first port of the first sublayer whose decisions could differ under this tau.

        A kept edge's effect has to stay above tau, and a removed one's below it, by more than the band.
        """
        distance = torch.where(outcome.mask, outcome.effects - threshold, threshold - outcome.effects)
        doubtful = set(self.graph.edge_port[distance <= self.band(threshold)].tolist())
        first = next((port for port in self.order if port in doubtful), self.order[-1])
        sublayers = [self.graph.sublayer_of_port[port] for port in self.order]
        return sublayers.index(self.graph.sublayer_of_port[first])

    def band(self, threshold: float) -> float:
        """Return how close to tau a change has to be for the canonical evaluation."""
        return min(self._widest_band, _BAND_SHARE * threshold)

    def slack(self, changes: Sequence[float], threshold: float) -> float:
        """Return how far below tau the combined change of all directions is: positive means removable."""
        return threshold - (sum(changes) if self.combine == "sum" else max(changes))


class _Canonical:
    """D by the dense engine, on batches that are always the same: depends on the circuit and the pairs alone."""

    def __init__(self, searcher: Searcher) -> None:
        self._searcher, self._model, self._directions = searcher, searcher.model, searcher.directions
        self._engines: list[tuple[Direction, DenseEngine, Distances]] = []

    def _prepare(self) -> None:
        """Make the engines; many searches never need them."""
        setting = self._searcher.problem.setting
        for first in range(0, len(setting), _CANONICAL_BATCH):
            batch = Batch(first, setting.pairs[first : first + _CANONICAL_BATCH])
            runs = setting.runs(batch, keep=False)
            for direction in self._directions:
                engine = DenseEngine(self._model, runs.intervention(self._model, direction))
                distance = self._searcher.distance(runs.reference(direction).logits, batch.pairs)
                self._engines.append((direction, engine, distance))

    def change(self, circuit: Tensor, port: int, sender: int) -> list[float]:
        """Measure D(H without the edge) - D(H) for each direction. circuit: [port, sender] of bool"""
        if not self._engines:
            self._prepare()
        without = circuit.clone()
        without[port, sender] = False
        totals = dict.fromkeys(self._directions, 0.0)
        for direction, engine, distance in self._engines:
            device, dtype = self._model.device, self._model.dtype
            masks = (on_device(mask, device, dtype) for mask in (circuit, without))
            before, after = distance.exact(torch.stack([engine.residual(mask) for mask in masks])).sum(dim=-1)
            totals[direction] += float(after - before) / len(self._searcher.problem.pairs)
        return [totals[direction] for direction in self._directions]


class _DirectionState:
    """One direction of a search: the engine's states of all batches, and their distance from the reference."""

    def __init__(self, searcher: Searcher, direction: Direction, circuit: Tensor) -> None:
        self.states: list[State] = []
        self.distances: list[Distances] = []
        for batch, runs in searcher.runs:
            reference, intervention = runs.reference(direction), runs.intervention(searcher.model, direction)
            self.states.append(State(searcher.model, intervention, reference.outputs, circuit, searcher.row_bytes))
            self.distances.append(searcher.distance(reference.logits, batch.pairs))
        self._graph, self._examples = searcher.graph, len(searcher.problem.pairs)
        self._value: float | Tensor = 0.0  # D of the current circuit; on the device until somebody asks
        self.bound = 0.0  # how much larger it may be
        self._bases: UnembeddingBases  # of the current sublayer
        # What the candidates of the current node change the last residual within, where it is only a few directions.
        self._basis: UnembeddingBasis | None = None
        self._routes: list[Route | None] = []
        self._proposals: list[Proposal] = []

    def _mean(self, batches: Sequence[Tensor]) -> Tensor:
        """Average over all examples. batches: [..., row, example] each -> [..., row]"""
        total: Tensor = torch.stack([values.sum(dim=-1) for values in batches]).sum(dim=0) / self._examples
        return total

    @property
    def value(self) -> float:
        """D of the current circuit."""
        if isinstance(self._value, Tensor):
            self._value = float(self._value)
        return self._value

    def measure(self) -> None:
        """Measure the current D exactly, so that bounds do not add up."""
        values = [distance.exact(state.last[None]) for state, distance in zip(self.states, self.distances, strict=True)]
        self._value, self.bound = self._mean(values)[0], 0.0

    def begin_sublayer(self, circuit: Tensor, live: Sequence[int], sublayer: int, bases: UnembeddingBases) -> None:
        """Compute anew what comes after a sublayer."""
        # The values then depend on the circuit alone, not on the way that the search came: a resumed search, or one
        # that shares a beginning, goes on bit by bit as one that was never interrupted.
        for state in self.states:
            state.rebuild(circuit, live, sublayer + 1)
        self._bases = bases
        ports, reads = self._graph.port_slices[sublayer], self._graph.sublayers[sublayer].reads
        for distance in self.distances:
            distance.restart((ports.stop - ports.start) * reads)
        self.measure()

    def begin_node(self, node: int, live: Sequence[int]) -> None:
        """Find the way from a node, or the logits (-1), on which its candidates change things."""
        self._routes = [None if node < 0 else state.route(node, live) for state in self.states]
        self._basis = None
        if self._routes[0] is not None and self.distances[0].screens:
            ports = self._graph.ports_of_sender[node]
            candidates = len(ports) * self._graph.sublayers[self._graph.sublayer_of_port[ports[0]]].reads
            self._basis = self._bases.of(self._routes[0].read_by_logits, candidates, len(self.states[0].last))

    def longest_chain(self) -> int:
        """Return how many rows fit the memory meant for them."""
        return min(state.rows_at_once(route) for state, route in zip(self.states, self._routes, strict=True))

    def try_chain(self, port: int, senders: Sequence[int], wanted: float) -> tuple[list[float], list[float]]:
        """Estimate D after removing the first, the first two, ... of these senders; bound how much larger it may be.

        wanted: bounds up to this are good enough.
        """
        self._proposals = []
        values, bounds = [], []
        for state, route, distance in zip(self.states, self._routes, self.distances, strict=True):
            proposal = state.propose(route, {port: state.removed(senders, state.positions_read(route, port))})
            self._proposals.append(proposal)
            value, bound = distance.estimate(proposal.residual, wanted, self._basis, state.last)
            values.append(value)
            bounds.append(bound)
        both = self._mean([torch.stack(batch) for batch in zip(values, bounds, strict=True)])
        if isinstance(self._value, Tensor):  # fetched with the rest: an accelerator waits once
            current, both = fetched([self._value, both])
            self._value = float(current)
        means, mean_bounds = both.cpu()
        if not bool(torch.isfinite(means).all()):
            raise GatewiseError(
                f"removing edges into {self._graph.ports[port]} gives NaN or infinity. "
                f"Load the model with dtype='float32' or 'float64'."
            )
        return means.tolist(), mean_bounds.tolist()

    def exact(self, rows: Sequence[int]) -> list[float]:
        """Measure D of rows of the last chain with the whole vocabulary; row -1 is the current circuit."""
        values = []
        for state, proposal, distance in zip(self.states, self._proposals, self.distances, strict=True):
            residuals = [state.last if row < 0 else proposal.residual[row] for row in rows]
            values.append(distance.exact(torch.stack(residuals)))
        return self._mean(values).cpu().tolist()

    def accept(self, port: int, senders: Sequence[int], value: float, bound: float) -> None:
        """Remove these first senders of the last chain."""
        for state, proposal in zip(self.states, self._proposals, strict=True):
            state.accept(proposal, len(senders) - 1, {port: senders})
        self._value, self.bound = value, bound


class _GreedySearch:
    """One greedy search: the circuit so far, and what was measured."""

    def __init__(
        self,
        searcher: Searcher,
        threshold: float,
        advance: Callable[[int], None],
        save: Callable[[Progress], None],
        expected: Tensor | None,
    ) -> None:
        self.searcher, self.threshold, self.advance, self.save = searcher, threshold, advance, save
        self.graph = searcher.graph
        self.expected = None if expected is None else self.graph.matrix(expected)  # [port, sender] of bool
        self.circuit = self.graph.edge_index >= 0  # [port, sender] of bool
        self.effects = torch.zeros(self.graph.n_edges, dtype=torch.float64)
        self.live = [DEAD] * len(self.graph.senders)
        self.directions = [_DirectionState(searcher, direction, self.circuit) for direction in searcher.directions]
        self.trials = self.canonical = 0
        self.length = _FIRST_CHAIN  # of the next chain

    def run(self, start: Progress | None = None) -> Outcome:
        """Decide every edge, or every edge from `start` on."""
        first = 0 if start is None else start.position
        if start is not None:
            self._restore(start)
        sublayer, node = -1, -2
        for position, port in enumerate(self.searcher.order[first:], first):
            receiver = self.graph.port_sender[port]
            if receiver >= 0 and receiver != node:
                self.live[receiver] = liveness(self.searcher.model, self.circuit, receiver, self.live)
            senders = sender_order(self.graph, port, self.searcher.problem.seed)
            # Everything downstream is decided already: a node without a kept path to the logits cannot matter, and all
            # its inputs go without an evaluation.
            if receiver >= 0 and self.live[receiver] == DEAD:
                self.circuit[port] = False
                self.advance(len(senders))
                continue
            if self.graph.sublayer_of_port[port] != sublayer:
                sublayer = self.graph.sublayer_of_port[port]
                if start is None or position > first:
                    self._save(position)
                self._begin_sublayer(sublayer)
            if receiver != node:
                node = receiver
                for direction in self.directions:
                    direction.begin_node(node, self.live)
            self._decide_port(port, senders)
        for direction in self.directions:
            direction.measure()
        divergence = tuple(direction.value for direction in self.directions)
        mask = self.graph.vector(self.circuit)
        return Outcome(self.threshold, mask, self.effects, self.trials, self.canonical, divergence)

    def _restore(self, start: Progress) -> None:
        self.circuit = self.graph.matrix(start.mask)
        self.effects, self.live = start.effects.clone(), list(start.live)
        self.trials, self.canonical = start.trials, start.canonical
        decided = self.searcher.order[: start.position]
        self.advance(sum(self.graph.sublayers[self.graph.sublayer_of_port[port]].reads for port in decided))

    def _save(self, position: int) -> None:
        mask, live = self.graph.vector(self.circuit), tuple(self.live)
        self.save(Progress(self.threshold, position, mask, self.effects, live, self.trials, self.canonical))

    def _begin_sublayer(self, sublayer: int) -> None:
        """Begin a sublayer, in the same way after an interruption as without one."""
        self.length = _FIRST_CHAIN
        bases = UnembeddingBases(self.searcher.model)
        for direction in self.directions:
            direction.begin_sublayer(self.circuit, self.live, sublayer, bases)

    def _decide_port(self, port: int, senders: list[int]) -> None:
        """Decide all edges into one port."""
        longest = min(self.searcher.chain, *(direction.longest_chain() for direction in self.directions))
        while senders:
            chain = self._until_expected(port, senders[: min(self.length, longest)])
            removed, stopped = self._remove_chain(port, chain)
            decided = removed + (1 if stopped else 0)
            senders = senders[decided:]
            self.advance(decided)
            # What comes after an edge that has to stay was evaluated in vain. So the next chain is about as long as
            # this one got; after one that was removed as a whole, or ended where it was expected to, twice as long.
            unforeseen = stopped and (self.expected is None or not self.expected[port, chain[removed]])
            self.length = max(2, removed + 1) if unforeseen else min(2 * self.length, max(longest, self.length))

    def _until_expected(self, port: int, senders: list[int]) -> list[int]:
        """Return these senders, up to the first one whose edge may well stay."""
        if self.expected is None:
            return senders
        stays = self.expected[port, senders].nonzero().flatten().tolist()
        return senders[: stays[0] + 1] if stays else senders

    def _remove_chain(self, port: int, chain: list[int]) -> tuple[int, bool]:
        """Remove edges of a chain up to the first that has to stay; say how many, and whether there is one."""
        wanted = _WANTED_BOUND * self.threshold
        # The current circuit comes before row 0: the change of row i is entry i + 1 less entry i.
        values, bounds = [], []
        for direction in self.directions:
            chain_values, chain_bounds = direction.try_chain(port, chain, wanted)
            values.append([direction.value, *chain_values])
            bounds.append([direction.bound, *chain_bounds])
        removed, stopped = 0, False
        for row, sender in enumerate(chain):
            self.trials += 1
            if not self._decide(port, sender, row, chain[:row], values, bounds):
                stopped = True
                break
            removed += 1
        if removed:
            for direction, value, bound in zip(self.directions, values, bounds, strict=True):
                direction.accept(port, chain[:removed], value[removed], bound[removed])
            self.circuit[port, chain[:removed]] = False
            if any(direction.bound > wanted for direction in self.directions):
                for direction in self.directions:
                    direction.measure()
        return removed, stopped

    def _decide(
        self,
        port: int,
        sender: int,
        row: int,
        removed: list[int],
        values: list[list[float]],
        bounds: list[list[float]],
    ) -> bool:
        """Return whether this edge of a chain is removed, and note its effect. removed: the senders before it"""
        searcher, band = self.searcher, self.searcher.band(self.threshold)
        # The screened vocabulary gives D from below. The change is at most value + bound after it, less the value
        # before it: if that is clearly below tau, nothing is left to ask. Else the edge may stay, and then its effect
        # may rank it: both values are measured.
        changes = [value[row + 1] + bound[row + 1] - value[row] for value, bound in zip(values, bounds, strict=True)]
        if searcher.slack(changes, self.threshold) <= band:
            self._measure_rows(row, values, bounds)
            changes = [value[row + 1] - value[row] for value in values]
        slack = searcher.slack(changes, self.threshold)
        # Float sums depend on how batches and chains were cut. Within the band, which is wider than that noise, the
        # canonical evaluation decides: so neither chain nor batch changes the result.
        if abs(slack) <= band:
            self.canonical += 1
            circuit = self.circuit.clone()
            circuit[port, removed] = False
            slack = searcher.slack(searcher.canonical.change(circuit, port, sender), self.threshold)
        self.effects[int(self.graph.edge_index[port, sender])] = self.threshold - slack
        return slack > 0

    def _measure_rows(self, row: int, values: list[list[float]], bounds: list[list[float]]) -> None:
        """Unembed wholly the two rows that a decision needs, and with them all later ones that will need it too."""
        for direction, value, bound in zip(self.directions, values, bounds, strict=True):
            loose = [i for i in range(row + 2, len(bound)) if bound[i] > _WANTED_BOUND * self.threshold]
            rows = [i for i in (row, row + 1, *loose) if bound[i] > 0]
            exact = direction.exact([i - 1 for i in rows]) if rows else []
            for i, measured in zip(rows, exact, strict=True):
                value[i], bound[i] = measured, 0.0
