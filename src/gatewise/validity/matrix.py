"""`specificity`: what each task's circuit does for every other task and for ordinary text, beside random circuits.

Two numbers for each circuit and each column, on held-out pairs, by KL at the last position and normalised by the model
on the corrupted prompts: what the circuit alone *keeps*, 1 - KL(G || C) / KL(G || empty), and what its removal
*destroys*, KL(G\\C || G) / KL(empty || G). A circuit is specific if its removal destroys its own task clearly more than
any other column: by more than 5 points, with 95 % confidence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.compute import Compute, current_compute
from gatewise.display import frame
from gatewise.engine.setting import Setting
from gatewise.errors import GatewiseError
from gatewise.evaluation import evaluate
from gatewise.evaluation.evaluations import MEASURES, VERSION
from gatewise.limits import MOST_RANDOM_CIRCUITS, check_count
from gatewise.methods.base import Method, SearchDirection
from gatewise.methods.discovery import discover
from gatewise.models.model import Model
from gatewise.statistics import Interval, percentile_interval, resampling_weights
from gatewise.store.results import ARRAY
from gatewise.tasks import Task
from gatewise.validity.ordinary_text import NAME, text_pairs
from gatewise.validity.parts import Part, clearly_above, matched_circuit, own_part, shared_part

_EDGES = 500  # of each circuit, at most a tenth of the graph, unless another number is asked for
MEAN_TEXT = f"{NAME} (mean ablation)"


@dataclass(frozen=True, eq=False)
class Share:
    """What one set of edges does in one column.

    Attributes:
        recovered: What it keeps alone.
        destroyed: What its removal destroys.
        draws: Of `destroyed`, over resamples of the pairs. [resample]
    """

    recovered: Interval
    destroyed: Interval
    draws: Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Specificity:
    """The matrix of circuits and columns, and the parts that tasks share or have alone.

    Attributes:
        model: Name of the model.
        circuits: The circuit of each task.
        columns: The tasks, then ordinary text by patching and by mean ablation.
        cells: By circuit (rows: the tasks; `random TASK` of equal size; `layers TASK` of equal layers) and column.
        parts: The shared part and the own part of each task, each with what ablation says.
    """

    model: str
    circuits: Mapping[str, Circuit]
    columns: tuple[str, ...]
    cells: Mapping[str, Mapping[str, Share]]
    parts: tuple[Part, ...]

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of the tasks."""
        return tuple(self.circuits)

    def rivals(self, task: str) -> list[str]:
        """List the columns that the circuit's removal does not destroy clearly less than its own task.

        Args:
            task: One of the tasks.

        Returns:
            Columns for which the 95 % interval of the difference does not lie above 5 points; none if the circuit is
            specific.
        """
        own, rivals = self.cells[task][task].draws, []
        for column in self.columns:
            if column != task and not clearly_above(own, self.cells[task][column].draws):
                rivals.append(column)
        return rivals

    def sentence(self, task: str) -> str:
        """Say in one line whether a task's circuit is specific.

        Args:
            task: One of the tasks.

        Returns:
            A sentence with the numbers behind it.
        """
        cells = self.cells[task]
        columns = [task, *(column for column in self.columns if column != task)]
        destroyed = ", ".join(f"{cells[column].destroyed.value:.0%} of {column}" for column in columns)
        recovered = ", ".join(f"{cells[column].recovered.value:.0%} of {column}" for column in columns)
        rivals = self.rivals(task)
        verdict = f"not specific ({', '.join(rivals)} as much)" if rivals else "specific"
        return f"{task}: {verdict}; its removal destroys {destroyed}; alone it keeps {recovered}"

    def to_json(self) -> dict[str, Any]:
        """Make plain data of it.

        Returns:
            Numbers with their intervals, by row and column, and the parts with their edges.
        """
        cells: dict[str, Any] = {}
        for row, columns in self.cells.items():
            cells[row] = {}
            for column, cell in columns.items():
                measures = {"recovered": cell.recovered, "destroyed": cell.destroyed}
                cells[row][column] = {name: [x.value, x.low, x.high] for name, x in measures.items()}
        return {
            "model": self.model,
            "edges": {task: len(circuit) for task, circuit in self.circuits.items()},
            "columns": list(self.columns),
            "cells": cells,
            "specific": {task: not self.rivals(task) for task in self.tasks},
            "sentences": [self.sentence(task) for task in self.tasks],
            "parts": [part.to_json() for part in self.parts],
        }

    def to_frame(self) -> Any:
        """Make a pandas frame of the matrix.

        Returns:
            A row for each circuit and column, with what is kept and what is destroyed.
        """
        rows = []
        for name, columns in self.cells.items():
            for column, cell in columns.items():
                values = {"recovered": cell.recovered.value, "destroyed": cell.destroyed.value}
                rows.append({"circuit": name, "column": column, **values})
        return frame(rows)

    def __repr__(self) -> str:
        lines = [self.sentence(task) for task in self.tasks] + [part.sentence for part in self.parts]
        return f"<Specificity in {self.model}: " + "; ".join(lines) + ">"


def specificity(
    model: Model,
    tasks: Mapping[str, Task] | Sequence[Task],
    circuits: Mapping[str, Circuit] | Sequence[Circuit] | None = None,
    *,
    method: str | Method = "eap",
    direction: SearchDirection = "ns",
    edges: int | None = None,
    random_circuits: int = 2,
    text: bool = True,
    seed: int = 0,
    compute: Compute | None = None,
) -> Specificity:
    """Measure what each task's circuit does for every task and for ordinary text.

    Args:
        model: The model.
        tasks: At least two tasks, or one if ordinary text is compared with. Circuits are measured on their held-out
            pairs.
        circuits: One for each task, in their order or by name; None to search for them.
        method: As for `discover`, if circuits are searched for.
        direction: As for `discover`.
        edges: Of each circuit; by default 500, at most a tenth of the graph's.
        random_circuits: Random circuits of each kind to average over.
        text: Whether to compare with ordinary text; left out where the model has no tokenizer or knows too few words.
        seed: Of the searches and random circuits.
        compute: Where to run. With a store, what was measured before is read there.

    Returns:
        The matrix, and the parts that circuits share or have alone.

    Raises:
        GatewiseError: There is nothing to compare with, or circuits and tasks do not match.
    """
    named = _named(tasks)
    check_count("random_circuits", random_circuits, 1, MOST_RANDOM_CIRCUITS)
    columns = _columns(model, named, text, compute)
    if len(columns) < 2:
        raise GatewiseError("specificity compares tasks: give at least two, or text=True with a model that reads text.")
    if circuits is None:
        size = min(_EDGES, max(1, model.graph.n_edges // 10)) if edges is None else edges
        circuits = {
            name: discover(model, task, method, direction, edges=size, seed=seed, compute=compute)
            for name, task in named.items()
        }
    chosen = dict(circuits) if isinstance(circuits, Mapping) else dict(zip(named, circuits, strict=False))
    if set(chosen) != set(named) or (not isinstance(circuits, Mapping) and len(circuits) != len(named)):
        raise GatewiseError(
            f"specificity needs one circuit for each task; got circuits of {', '.join(chosen) or 'nothing'} for "
            f"{', '.join(named)}."
        )
    rows = {task: [chosen[task]] for task in named}
    draws = range(seed, seed + random_circuits)
    for task in named:
        rows[f"random {task}"] = [model.graph.random_circuit(len(chosen[task]), draw) for draw in draws]
        rows[f"layers {task}"] = [matched_circuit(chosen[task], draw) for draw in draws]
    shared = {"shared": shared_part(list(chosen.values()))} if len(named) > 1 else {}
    own = {f"own {task}": own_part(task, chosen) for task in named} if len(named) > 1 else {}
    parts = {name: part for name, part in (shared | own).items() if part}
    for name, part in parts.items():
        rows[name] = [part]
        rows[f"layers {name}"] = [matched_circuit(part, draw, others=True) for draw in draws]
    cells: dict[str, dict[str, Share]] = {name: {} for name in rows}
    for column, setting in columns.items():
        for name, cell in _measure(setting, rows, current_compute(compute)).items():
            cells[name][column] = cell
    judged = [Part.of(name, part, cells, tuple(named), tuple(columns)) for name, part in parts.items()]
    matrix = {name: cells[name] for name in rows if name not in parts and name.removeprefix("layers ") not in parts}
    return Specificity(model.name, chosen, tuple(columns), matrix, tuple(judged))


def _named(tasks: Mapping[str, Task] | Sequence[Task]) -> dict[str, Task]:
    if isinstance(tasks, Mapping):
        return dict(tasks)
    named = {task.name: task for task in tasks}
    if len(named) != len(tasks):
        raise GatewiseError(
            f"tasks of the same name: {', '.join(task.name for task in tasks)}. Give a dict with names."
        )
    return named


def _columns(model: Model, tasks: Mapping[str, Task], text: bool, compute: Compute | None) -> dict[str, Setting]:
    columns = {name: Setting.of(model, task, "test", compute=compute) for name, task in tasks.items()}
    pairs = text_pairs(model) if text else None
    if pairs is not None:
        columns[NAME] = Setting.of(model, pairs, compute=compute)
        columns[MEAN_TEXT] = Setting.of(model, pairs, ablation="mean", compute=compute)
    return columns


def _measure(setting: Setting, rows: Mapping[str, Sequence[Circuit]], compute: Compute) -> dict[str, Share]:
    """Run all circuits and their complements in one column; random circuits of a row are averaged."""
    # Random circuits of equal size are often the same ones: each is run once.
    circuits = list(dict.fromkeys(circuit for group in rows.values() for circuit in group))

    def run() -> Tensor:
        evaluations = evaluate(
            setting.model, setting, circuits, random_circuits=0, denoise=False, names=[""] * len(circuits)
        )
        return torch.stack([_divergences(evaluation.values) for evaluation in evaluations])

    store = compute.open_store()
    facts = {
        "what": f"specificity: {setting.pairs.name} in {setting.model.name}",
        "weights": setting.model.fingerprint,
        "pairs": setting.pairs.fingerprint,
        "ablation": setting.ablation,
        "circuits": [circuit.fingerprint for circuit in circuits],
        "memory": setting.memory,
        "version": VERSION,
    }
    values = run() if store is None else store.remember(facts, run, ARRAY)  # [circuit, part, example]
    position = {circuit: index for index, circuit in enumerate(circuits)}
    cells = {}
    for name, group in rows.items():
        alone, without, empty_from, empty_to = values[[position[circuit] for circuit in group]].mean(dim=0)
        recovered, _ = _ratio(empty_from - alone, empty_from)
        destroyed, draws = _ratio(without, empty_to)
        cells[name] = Share(recovered, destroyed, draws)
    return cells


def _divergences(values: Tensor | None) -> Tensor:
    """KL from the model of circuit and empty one, KL to the model of the complement and the empty one. [4, example]"""
    assert values is not None  # evaluate keeps them
    away, back = MEASURES.index("kl_from_full"), MEASURES.index("kl_to_full")
    circuit, complement, _, empty = values[:4]
    return torch.stack([circuit[away], complement[back], empty[away], empty[back]])


def _ratio(top: Tensor, bottom: Tensor) -> tuple[Interval, Tensor]:
    """The ratio of two means with its interval, and its draws over resamples of the pairs."""
    weights = resampling_weights(len(top))
    draws = (top @ weights) / (bottom @ weights)
    low, high = percentile_interval(draws)
    return Interval(float(top.sum() / bottom.sum()), float(low), float(high), len(top)), draws
