"""`Report`: what was found about one task in one model, and the files that it is saved to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.graph import Graph
from gatewise.engine.runs.activations import Direction
from gatewise.evaluation import Evaluation, Evaluations
from gatewise.evaluation.prompts import ShownExample
from gatewise.files import write_json
from gatewise.gate_types import TestedLabel
from gatewise.gates.discovery import Agreement, label_agreement
from gatewise.gates.labels import Gates
from gatewise.gates.testing.gate_test import GateTest
from gatewise.gates.testing.pair_tables import labels_by_test
from gatewise.gates.testing.search import GateTests
from gatewise.methods.base import SearchDirection
from gatewise.methods.smallest import SmallestCircuit
from gatewise.report.data import report_data, table_data
from gatewise.report.headline import headline
from gatewise.report.node_behaviour import ShownNodes
from gatewise.report.page import write_page
from gatewise.report.trust import Calibration


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Report:
    """What was found about one task in one model.

    Attributes:
        model: The model's name.
        sizes: Edges per direction, growing; all that follows is about the largest unless it says otherwise.
        choice: How the largest size was chosen; None if it was given.
        searches: The circuits of each search, one per size.
        gates: Both directions' circuits with their set-difference labels.
        curves: Evaluations on held-out pairs by the name of a circuit ("ns|dn", "ns", "dn", "ns+dn"), one per size,
            the last beside random circuits.
        tables: Truth tables of two edges into one port.
        gate_tests: Gates of groups of edges, tested on held-out pairs; None if they could not be tested.
        stability: Jaccard index of the circuits that two halves of the pairs find; None if it was not measured.
        calibration: Exact effects in the whole model, on held-out pairs, of the edges that the page opens with, by
            direction; None if the model cannot be patched edge by edge.
        drawn: What these edges do alone; None if they are all.
        examples: Held-out prompts with the probabilities of their answers.
        nodes: What the strongest nodes do on the first of these prompts.
        problems: What makes the pairs doubtful.
        used_up: Whether the task has no more pairs than these.
        all_gates: Whether all edges were tested, not only those of the strongest gates.
        directed: False if the method has no direction: all circuits are the same one, and there are no gates.
        seeded: Whether another seed finds other circuits.
        testable: Whether the model's edges can be patched one at a time.
        tested_pairs: Held-out pairs for truth tables and exact effects.
        seconds: How long it took.
    """

    model: str
    sizes: tuple[int, ...]
    choice: SmallestCircuit | None = None
    searches: Mapping[SearchDirection, tuple[Circuit, ...]]
    gates: Gates
    curves: Mapping[str, Evaluations]
    tables: tuple[GateTest, ...]
    gate_tests: GateTests | None
    stability: Mapping[Direction, float] | None
    calibration: Mapping[Direction, Calibration] | None
    drawn: Evaluation | None = None
    examples: tuple[ShownExample, ...]
    nodes: ShownNodes
    problems: tuple[str, ...]
    used_up: bool
    all_gates: bool
    directed: bool
    seeded: bool = False
    testable: bool
    tested_pairs: int
    seconds: float

    @property
    def graph(self) -> Graph:
        """The model's graph."""
        return self.gates.graph

    @property
    def evaluation(self) -> Evaluation:
        """The union of both directions at the largest size, which the headline is about."""
        return self.curves["ns|dn"][-1]

    @cached_property
    def tested_labels(self) -> dict[str, TestedLabel]:
        """Labels of single edges by the truth tables."""
        return labels_by_test(self.tables)

    @cached_property
    def agreement(self) -> Agreement:
        """How often set-difference labels and tested labels agree."""
        return label_agreement(self.gates, self.tested_labels)

    @cached_property
    def page_data(self) -> dict[str, Any]:
        """All that the page shows, as plain data; made once."""
        return report_data(self)

    def circuits(self, size: int = -1) -> dict[str, Circuit]:
        """The circuits of one size by name.

        Args:
            size: Index into `sizes`; by default the largest.

        Returns:
            The union "ns|dn", and the circuits of the three searches.
        """
        by_search: dict[str, Circuit] = {name: circuits[size] for name, circuits in self.searches.items()}
        return {"ns|dn": by_search["ns"] | by_search["dn"], **by_search}

    def save(
        self, folder: str | Path, *, command: str = "", next_commands: Sequence[str] = (), export: bool = False
    ) -> list[Path]:
        """Write `report.html`, `gates.safetensors`, `tables.json`, `evaluation.json` and, if any, `gate_tests.json`.

        Args:
            folder: Where to write; made if it is not there.
            command: What to type to repeat the report, for the page.
            next_commands: What to type for each of `next_steps(report)`, in their order; by default the page names the
                arguments of `make_report` to change.
            export: Also write the circuits, as JSON that EAP-IG and MIB tools read.

        Returns:
            The files, the report first.
        """
        folder = Path(folder)
        page = {**self.page_data, "command": command, "next_commands": list(next_commands)}
        files = [folder / name for name in ("report.html", "gates.safetensors", "tables.json", "evaluation.json")]
        write_page(files[0], page)
        self.gates.save(files[1])
        write_json(files[2], [table_data(table) for table in self.tables])
        write_json(files[3], {name: curve.to_json() for name, curve in self.curves.items()}, indent=1)
        if self.gate_tests is not None:
            files.append(folder / "gate_tests.json")
            write_json(files[-1], self.gate_tests.to_json(), indent=1)
        return files + (self.gates.export(folder / "circuits") if export else [])

    def __repr__(self) -> str:
        return f"<Report on {self.model}: {headline(self)}>"
