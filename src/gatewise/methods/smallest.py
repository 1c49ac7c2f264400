"""`smallest_circuits`: ask for quality instead of size. The smallest circuits of a ranking that keep a share of the KL.

A circuit keeps the share 1 - KL(G || C) / KL(G || empty circuit), on the side of its direction: ns by noising, dn by
denoising. Of ns+dn, and of a union ns|dn, the smaller of both counts. What has to reach the goal is the lower
confidence bound of the share, on pairs that the search has not seen: a bootstrap over these pairs, both means resampled
together, 95 % one-sided.

The curve over sizes is not monotone, so that sizes are scanned from below: from a ten-thousandth of the graph doubled
up to the first that reaches the goal, then in eight steps from the size before. The first of these that reaches it is
chosen. So the circuit is the smallest of what was scanned, and all that is claimed is claimed of it: a larger one may
do worse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.selection import Selection, number_of_edges
from gatewise.compute import Compute, current_compute
from gatewise.engine.runs.activations import Ablation, Direction
from gatewise.engine.setting import AnyMetric, Data, Setting
from gatewise.errors import GatewiseError
from gatewise.evaluation.evaluations import MEASURES, example_values, normalise
from gatewise.methods.base import Method, Problem, SearchDirection, single_directions_of
from gatewise.methods.registry import find_method, methods
from gatewise.methods.searching import check_problem, cut_ranking, find_rankings
from gatewise.models.model import Model
from gatewise.progress import progress_bar
from gatewise.statistics import kept_share
from gatewise.workers import WorkerPool, threads

CONFIDENCE = 0.95
FEWEST_PAIRS = 8  # to choose a size on, and to search on
_VALIDATED = 3  # one of so many pairs is kept from the search
_STEPS = 8  # sizes from one to its double
_LARGEST = 0.5  # of the graph: what is larger is hardly a circuit
_FIRST = 10_000  # the scan begins at the graph's edges divided by this
_KL, _ACCURACY, _LOGIT_DIFF = (MEASURES.index(name) for name in ("kl_from_full", "accuracy", "logit_diff"))


@dataclass(frozen=True)
class ScannedSize:
    """What a circuit of one size keeps, on the pairs that sizes are chosen on.

    Attributes:
        edges: Its size; of a union the size of the circuit of each direction.
        in_union: Edges of the union; None if it is none.
        share: Of the KL between the runs that it keeps; of both sides, if it is held against both, the smaller.
        low: The lower confidence bound of the share.
        shares: The share by side.
        logit_diff: Normalised logit difference: 0 is the empty circuit, 1 the whole model.
        accuracy: Pairwise accuracy.
    """

    edges: int
    share: float
    low: float
    shares: Mapping[Direction, float]
    logit_diff: float
    accuracy: float
    in_union: int | None = None

    def __str__(self) -> str:
        count = self.edges if self.in_union is None else self.in_union
        edges = "1 edge keeps" if count == 1 else f"{count:,} edges keep"
        if self.in_union is not None:
            edges = f"{count:,} edges ({self.edges:,} by each direction) keep"
        return (
            f"{edges} {self.share:.0%} by KL (at least {self.low:.0%} with {CONFIDENCE:.0%} "
            f"confidence), {self.logit_diff:.0%} of the logit difference, pairwise accuracy {self.accuracy:.0%}"
        )


@dataclass(frozen=True, eq=False)
class SmallestCircuit:
    """The smallest circuit of a ranking that is as faithful as asked for, and how the size was chosen.

    Attributes:
        faithfulness: The share of the KL that was asked for.
        edges: The smallest size that reaches it; None if none does.
        scan: All sizes that were run, in order.
        most_edges: The largest size that was allowed.
        search_pairs: Pairs that edges were ranked on.
        validation_pairs: Pairs that the size was chosen on.
        direction: Of the search; `ns|dn` for the union of the circuits of ns and dn.
        method: Of the search.
    """

    faithfulness: float
    edges: int | None
    scan: tuple[ScannedSize, ...]
    most_edges: int
    search_pairs: int
    validation_pairs: int
    direction: SearchDirection | Literal["ns|dn"]
    method: str
    _cut: Callable[[int], Circuit]  # the circuit of a size

    @property
    def circuit(self) -> Circuit | None:
        """The smallest circuit that is as faithful as asked for; None if none is."""
        return None if self.edges is None else self.of_size(self.edges)

    @property
    def chosen(self) -> ScannedSize:
        """What the circuit keeps; if none reaches the goal, what the one keeps that comes closest."""
        if self.edges is not None:
            return next(point for point in self.scan if point.edges == self.edges)
        return max(self.scan, key=lambda point: point.low)

    def of_size(self, edges: int) -> Circuit:
        """Cut the same ranking at another size.

        Args:
            edges: How many edges.

        Returns:
            The circuit, with how its faithfulness was asked for in its provenance.
        """
        return self._cut(edges).with_provenance(faithfulness=self.record())

    def reached(self) -> Circuit:
        """Return the circuit, or say that there is none.

        Returns:
            The smallest circuit that is as faithful as asked for.

        Raises:
            GatewiseError: None of at most `most_edges` edges is.
        """
        circuit = self.circuit
        if circuit is None:
            raise GatewiseError(f"{self}. Ask for less, allow more edges, or use another method.")
        return circuit

    def record(self) -> dict[str, Any]:
        """Make plain data of it.

        Returns:
            What was asked for, whether it was reached, on how many pairs, and all sizes that were run.
        """
        return {
            "goal": self.faithfulness,
            "edges": self.edges,
            "most_edges": self.most_edges,
            "confidence": CONFIDENCE,
            "search_pairs": self.search_pairs,
            "validation_pairs": self.validation_pairs,
            "scan": [asdict(point) for point in self.scan],
        }

    def __str__(self) -> str:
        found_by = f"{self.method} {self.direction}"
        pairs = f"on {self.validation_pairs} pairs that the search has not seen"
        if self.edges is not None:
            return f"{found_by}: {self.chosen}, {pairs}"
        return (
            f"{found_by}: a faithfulness of {self.faithfulness:.0%} is not reached below {self.most_edges:,} edges, "
            f"{pairs}; {self.chosen}"
        )

    def __repr__(self) -> str:
        return f"<SmallestCircuit, {self}>"


def smallest_circuits(
    model: Model,
    data: Data,
    method: str | Method = "eap",
    directions: Sequence[SearchDirection] = ("ns",),
    *,
    faithfulness: float,
    edges: int | float | None = None,
    select: Selection = "top",
    seed: int = 0,
    ablation: Ablation | None = None,
    metric: AnyMetric = None,
    compute: Compute | None = None,
) -> dict[SearchDirection, SmallestCircuit]:
    """Find the smallest circuits that keep a share of the KL between the runs, on pairs that the search has not seen.

    Args:
        model: As for `discover`.
        data: As for `discover`. A third of the pairs, at least 8, is kept from the search to choose sizes on.
        method: One that ranks all edges at once: `eap`, `eap-ig` or `ranking`, not `acdc` or `edge-pruning`.
        directions: Some of `ns`, `dn` and `ns+dn`, each with a size of its own.
        faithfulness: The share, between 0 and 1, that the lower confidence bound has to reach.
        edges: The most edges that are allowed, or their share of the graph's; by default half of the graph.
        select: As for `discover`.
        seed: As for `discover`.
        ablation: As for `discover`.
        metric: Of the search, as for `discover`; faithfulness is by KL.
        compute: As for `discover`. The ranking is stored, and serves all sizes.

    Returns:
        For each direction the circuit, if there is one, and what circuits of all sizes that were run keep.

    Raises:
        GatewiseError: What is asked for has no meaning or cannot be done; said before the work.
    """
    check_faithfulness(faithfulness)
    search = rank_directions(
        model,
        data,
        method,
        directions,
        edges=edges,
        select=select,
        seed=seed,
        ablation=ablation,
        metric=metric,
        compute=compute,
    )
    return {direction: search.smallest(direction, faithfulness) for direction in directions}


@dataclass(frozen=True, eq=False)
class SizeSearch:
    """Rankings in several directions, and the pairs that sizes are chosen on: what `smallest_circuits` is made of."""

    problem: Problem  # whose sizes are the most edges that are allowed
    method: Method
    compute: Compute
    rankings: Mapping[SearchDirection, Circuit]  # the full graph, with scores
    validation: Setting

    @property
    def workers(self) -> WorkerPool | None:
        """Who shares the runs."""
        return self.compute.worker_pool(self.problem.model.device)

    def with_seed(self, seed: int, directions: Sequence[SearchDirection]) -> SizeSearch:
        """Rank edges again with another seed, on the same pairs."""
        problem = replace(self.problem.only(*directions), seed=seed)
        return replace(self, problem=problem, rankings=find_rankings(problem, self.method, self.compute))

    def smallest(self, direction: SearchDirection, faithfulness: float) -> SmallestCircuit:
        """Choose the smallest size in one direction."""

        def cut(size: int) -> Circuit:
            return self.circuits(direction, [size])[0]

        return self._smallest(direction, cut, single_directions_of(direction), faithfulness)

    def smallest_union(self, faithfulness: float) -> SmallestCircuit:
        """Choose the smallest size at which the circuits of ns and dn together are faithful on both sides."""

        def cut(size: int) -> Circuit:
            union = self.circuits("ns", [size])[0] | self.circuits("dn", [size])[0]
            return union.with_provenance(direction="ns|dn")

        return self._smallest("ns|dn", cut, ("ns", "dn"), faithfulness)

    def _smallest(
        self,
        name: SearchDirection | Literal["ns|dn"],
        cut: Callable[[int], Circuit],
        sides: Sequence[Direction],
        faithfulness: float,
    ) -> SmallestCircuit:
        most = max(size for sizes in self.problem.sizes.values() for size in sizes)  # the same in all directions
        workers = self.workers
        with threads(None if workers is None else 1):
            scan = _Scan(self.validation, name, cut, sides, workers)
            size = scan.find(faithfulness, most)
        return SmallestCircuit(
            faithfulness=faithfulness,
            edges=size,
            scan=tuple(scan.points[edges] for edges in sorted(scan.points)),
            most_edges=most,
            search_pairs=len(self.problem.pairs),
            validation_pairs=len(self.validation),
            direction=name,
            method=self.method.name,
            _cut=cut,
        )

    def circuits(self, direction: SearchDirection, sizes: Sequence[int]) -> tuple[Circuit, ...]:
        """Cut the ranking of a direction at some sizes."""
        return cut_ranking(self.problem.with_sizes({direction: tuple(sizes)}), direction, self.rankings[direction])


def rank_directions(
    model: Model,
    data: Data,
    method: str | Method,
    directions: Sequence[SearchDirection],
    *,
    edges: int | float | None = None,
    select: Selection = "top",
    seed: int = 0,
    ablation: Ablation | None = None,
    metric: AnyMetric = None,
    compute: Compute | None = None,
) -> SizeSearch:
    """Rank all edges in each direction on two thirds of the pairs; arguments are those of `smallest_circuits`."""
    bound, resources = find_method(method), current_compute(compute)
    check_ranks_once(bound)
    whole = Setting.of(model, data, "train", ablation=ablation, metric=metric, seed=seed, compute=compute)
    most = max(1, int(_LARGEST * model.graph.n_edges)) if edges is None else number_of_edges(edges, model.graph)
    searched, validated = split_rows(len(whole))
    setting, validation = (whole.with_pairs(whole.pairs[rows]) for rows in (searched, validated))
    problem = Problem(setting, tuple(directions), dict.fromkeys(directions, (most,)), select=select, seed=seed)
    check_problem(problem, bound)
    rankings = find_rankings(problem, bound, resources)
    return SizeSearch(problem, bound, resources, rankings, validation)


class _Scan:
    """Circuits of growing size on validation pairs."""

    def __init__(
        self,
        setting: Setting,
        name: str,
        cut: Callable[[int], Circuit],
        sides: Sequence[Direction],
        workers: WorkerPool | None,
    ) -> None:
        self.setting, self.name, self.cut, self.sides, self.workers = setting, name, cut, sides, workers
        graph = setting.graph
        self.ends = {side: self._values([graph.full(), graph.empty()], side) for side in self.sides}
        self.whole = torch.stack([self.ends[side][1, _KL] for side in self.sides])  # KL of the empty circuit
        if not bool((self.whole.mean(dim=-1) > 0).all()):
            raise GatewiseError("the two runs do not differ on the pairs, so no circuit keeps a share of their KL.")
        self.points: dict[int, ScannedSize] = {}

    def _values(self, circuits: Sequence[Circuit], side: Direction) -> Tensor:
        return example_values(self.setting, circuits, side, self.workers)

    def find(self, goal: float, most: int) -> int | None:
        """The size to choose; None if none of at most so many edges reaches the goal."""
        below, sizes = 0, doubled_sizes(max(1, self.setting.graph.n_edges // _FIRST), most)
        with progress_bar(f"sizes of {self.name} that keep {goal:.0%}", len(sizes)) as bar:
            for size in sizes:
                bar.advance()
                if self._reaches(size, goal):
                    break
                below = size
            else:
                return None
        return next(between for between in (*sizes_between(below, size), size) if self._reaches(between, goal))

    def _reaches(self, size: int, goal: float) -> bool:
        if size not in self.points:
            self.points[size] = self._measure(size)
        return self.points[size].low >= goal

    def _measure(self, size: int) -> ScannedSize:
        circuit = self.cut(size)
        values = {side: self._values([circuit], side)[0] for side in self.sides}
        left = torch.stack([values[side][_KL] for side in self.sides])
        share, low = kept_share(left, self.whole, CONFIDENCE)
        first = self.sides[0]
        full, empty = self.ends[first][:, _LOGIT_DIFF].mean(dim=-1).tolist()
        shares = 1 - left.mean(dim=-1) / self.whole.mean(dim=-1)
        return ScannedSize(
            edges=size,
            share=share,
            low=low,
            shares=dict(zip(self.sides, shares.tolist(), strict=True)),
            logit_diff=normalise(float(values[first][_LOGIT_DIFF].mean()), empty, full),
            accuracy=float(values[first][_ACCURACY].mean()),
            in_union=len(circuit) if self.name == "ns|dn" else None,
        )


def doubled_sizes(first: int, most: int) -> list[int]:
    """List the first size, its double and so on, and at last `most`."""
    sizes = [min(first, most)]
    while sizes[-1] < most:
        sizes.append(min(2 * sizes[-1], most))
    return sizes


def sizes_between(below: int, above: int) -> list[int]:
    """List sizes that grow by the same factor, eight steps to a double, without both ends; all of them from 0 on."""
    if below < 1:
        return list(range(1, above))
    steps = [round(below * 2 ** (step / _STEPS)) for step in range(1, _STEPS)]
    return [size for size in dict.fromkeys(steps) if below < size < above]


def split_rows(pairs: int) -> tuple[list[int], list[int]]:
    """Return which pairs to search on, and which to choose a size on: a third, drawn the same way every time.

    Raises:
        GatewiseError: There are too few.
    """
    count = max(FEWEST_PAIRS, pairs // _VALIDATED)
    if pairs - count < FEWEST_PAIRS:
        raise GatewiseError(
            f"faithfulness= keeps a third of the pairs, at least {FEWEST_PAIRS}, from the search to choose the size "
            f"on, and there are {pairs}; give at least {2 * FEWEST_PAIRS}."
        )
    # Drawn, since pairs of a user's list may be in the order of their templates.
    order = torch.randperm(pairs, generator=torch.Generator().manual_seed(0)).tolist()
    return sorted(order[count:]), sorted(order[:count])


def check_faithfulness(faithfulness: float) -> None:
    """Refuse what is no share between 0 and 1.

    Args:
        faithfulness: What was asked for.

    Raises:
        GatewiseError: It is not between 0 and 1.
    """
    number = isinstance(faithfulness, int | float) and not isinstance(faithfulness, bool)
    if not number or not 0 < faithfulness < 1:
        raise GatewiseError(
            f"faithfulness is a share of the KL between the runs, between 0 and 1, such as 0.85; got {faithfulness!r}."
        )


def check_ranks_once(method: Method) -> None:
    """Refuse a method that would have to search anew for every size.

    Args:
        method: Of the search.

    Raises:
        GatewiseError: It does not rank all edges at once.
    """
    if not method.ranks_once:
        ranking = [name for name, other in methods().items() if other.ranks_once]
        raise GatewiseError(
            f"{method.name} searches anew for every size, so that no size is chosen by faithfulness. Give it edges= or "
            f"threshold=, or use a method that ranks all edges at once: {', '.join(ranking)}."
        )
