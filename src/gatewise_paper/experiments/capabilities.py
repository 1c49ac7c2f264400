"""Capabilities: what each method recovers of each gate, and what that does to the circuit (tablogicalandFC).

On synthetic models, whose gates are known. See `gatewise_paper.toy_models`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from gatewise_paper.claims import Ruling, settle
from gatewise_paper.experiment import Experiment, Measured, Measurement, Result, Table
from gatewise_paper.figures import Figure, panels
from gatewise_paper.lab import Lab
from gatewise_paper.naming import DIRECTION_NAMES, METHOD_NAMES
from gatewise_paper.toy_models import GATES, PAPER, THRESHOLDS, ToyRow, table, to_json

_SEEDS = 6
_COLUMNS = ("direction", "method", *GATES, "faithful", "complete")
_SHADES = {"full": "#009E73", "yes": "#009E73", "partial": "#E69F00", "none": "#D55E00", "no": "#D55E00"}
_Entries = tuple[str, ...]  # of one line: a recovery for each gate, faithful, complete


class ToyKey(NamedTuple):
    method: str
    seeds: int
    threshold: float


def lines(lab: Lab, key: ToyKey) -> list[dict[str, Any]]:
    """A method's lines of the table."""
    return to_json(table([key.method], key.seeds))


def _measurements(lab: Lab) -> Iterator[Measurement]:
    for method in lab.preset.methods:
        yield Measurement(lines, ToyKey(method, _SEEDS, THRESHOLDS[method]))


def entries(row: ToyRow) -> _Entries:
    """A line as text."""
    return (*(row.recovery[gate] for gate in GATES), _yes(row.faithful), _yes(row.complete))


def _judge(lab: Lab, measured: Measured) -> Result:
    every = [line for some in measured.values() for line in some]
    found = [ToyRow(**{key: value for key, value in line.items() if key != "as_in_the_paper"}) for line in every]
    rows = [row for direction in ("ns", "dn") for row in found if row.direction == direction]
    theirs = [(*_names(row), *_published(row)) for row in rows]
    return Result(
        tables=[
            Table(
                "What is recovered of each gate",
                (*_COLUMNS, "edges found by seed"),
                [(*_names(row), *entries(row), _found(row)) for row in rows],
                f"full: every one of {_SEEDS} seeds finds both edges of the synthetic gate; none: no seed finds any; "
                "partial: anything else. Faithful and complete: with every seed, on (A1 and A2) + (A3 or A4).",
            )
        ],
        rulings=[one for method in lab.preset.methods for one in rulings([r for r in rows if r.method == method])],
        paper=(Table("What is recovered of each gate (tablogicalandFC)", _COLUMNS, theirs),),
        figures={"What is recovered of synthetic gates (tablogicalandFC)": lambda: _figure(rows)},
        notes=[
            "The models are synthetic, so each method's lines are the same in every preset. Circuits are found by "
            "threshold: a number of edges would decide the answer."
        ],
    )


def rulings(rows: Sequence[ToyRow]) -> list[Ruling]:
    """Of one method: whether all entries are the paper's, and whether one direction or the other recovers each gate."""
    name = METHOD_NAMES[rows[0].method]
    pairs = [pair for row in rows for pair in zip(entries(row), _published(row), strict=True)]
    same = sum(ours == theirs for ours, theirs in pairs)
    covered = sum(any(row.recovery[gate] == "full" for row in rows) for gate in GATES)
    return [
        settle(
            "Ns recovers AND and ADDER gates and Dn recovers OR and ADDER gates; of the other gate, ACDC and Edge "
            "Pruning find a part and EAP nothing.",
            same == len(pairs),
            f"{same} of {len(pairs)} entries are as printed in the paper, with {_SEEDS} seeds each.",
            method=name,
        ),
        settle(
            "Ns and Dn together recover all three gates fully.",
            covered == len(GATES),
            f"One direction or the other recovers {covered} of {len(GATES)} gates fully.",
            method=name,
        ),
    ]


def _published(row: ToyRow) -> _Entries:
    *recovered, faithful, complete = PAPER[row.direction, row.method]
    return (*map(str, recovered), _yes(bool(faithful)), _yes(bool(complete)))


def _names(row: ToyRow) -> tuple[str, str]:
    return DIRECTION_NAMES[row.direction], METHOD_NAMES[row.method]


def _found(row: ToyRow) -> str:
    return "; ".join(f"{gate} {' '.join(map(str, row.found_by_seed[gate]))}" for gate in GATES)


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _figure(rows: Sequence[ToyRow]) -> Figure:
    from matplotlib.patches import Rectangle

    columns = _COLUMNS[2:]
    drawn, axes = panels(1, 1, width=6.0, height=0.6 + 0.36 * len(rows))
    at: Any = axes[0][0]
    for line, row in enumerate(rows):
        for place, (entry, theirs) in enumerate(zip(entries(row), _published(row), strict=True)):
            corner, colour = (place + 0.02, line + 0.04), _SHADES[entry]
            at.add_patch(Rectangle(corner, 0.96, 0.92, color=colour, alpha=0.35, linewidth=0))
            text = entry if entry == theirs else f"{entry} (paper: {theirs})"
            at.text(place + 0.5, line + 0.5, text, ha="center", va="center", fontsize=8)
    at.set_xlim(0, len(columns))
    at.set_ylim(len(rows), 0)
    at.set_xticks([place + 0.5 for place in range(len(columns))], columns)
    at.set_yticks([line + 0.5 for line in range(len(rows))], [" ".join(reversed(_names(row))) for row in rows])
    at.xaxis.tick_top()
    at.tick_params(length=0)
    at.grid(visible=False)
    for side in at.spines.values():
        side.set_visible(False)
    return drawn


EXPERIMENT = Experiment(
    name="capabilities",
    title="What each method recovers of each gate",
    claim="Ns recovers AND and ADDER gates fully, Dn recovers OR and ADDER gates fully, so both are needed.",
    labels=("tablogicalandFC",),
    measurements=_measurements,
    judge=_judge,
)
