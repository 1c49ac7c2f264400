"""Capabilities: what each method recovers of each gate, and what that does to the circuit (tablogicalandFC).

On synthetic models, whose gates are known. See `gatewise_paper.toy_models`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from gatewise_paper.claims import Ruling, settle
from gatewise_paper.experiment import Experiment, Measurement, Outcome
from gatewise_paper.lab import Lab
from gatewise_paper.measured import Measured
from gatewise_paper.naming import DIRECTION_NAMES, METHOD_NAMES
from gatewise_paper.tables import Table
from gatewise_paper.toy_models import GATES, PAPER, PAPER_DIRECTIONS, THRESHOLDS, ToyRow, table

_SEEDS = 6
_COLUMNS = ("direction", "method", *GATES, "faithful", "complete")


class ToyKey(NamedTuple):
    method: str
    seeds: int
    threshold: float


def lines(lab: Lab, key: ToyKey) -> list[dict[str, Any]]:
    """A method's lines of the table."""
    return [asdict(row) for row in table([key.method], key.seeds, PAPER_DIRECTIONS)]


def _measurements(lab: Lab) -> Iterator[Measurement]:
    for method in lab.preset.methods:
        yield Measurement(lines, ToyKey(method, _SEEDS, THRESHOLDS[method]))


def _judge(lab: Lab, measured: Measured) -> Outcome:
    rows = [ToyRow(**line) for of_method in measured.values() for line in of_method]
    rows.sort(key=lambda row: ("ns", "dn").index(row.direction))
    ours, printed = [], []
    for row in rows:
        names = DIRECTION_NAMES[row.direction], METHOD_NAMES[row.method]
        by_seed = "; ".join(f"{gate} {' '.join(map(str, row.found_by_seed[gate]))}" for gate in GATES)
        ours.append((*names, *row.entries, by_seed))
        printed.append((*names, *PAPER[row.direction, row.method]))
    rulings = []
    for method in lab.preset.methods:
        rulings += method_rulings([row for row in rows if row.method == method])
    return Outcome(
        tables=[
            Table(
                "What is recovered of each gate",
                (*_COLUMNS, "edges found by seed"),
                ours,
                f"full: every one of {_SEEDS} seeds finds both edges of the synthetic gate; none: no seed finds any; "
                "partial: anything else. Faithful and complete: with every seed, on (A1 and A2) + (A3 or A4).",
            )
        ],
        rulings=rulings,
        paper=(Table("What is recovered of each gate (tablogicalandFC)", _COLUMNS, printed),),
        notes=[
            "The models are synthetic, so each method's lines are the same in every preset. Circuits are found by "
            "threshold: a number of edges would decide the answer."
        ],
    )


def method_rulings(rows: Sequence[ToyRow]) -> list[Ruling]:
    """Of one method: whether all entries are the paper's, and whether one direction or the other recovers each gate."""
    name = METHOD_NAMES[rows[0].method]
    same: list[bool] = []
    for row in rows:
        printed = PAPER[row.direction, row.method]
        same += [ours == theirs for ours, theirs in zip(row.entries, printed, strict=True)]
    covered = sum(any(row.recovery[gate] == "full" for row in rows) for gate in GATES)
    return [
        settle(
            "Ns recovers AND and ADDER gates and Dn recovers OR and ADDER gates; of the other gate, ACDC and Edge "
            "Pruning find a part and EAP nothing.",
            all(same),
            f"{sum(same)} of {len(same)} entries are as printed in the paper, with {_SEEDS} seeds each.",
            method=name,
        ),
        settle(
            "Ns and Dn together recover all three gates fully.",
            covered == len(GATES),
            f"One direction or the other recovers {covered} of {len(GATES)} gates fully.",
            method=name,
        ),
    ]


EXPERIMENT = Experiment(
    name="capabilities",
    title="What each method recovers of each gate",
    claim="Ns recovers AND and ADDER gates fully, Dn recovers OR and ADDER gates fully, so both are needed.",
    labels=("tablogicalandFC",),
    measurements=_measurements,
    judge=_judge,
)
