"""From a model and pairs to gates in one call; and how far set-difference labels agree with labels by test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.graph import Grouping
from gatewise.circuits.selection import Selection, number_of_edges
from gatewise.compute import Compute
from gatewise.engine.runs.activations import Ablation
from gatewise.engine.setting import AnyMetric, Data, Setting
from gatewise.errors import GatewiseError
from gatewise.gate_types import GATE_TYPES, GateType, TestedLabel
from gatewise.gates.labels import Gates, Rule, label_gates
from gatewise.methods.base import Method, SearchDirection
from gatewise.methods.discovery import discover_all
from gatewise.methods.registry import check_directed, find_method
from gatewise.methods.smallest import SizeSearch, check_faithfulness, rank_directions
from gatewise.models.model import Model


def find_gates(
    model: Model,
    data: Data,
    method: str | Method = "eap",
    *,
    edges: int | float | None = None,
    ratio: float = 1.0,
    threshold: float | None = None,
    faithfulness: float | None = None,
    rule: Rule = "plain",
    by: Grouping = "port",
    joint: bool = True,
    seeds: int | None = None,
    select: Selection = "top",
    seed: int = 0,
    ablation: Ablation | None = None,
    metric: AnyMetric = None,
    compute: Compute | None = None,
) -> Gates:
    """Search a circuit by noising and one by denoising, and label their edges AND, OR and ADDER.

    Noising (Ns): the clean run, in which removed edges carry the corrupted run's outputs. Denoising (Dn): the two runs
    swapped. Labels come from membership alone; `test_gates` tests them.

    Args:
        model: The model.
        data: Pairs, or a task, of which the train pairs are used.
        method: How to search: a name that `gatewise methods` lists, or a method of your own. It has to have directions.
        edges: Size of the noising circuit, as a number or as a share of all edges.
        ratio: The paper's |Ns| : |Dn|: the denoising circuit has `round(edges / ratio)` edges.
        threshold: In place of `edges`, the method's own threshold, the same for both directions.
        faithfulness: In place of both, the share of the KL that the circuits have to keep, as for `discover`. All have
            one size, the smallest at which each does on its own side, since labels compare sets; `edges` is then the
            most that are allowed.
        rule: As for `label_gates`: "plain" or "repaired".
        by: As for `label_gates`: what a gate's edges go into, a "port" or a "node".
        joint: Whether to search the paper's Ns+Dn circuit of `edges` edges, too. It is kept beside the gates; labels do
            not depend on it.
        seeds: Searches with different seeds whose circuits edges have to agree on to have a label. By default 2 for
            methods that train from random draws (`ranking`, `edge-pruning`), so that labels are more than seed noise,
            and 1 for others.
        select: Which edges make a circuit of a size: the "top" ones, or "connected" ones only.
        seed: Of everything random.
        ablation: What removed edges carry: only "patching", the default, has both directions.
        metric: What the search measures effects in; by default the method's own.
        compute: Where to run: memory, workers, the store.

    Returns:
        Both circuits, and their edges by label.

    Raises:
        GatewiseError: Both or none of `edges` and `threshold`; a ratio that is not above 0, or beside a threshold; a
            method without directions; circuits that are not as faithful as asked for.
    """
    if faithfulness is None and (edges is None) == (threshold is None):
        raise GatewiseError("give exactly one of edges= (of the noising circuit), threshold= and faithfulness=.")
    if not ratio > 0 or (ratio != 1 and (edges is None or faithfulness is not None)):
        raise GatewiseError(f"ratio is |Ns| : |Dn|, more than 0, and goes with edges= alone; got {ratio}.")
    if faithfulness is not None and threshold is not None:
        raise GatewiseError("faithfulness= chooses the size by itself: leave out threshold=.")
    bound = find_method(method)
    check_directed(bound)
    count = (2 if bound.seeded else 1) if seeds is None else seeds
    if count < 1:
        raise GatewiseError(f"seeds is a number of searches, at least 1; got {count}.")
    directions: tuple[SearchDirection, ...] = ("ns", "dn", "ns+dn") if joint else ("ns", "dn")
    options: dict[str, Any] = {"select": select, "ablation": ablation, "metric": metric, "compute": compute}
    if faithfulness is not None:
        check_faithfulness(faithfulness)
        search = rank_directions(model, data, bound, directions, edges=edges, seed=seed, **options)
        circuits = _equally_large(search, faithfulness)
        size = len(circuits["ns"])
        others = []
        for other_seed in range(seed + 1, seed + count):
            again = search.with_seed(other_seed, ("ns", "dn"))
            others.append((again.circuits("ns", [size])[0], again.circuits("dn", [size])[0]))
    else:
        # One setting for all seeds, so that they share what does not depend on the seed.
        setting = Setting.of(model, data, "train", ablation=ablation, metric=metric, seed=seed, compute=compute)
        shared = {"select": select, "compute": compute, "threshold": threshold, "sizes": _sizes(model, edges, ratio)}
        by_direction = _search(model, setting, bound, directions, seed, shared)
        circuits = {direction: by_direction[direction] for direction in directions}
        others = []
        for other_seed in range(seed + 1, seed + count):
            other = _search(model, setting, bound, ("ns", "dn"), other_seed, shared)
            others.append((other["ns"], other["dn"]))
    return label_gates(
        circuits["ns"], circuits["dn"], rule=rule, by=by, joint=circuits.get("ns+dn"), other_seeds=others
    )


def _sizes(model: Model, edges: int | float | None, ratio: float) -> dict[SearchDirection, tuple[int]] | None:
    """Return one size for each direction; None with a threshold."""
    if edges is None:
        return None
    size = number_of_edges(edges, model.graph)
    return {"ns": (size,), "dn": (round(size / ratio),), "ns+dn": (size,)}


def _search(
    model: Model,
    setting: Setting,
    method: Method,
    directions: Sequence[SearchDirection],
    seed: int,
    options: Mapping[str, Any],
) -> dict[SearchDirection, Circuit]:
    """Return the one circuit of each direction."""
    sizes = options["sizes"]
    sized = None if sizes is None else {direction: sizes[direction] for direction in directions}
    circuits = discover_all(model, setting, method, directions, **{**options, "sizes": sized, "seed": seed})
    return {direction: circuits[direction][0] for direction in directions}


def _equally_large(search: SizeSearch, faithfulness: float) -> dict[SearchDirection, Circuit]:
    """Return circuits of one size, the smallest at which both single directions are as faithful as asked for."""
    singles: tuple[SearchDirection, ...] = ("ns", "dn")
    choices = {direction: search.smallest(direction, faithfulness) for direction in singles}
    size = max(len(choice.reached()) for choice in choices.values())
    circuits = {direction: choice.of_size(size) for direction, choice in choices.items()}
    if "ns+dn" in search.rankings:
        (circuits["ns+dn"],) = search.circuits("ns+dn", [size])
    return circuits


@dataclass(frozen=True)
class Agreement:
    """Set-difference labels against labels by test, over the edges that have both."""

    table: Mapping[GateType, Mapping[TestedLabel, int]]  # edges by set-difference label, then by tested label
    untested: int  # labelled edges without a test: no partner in their port, or no way to the logits

    @property
    def edges(self) -> int:
        """Edges with both labels."""
        return sum(sum(row.values()) for row in self.table.values())

    @property
    def share(self) -> float:
        """Share of the edges with both labels on which they agree; NaN if there are none."""
        return _share(sum(row.get(kind, 0) for kind, row in self.table.items()), self.edges)

    def of_type(self, kind: GateType) -> float:
        """Say how often tests agree with one set-difference label.

        Args:
            kind: AND, OR or ADDER.

        Returns:
            Share of the tested edges with this label on which both agree; NaN if there are none.
        """
        return _share(self.table[kind].get(kind, 0), sum(self.table[kind].values()))

    def to_json(self) -> dict[str, Any]:
        """Return plain data.

        Returns:
            Counts and shares; null for shares of nothing.
        """
        return {
            "edges": self.edges,
            "share": _finite(self.share),
            "share_by_type": {kind: _finite(self.of_type(kind)) for kind in GATE_TYPES},
            "table": {kind: dict(row) for kind, row in self.table.items()},
            "untested": self.untested,
        }

    def __repr__(self) -> str:
        by_type = ", ".join(f"{kind} {self.of_type(kind):.0%}" for kind in GATE_TYPES if self.table[kind])
        return f"<Agreement of set-difference and tested labels: {self.share:.1%} of {self.edges:,} edges ({by_type})>"


def label_agreement(gates: Gates, tested: Mapping[str, TestedLabel]) -> Agreement:
    """Compare set-difference labels with labels by test.

    Args:
        gates: The gates.
        tested: Edge -> label, as `labels_by_test` gives them.

    Returns:
        How many edges have which two labels.
    """
    table = {kind: Counter(tested[edge] for edge in gates.by_type[kind] if edge in tested) for kind in GATE_TYPES}
    labelled = sum(len(gates.by_type[kind]) for kind in GATE_TYPES)
    return Agreement(table, labelled - sum(row.total() for row in table.values()))


def _share(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")


def _finite(value: float) -> float | None:
    return value if value == value else None
