"""What measures lie between: the full graph and the empty circuit, which does what the corrupted run does.

An effect is held against the KL between the two: less than a small share of it is none.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from gatewise.evaluation.evaluations import behaviours
from gatewise_paper.experiment import Measured, Measurement, TaskKey, of_kind
from gatewise_paper.lab import Lab


def ends(lab: Lab, key: TaskKey) -> dict[str, Any]:
    """What both do on the held-out pairs."""
    graph = lab.model.graph
    full, empty = behaviours(lab.setting(key.task), [graph.full(), graph.empty()])
    return {"full": asdict(full), "empty": asdict(empty)}


def ends_to_measure(task: str) -> Measurement:
    return Measurement(ends, TaskKey(task))


def ends_of(measured: Measured, name: str) -> dict[str, tuple[float, float]]:
    """One measure of the full graph and of the empty circuit, by task."""
    found = of_kind(measured, TaskKey).items()
    return {key.task: (float(one["full"][name]["mean"]), float(one["empty"][name]["mean"])) for key, one in found}


def floors(lab: Lab, measured: Measured) -> dict[str, float]:
    """The smallest effect that counts, by task."""
    return {task: lab.preset.floor * empty for task, (_, empty) in ends_of(measured, "kl_from_full").items()}
