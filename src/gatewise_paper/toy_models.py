"""The paper's Table 1, out of code: what each method recovers of each gate, and what that does to the circuit.

Gates: on the single synthetic gates, by *threshold* (a number of edges would decide the answer), over several seeds. An
entry is `full` if every seed finds all edges of the gate, `none` if none finds any, and `partial` otherwise. A learned
ranking is cut where the KL left is that of an edge that carries a share of the effect.

The paper's table has ACDC, EAP and Edge Pruning under Ns and Dn. Ns+Dn and learned ranking stand beside them.

Faithfulness and completeness: on `synthetic:combined`, C = (A1 and A2) + (A3 or A4). Faithful: the circuit alone does
what the model does. Complete: without its edges into the gates B1 and B2 nothing of the behaviour is left. The
edges behind the gates (B1->C, B2->C, C->logits) stay in place for that: every method finds them, and removing C->logits
would silence the model whatever else a circuit has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from gatewise.circuits.circuit import Circuit
from gatewise.engine import run_circuit
from gatewise.engine.setting import Setting
from gatewise.errors import GatewiseError
from gatewise.methods import Ranking, discover
from gatewise.methods.base import SEARCH_DIRECTIONS, SearchDirection
from gatewise.models.model import Model
from gatewise.models.synthetic.logic_model import synthetic_model, synthetic_pairs
from gatewise.statistics import kl_divergence, log_probabilities
from gatewise_paper.truth.ranking_cut import smallest_within

Recovery = Literal["full", "partial", "none"]
GATES = {"AND": "and", "OR": "or", "ADDER": "adder"}
THRESHOLDS = {"acdc": 0.01, "eap": 0.01, "edge-pruning": 0.5, "ranking": 0.01}  # of ranking: a share of the effect
PAPER_DIRECTIONS: tuple[SearchDirection, ...] = ("ns", "dn")
_RANKING = Ranking(steps=150)  # of at most 21 edges
_NEAR = 1e-6  # nats


@dataclass(frozen=True)
class ToyRow:
    """One line of the table."""

    direction: str
    method: str
    recovery: dict[str, Recovery]  # by gate type
    found_by_seed: dict[str, list[int]]  # edges of the gate found, for each seed
    faithful: bool  # with every seed
    complete: bool

    @property
    def entries(self) -> tuple[str, ...]:
        """As in the table: a recovery for each gate, faithful, complete."""
        return (*(self.recovery[gate] for gate in GATES), *(_YES[holds] for holds in (self.faithful, self.complete)))

    @property
    def printed(self) -> tuple[str, ...] | None:
        """The paper's entries; None if the paper has no such line."""
        return PAPER.get((self.direction, self.method))

    @property
    def as_in_the_paper(self) -> bool | None:
        """Whether the entries are the paper's; None if the paper has no such line."""
        return None if self.printed is None else self.entries == self.printed


_YES = {True: "yes", False: "no"}
PAPER: dict[tuple[str, str], tuple[str, ...]] = {
    ("ns", "acdc"): ("full", "partial", "full", "yes", "no"),
    ("ns", "eap"): ("full", "none", "full", "no", "no"),
    ("ns", "edge-pruning"): ("full", "partial", "full", "yes", "no"),
    ("dn", "acdc"): ("partial", "full", "full", "no", "yes"),
    ("dn", "eap"): ("none", "full", "full", "no", "no"),
    ("dn", "edge-pruning"): ("partial", "full", "full", "no", "yes"),
}


def table(
    methods: Sequence[str] = tuple(THRESHOLDS),
    seeds: int = 6,
    directions: Sequence[SearchDirection] = SEARCH_DIRECTIONS,
) -> list[ToyRow]:
    """Run every method in every direction on the synthetic models."""
    unknown = [method for method in methods if method not in THRESHOLDS]
    if unknown:
        raise GatewiseError(f"the toy table has {', '.join(THRESHOLDS)}; got {unknown[0]!r}.")
    return [_row(direction, method, seeds) for direction in directions for method in methods]


def to_json(rows: Sequence[ToyRow]) -> list[dict[str, Any]]:
    return [{**asdict(row), "as_in_the_paper": row.as_in_the_paper} for row in rows]


def _row(direction: SearchDirection, method: str, seeds: int) -> ToyRow:
    recovery: dict[str, Recovery] = {}
    counts = {}
    for gate, kind in GATES.items():
        model = synthetic_model(kind)
        edges = model.graph.circuit(["A1->B", "A2->B"])
        circuits = [_find(model, method, direction, seed) & edges for seed in range(seeds)]
        counts[gate] = [len(circuit) for circuit in circuits]
        recovery[gate] = "full" if min(counts[gate]) == 2 else "none" if max(counts[gate]) == 0 else "partial"
    combined = synthetic_model("combined")
    circuits = [_find(combined, method, direction, seed) for seed in range(seeds)]
    faithful = all(_faithful(combined, circuit) for circuit in circuits)
    complete = all(_complete(combined, circuit) for circuit in circuits)
    return ToyRow(direction, method, recovery, counts, faithful, complete)


def _find(model: Model, method: str, direction: SearchDirection, seed: int) -> Circuit:
    if method == "ranking":
        return smallest_within(Setting(model, synthetic_pairs()), _RANKING, direction, THRESHOLDS[method], seed)
    return discover(model, synthetic_pairs(), method, direction, threshold=THRESHOLDS[method], seed=seed)


def _distance(model: Model, first: Circuit, second: Circuit) -> float:
    """KL between what two circuits do on the clean prompt."""
    p, q = (log_probabilities(run_circuit(model, synthetic_pairs(), circuit)) for circuit in (first, second))
    return float(kl_divergence(p, q).mean())


def _faithful(model: Model, circuit: Circuit) -> bool:
    return _distance(model, model.graph.full(), circuit) < _NEAR


def _complete(model: Model, circuit: Circuit) -> bool:
    into_gates = model.graph.circuit([edge for edge in model.graph.edges if edge.endswith(("->B1", "->B2"))])
    return _distance(model, model.graph.full() - (circuit & into_gates), model.graph.empty()) < _NEAR
