"""How small each method's circuit can be: sizes by faithfulness of a sweep, summarised over its seeds, and drawn."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gatewise.circuits.drawing import check_can_draw
from gatewise.statistics import Interval, geometric_interval
from gatewise.sweep.sweep_table import TableRow

_SEARCH = ("model", "task", "method", "direction", "faithfulness")
_LINES = {"ns": "-", "dn": ":", "ns+dn": "--"}
HEADERS = ("method", "faithful", "edges", "seeds", "kept Ns", "kept Dn", "logit diff", "acc")


@dataclass(frozen=True)
class SizeSummary:
    """The smallest circuits of one method that are as faithful as asked for, over seeds.

    Attributes:
        model: The model.
        task: The task.
        method: The method.
        direction: Of the search.
        faithfulness: The share of the KL that was asked for.
        seeds: How many searches, each on pairs of its own.
        reached: How many of them found such a circuit.
        most_edges: The largest size that was allowed.
        edges: Geometric mean of their sizes, with its interval over seeds; None if none was reached.
        share_ns: Of the KL that these circuits keep on held-out pairs, by noising; of the nearest ones if none was
            reached.
        share_dn: The same by denoising.
        logit_diff: Their normalised logit difference.
        accuracy: Their pairwise accuracy.
    """

    model: str
    task: str
    method: str
    direction: str
    faithfulness: float
    seeds: int
    reached: int
    most_edges: int
    edges: Interval | None
    share_ns: float
    share_dn: float
    logit_diff: float
    accuracy: float

    def cells(self) -> tuple[str, ...]:
        """Write it as a line of a table.

        Returns:
            Texts, in the order of `HEADERS`.
        """
        if self.edges is None:
            edges = f"not below {self.most_edges:,}"
        else:
            edges = f"{self.edges.value:,.0f}"
            if self.edges.n > 1:
                edges += f" ({self.edges.low:,.0f} to {self.edges.high:,.0f})"
        shares = (f"{share:.0%}" for share in (self.share_ns, self.share_dn, self.logit_diff, self.accuracy))
        name = f"{self.method} {self.direction}"
        return name, f"{self.faithfulness:.0%}", edges, f"{self.reached} of {self.seeds}", *shares


def compare_sizes(rows: Iterable[TableRow]) -> list[SizeSummary]:
    """Summarise circuits by faithfulness over seeds.

    Args:
        rows: Of a sweep, such as `SweepReport.rows`; rows without a faithfulness are left out.

    Returns:
        A summary for each model, task, method, direction and faithfulness, in the order of the rows.
    """
    groups: dict[tuple[Any, ...], list[TableRow]] = {}
    for row in rows:
        if row.get("faithfulness") is not None:
            groups.setdefault(tuple(row[name] for name in _SEARCH), []).append(row)
    return [_summarise(group) for group in groups.values()]


def _summarise(group: Sequence[TableRow]) -> SizeSummary:
    reached = [row for row in group if row["reached"]]
    measured = reached or group

    def mean(name: str) -> float:
        return float(statistics.mean(row[name] for row in measured))

    return SizeSummary(
        **{name: group[0][name] for name in _SEARCH},
        seeds=len(group),
        reached=len(reached),
        most_edges=group[0]["most_edges"],
        edges=geometric_interval([row["edges"] for row in reached]) if reached else None,
        share_ns=mean("recovered"),
        share_dn=mean("recovered_dn"),
        logit_diff=mean("recovered_logit_diff"),
        accuracy=mean("circuit_accuracy"),
    )


def as_markdown(summaries: Sequence[SizeSummary]) -> str:
    """Write a table for each model and task.

    Args:
        summaries: What `compare_sizes` gives.

    Returns:
        Markdown.
    """
    lines = []
    for model, task in dict.fromkeys((summary.model, summary.task) for summary in summaries):
        lines += [
            f"### {task} in {model}",
            "",
            f"| {' | '.join(HEADERS)} |",
            f"| --- |{' ---: |' * (len(HEADERS) - 1)}",
        ]
        for summary in summaries:
            if (summary.model, summary.task) == (model, task):
                lines.append(f"| {' | '.join(summary.cells())} |")
        lines.append("")
    return "\n".join(lines)


def draw_sizes(summaries: Sequence[SizeSummary], path: str | Path) -> None:
    """Draw sizes against faithfulness, with intervals over seeds; a hollow mark is a goal that no seed reached.

    Args:
        summaries: What `compare_sizes` gives.
        path: File to write; its suffix decides the format: .svg, .pdf or .png.

    Raises:
        GatewiseError: If the format is unknown or matplotlib is not installed.
    """
    path = Path(path)
    check_can_draw(path)
    import matplotlib
    from matplotlib.figure import Figure

    panels = list(dict.fromkeys((summary.model, summary.task) for summary in summaries))
    methods = list(dict.fromkeys(summary.method for summary in summaries))
    figure = Figure(figsize=(4.2 * len(panels), 3.6), layout="constrained")
    for plot, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        of_panel = [summary for summary in summaries if (summary.model, summary.task) == panel]
        for name, direction in dict.fromkeys((summary.method, summary.direction) for summary in of_panel):
            line = [summary for summary in of_panel if (summary.method, summary.direction) == (name, direction)]
            _draw_line(plot, line, f"C{methods.index(name)}")
        plot.set(title=f"{panel[1]}, {panel[0]}", yscale="log", xlabel="share of the KL to keep", ylabel="edges")
        plot.grid(alpha=0.3)
        plot.legend(fontsize=8)
    with matplotlib.rc_context({"svg.hashsalt": "gatewise"}):  # the same file for the same numbers
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _draw_line(plot: Any, line: Sequence[SizeSummary], colour: str) -> None:
    line = sorted(line, key=lambda summary: summary.faithfulness)
    reached = [(summary.faithfulness, summary.edges) for summary in line if summary.edges is not None]
    sizes = [edges.value for _, edges in reached]
    spread = [[max(0.0, edges.value - (edges.low if edges.n > 1 else edges.value)) for _, edges in reached]]
    spread.append([max(0.0, (edges.high if edges.n > 1 else edges.value) - edges.value) for _, edges in reached])
    plot.errorbar(
        [share for share, _ in reached],
        sizes,
        yerr=spread,
        label=f"{line[0].method} {line[0].direction}",
        color=colour,
        linestyle=_LINES[line[0].direction],
        marker="o",
        markersize=4,
        capsize=3,
    )
    missed = [summary for summary in line if summary.edges is None]
    shares, most = [summary.faithfulness for summary in missed], [summary.most_edges for summary in missed]
    plot.plot(shares, most, color=colour, linestyle="", marker="^", fillstyle="none")
