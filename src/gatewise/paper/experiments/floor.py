"""What an effect is held against: the KL between the two runs. Less than a small share of it is no effect."""

from __future__ import annotations

from gatewise.evaluation import evaluate
from gatewise.paper.contract import Measured, Measurement, TaskKey, of_kind
from gatewise.paper.lab import Lab


def between_runs(lab: Lab, key: TaskKey) -> float:
    """KL(G || empty circuit), which does what the corrupted run does."""
    (found,) = evaluate(lab.model, lab.held_out(key.task), [lab.model.graph.empty()], random_circuits=0).to_json()
    return float(found["empty"]["kl_from_full"]["mean"])


def runs_to_measure(task: str) -> Measurement:
    return Measurement(between_runs, TaskKey(task))


def floors(lab: Lab, measured: Measured) -> dict[str, float]:
    """The smallest effect that counts, by task."""
    return {key.task: lab.preset.floor * value for key, value in of_kind(measured, TaskKey).items()}
