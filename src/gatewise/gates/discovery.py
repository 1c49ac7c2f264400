"""From a model and pairs to gates in one call; and how far set-difference labels agree with labels by test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.graph import Grouping
from gatewise.circuits.selection import Selection, number_of_edges
from gatewise.compute import Compute
from gatewise.engine.runs.activations import Ablation
from gatewise.engine.setting import AnyMetric, Data
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
    check_directed(find_method(method))
    size = None if edges is None else number_of_edges(edges, model.graph)
    directions: tuple[SearchDirection, ...] = ("ns", "dn", "ns+dn") if joint else ("ns", "dn")
    if faithfulness is not None:
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
        return label_gates(**_equally_large(search, faithfulness), rule=rule, by=by)
    sizes = None
    if size is not None:  # one size for each direction
        sizes = {direction: (round(size / ratio) if direction == "dn" else size,) for direction in directions}
    circuits = discover_all(
        model,
        data,
        method,
        directions,
        sizes=sizes,
        threshold=threshold,
        select=select,
        seed=seed,
        ablation=ablation,
        metric=metric,
        compute=compute,
    )
    joint_circuit = circuits["ns+dn"][0] if joint else None
    return label_gates(circuits["ns"][0], circuits["dn"][0], rule=rule, by=by, joint=joint_circuit)


def _equally_large(search: SizeSearch, faithfulness: float) -> dict[str, Circuit]:
    """Return circuits of one size, the smallest at which both single directions are as faithful as asked for."""
    choices = {direction: search.smallest(direction, faithfulness) for direction in ("ns", "dn")}
    size = max(len(choice.reached()) for choice in choices.values())
    circuits = {direction: choice.of_size(size) for direction, choice in choices.items()}
    if "ns+dn" in search.rankings:
        (circuits["joint"],) = search.circuits("ns+dn", [size])
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
