"""Capabilities: what each method recovers of each gate, and what that does to the circuit (tablogicalandFC).

On planted models, whose gates are known. See `gatewise.paper.toy`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gatewise.paper.contract import (
    DIRECTION_NAMES,
    METHOD_NAMES,
    Experiment,
    Job,
    Judgement,
    Outcome,
    Table,
    Verdict,
)
from gatewise.paper.figures import panels
from gatewise.paper.toy import GATES, PAPER, THRESHOLDS, ToyRow, table, to_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gatewise.paper.lab import Lab
    from gatewise.paper.presets import Preset

_SEEDS = 6
_COLUMNS = ("direction", "method", *GATES, "faithful", "complete")
_SHADES = {"full": "#009E73", "yes": "#009E73", "partial": "#E69F00", "none": "#D55E00", "no": "#D55E00"}
_Entries = tuple[str, ...]  # of one line: a recovery for each gate, faithful, complete


def measure_rows(lab: Lab, method: str) -> list[ToyRow]:
    """A method's lines of the table, through the store."""
    asked = {"method": method, "seeds": _SEEDS, "threshold": THRESHOLDS[method]}
    found = lab.remember("capabilities", asked, lambda: to_json(table([method], _SEEDS)))
    return [ToyRow(**{key: value for key, value in row.items() if key != "as_in_the_paper"}) for row in found]


def entries(row: ToyRow) -> _Entries:
    """A line as text."""
    return (*(row.recovery[gate] for gate in GATES), _yes(row.faithful), _yes(row.complete))


def judge_rows(rows: Sequence[ToyRow]) -> tuple[Judgement, int, int]:
    """Whether all entries are the paper's; how many are, and of how many."""
    pairs = [pair for row in rows for pair in zip(entries(row), _published(row.direction, row.method), strict=True)]
    same = sum(ours == theirs for ours, theirs in pairs)
    if not pairs:
        return "cannot be judged", 0, 0
    share = same / len(pairs)
    return ("holds" if share == 1 else "holds partly" if share > 0.5 else "does not hold"), same, len(pairs)


def _run(lab: Lab) -> Outcome:
    found = {row_key(row): row for method in lab.preset.methods for row in measure_rows(lab, method)}
    rows = [found[direction, method] for direction in ("ns", "dn") for method in lab.preset.methods]
    judgement, same, total = judge_rows(rows)
    both = [
        (ns, dn)
        for ns in rows
        for dn in rows
        if ns.direction == "ns" and dn.direction == "dn" and ns.method == dn.method
    ]
    covered = sum(all("full" in (ns.recovery[gate], dn.recovery[gate]) for gate in GATES) for ns, dn in both)
    theirs = [(*_names(row), *_published(row.direction, row.method)) for row in rows]
    return Outcome(
        tables=[
            Table(
                "What is recovered of each gate",
                (*_COLUMNS, "edges found by seed"),
                [(*_names(row), *entries(row), _found(row)) for row in rows],
                f"full: every one of {_SEEDS} seeds finds both edges of the planted gate; none: no seed finds any; "
                "partial: anything else. Faithful and complete: with every seed, on (A1 and A2) + (A3 or A4).",
            )
        ],
        verdicts=[
            Verdict(
                "Ns recovers AND and ADDER gates and Dn recovers OR and ADDER gates; of the other gate, ACDC and Edge "
                "Pruning find a part and EAP nothing.",
                judgement,
                f"{same} of {total} entries are as printed in the paper, with {_SEEDS} seeds each.",
            ),
            Verdict(
                "Ns and Dn together recover all three gates fully.",
                "holds" if covered == len(both) else "holds partly" if covered else "does not hold",
                f"Every gate is recovered fully by one direction or the other for {covered} of {len(both)} methods.",
            ),
        ],
        paper=(Table("What is recovered of each gate (tablogicalandFC)", _COLUMNS, theirs),),
        figures={"What is recovered of planted gates (tablogicalandFC)": lambda: _figure(rows)},
        notes=[
            "The models are planted, so this is the same in every preset. Circuits are found by threshold: a number of "
            "edges would decide the answer."
        ],
    )


def row_key(row: ToyRow) -> tuple[str, str]:
    return row.direction, row.method


def _published(direction: str, method: str) -> _Entries:
    *recovered, faithful, complete = PAPER[direction, method]
    return (*map(str, recovered), _yes(bool(faithful)), _yes(bool(complete)))


def _names(row: ToyRow) -> tuple[str, str]:
    return DIRECTION_NAMES[row.direction], METHOD_NAMES[row.method]


def _found(row: ToyRow) -> str:
    return "; ".join(f"{gate} {' '.join(map(str, row.found_by_seed[gate]))}" for gate in GATES)


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _figure(rows: Sequence[ToyRow]) -> Figure:
    columns = _COLUMNS[2:]
    drawn, axes = panels(1, 1, width=6.0, height=0.6 + 0.36 * len(rows))
    at: Any = axes[0][0]
    for line, row in enumerate(rows):
        for place, entry in enumerate(entries(row)):
            at.add_patch(_square(place, line, _SHADES[entry]))
            same = entry == _published(row.direction, row.method)[place]
            text = entry if same else f"{entry} (paper: {_published(row.direction, row.method)[place]})"
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


def _square(x: float, y: float, colour: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x + 0.02, y + 0.04), 0.96, 0.92, color=colour, alpha=0.35, linewidth=0)


def _jobs(preset: Preset) -> list[Job]:
    return [Job(measure_rows, (method,)) for method in preset.methods]


EXPERIMENT = Experiment(
    name="capabilities",
    title="What each method recovers of each gate",
    claim="Ns recovers AND and ADDER gates fully, Dn recovers OR and ADDER gates fully, so both are needed.",
    labels=("tablogicalandFC",),
    run=_run,
    jobs=_jobs,
)
