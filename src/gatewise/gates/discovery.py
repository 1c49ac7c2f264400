"""From a model and pairs to gates in one call; and how far labels by set membership agree with labels by test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
from gatewise.models.model import Model


def find_gates(
    model: Model,
    data: Data,
    method: str | Method = "eap",
    *,
    edges: int | float | None = None,
    ratio: float = 1.0,
    threshold: float | None = None,
    rule: Rule = "plain",
    by: Grouping = "port",
    joint: bool = True,
    select: Selection = "top",
    seed: int = 0,
    ablation: Ablation | None = None,
    metric: AnyMetric = None,
    compute: Compute | None = None,
) -> Gates:
    """Search by noising and by denoising, and split what was found into AND, OR and ADDER gates.

    `edges`: size of the noising circuit; the denoising one has `round(edges / ratio)`, so that `ratio` is the paper's
    |Ns| : |Dn|. Or `threshold`, the same for both directions. `joint`: search the paper's Ns+Dn circuit of `edges`
    edges, too. `rule` and `by` are those of `label_gates`; all else is as for `discover`.
    """
    if (edges is None) == (threshold is None):
        raise GatewiseError("give either edges= (of the noising circuit) or threshold=, not both.")
    if not ratio > 0 or (ratio != 1 and edges is None):
        raise GatewiseError(f"ratio is |Ns| : |Dn|, more than 0, and goes with edges=, not threshold=; got {ratio}.")
    check_directed(find_method(method))
    size = None if edges is None else number_of_edges(edges, model.graph)
    directions: tuple[SearchDirection, ...] = ("ns", "dn", "ns+dn") if joint else ("ns", "dn")
    sizes = None
    if size is not None:
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
    both = circuits["ns+dn"][0] if joint else None
    return label_gates(circuits["ns"][0], circuits["dn"][0], rule=rule, by=by, joint=both)


@dataclass(frozen=True)
class Agreement:
    """Labels by split against labels by test, over the edges that have both."""

    table: Mapping[GateType, Mapping[TestedLabel, int]]  # edges by split label, then by tested label
    only_split: int  # labelled edges without a test: no partner in their port, or no way to the logits

    @property
    def edges(self) -> int:
        """Edges with both labels."""
        return sum(sum(row.values()) for row in self.table.values())

    @property
    def share(self) -> float:
        """Share of the edges with both labels on which they agree; NaN if there are none."""
        return _share(sum(row.get(kind, 0) for kind, row in self.table.items()), self.edges)

    def of_type(self, kind: GateType) -> float:
        """The same among the edges that the split gives this label."""
        return _share(self.table[kind].get(kind, 0), sum(self.table[kind].values()))

    def to_json(self) -> dict[str, Any]:
        shares = {kind: self.of_type(kind) for kind in GATE_TYPES}
        return {
            "edges": self.edges,
            "share": _finite(self.share),
            "share_by_type": {kind: _finite(share) for kind, share in shares.items()},
            "table": {kind: dict(row) for kind, row in self.table.items()},
            "only_split": self.only_split,
        }

    def __repr__(self) -> str:
        shown = ", ".join(f"{kind} {self.of_type(kind):.0%}" for kind in GATE_TYPES if self.table[kind])
        return f"<Agreement of split and tested labels: {self.share:.1%} of {self.edges:,} edges ({shown})>"


def label_agreement(gates: Gates, tested: Mapping[str, TestedLabel]) -> Agreement:
    """Compare the split's labels with those of `labels_by_test`."""
    table: dict[GateType, dict[TestedLabel, int]] = {kind: {} for kind in GATE_TYPES}
    only_split = 0
    for kind in GATE_TYPES:
        for edge in gates.by_type[kind]:
            if edge in tested:
                table[kind][tested[edge]] = table[kind].get(tested[edge], 0) + 1
            else:
                only_split += 1
    return Agreement(table, only_split)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")


def _finite(value: float) -> float | None:
    return value if value == value else None
