"""What measures lie between: the full graph and the empty circuit, which does what the corrupted run does.

KL is normalised by the KL between the two; an effect below a small share of it is none.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from gatewise.evaluation.evaluations import behaviours
from gatewise_paper.claims import EFFECT_FLOOR
from gatewise_paper.experiment import Measurement, TaskKey
from gatewise_paper.lab import Lab
from gatewise_paper.measured import Measured, of_kind

FULL, EMPTY = "whole model", "empty circuit"
Baselines = dict[str, tuple[float, float]]  # by task: a measure of the full graph, and of the empty circuit


def measure(lab: Lab, key: TaskKey) -> dict[str, Any]:
    """What both do on the held-out pairs."""
    graph = lab.model.graph
    full, empty = behaviours(lab.setting(key.task), [graph.full(), graph.empty()])
    return {"full": asdict(full), "empty": asdict(empty)}


def baseline_measurement(task: str) -> Measurement:
    return Measurement(measure, TaskKey(task))


def read_baselines(measured: Measured, name: str, kind: type = TaskKey) -> Baselines:
    """One measure of the full graph and of the empty circuit."""
    return {
        key.task: (float(both["full"][name]["mean"]), float(both["empty"][name]["mean"]))
        for key, both in of_kind(measured, kind).items()
    }


def effect_floors(measured: Measured) -> dict[str, float]:
    """The smallest change of KL that counts, by task."""
    return {task: EFFECT_FLOOR * empty for task, (_, empty) in read_baselines(measured, "kl_from_full").items()}
