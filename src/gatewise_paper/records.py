"""What a reproduction has in its folder: for each experiment what it found, on what, and by which command.

Experiments may be run one by one: what an earlier run recorded stays, unless it is run again. Pages are written from
the records alone (`summary.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gatewise.errors import GatewiseError
from gatewise.files import read_json
from gatewise_paper.experiment import Experiment, Outcome
from gatewise_paper.figures import draw
from gatewise_paper.naming import METHOD_NAMES, task_name

Record = Mapping[str, Any]  # of one experiment, as it stands in results.json


def make_record(folder: Path, experiment: Experiment, outcome: Outcome, run: Mapping[str, Any]) -> Record:
    """What an experiment found, and its figures, which are drawn to files. run: its options, settings and versions."""
    names = {}
    for number, (caption, make) in enumerate(outcome.figures.items(), start=1):
        names[caption] = f"{experiment.name}-{number}" if len(outcome.figures) > 1 else experiment.name
        draw(make, folder / "figures", names[caption])
    about = {"title": experiment.title, "claim": experiment.claim, "labels": list(experiment.labels)}
    record: Record = finite({**about, **run, **outcome.to_json(), "figures": names})
    return record


@dataclass(frozen=True)
class Records:
    """What is in a folder: what experiments found, and why others failed."""

    experiments: Mapping[str, Record] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)

    def joined(self, name: str, record: Record, order: Iterable[str]) -> Records:
        """With one experiment more, or anew."""
        records = {**self.experiments, name: record}
        failed = {other: why for other, why in self.failed.items() if other != name}
        return Records({experiment: records[experiment] for experiment in order if experiment in records}, failed)


def read_records(folder: Path, about: Mapping[str, Any]) -> Records:
    """What earlier runs left in a folder; an error if they were about something else."""
    path = folder / "results.json"
    if not path.is_file():
        return Records()
    content = read_json(path, "the results of gatewise reproduce")
    try:
        abouts = {what: content["about"][what] for what in ("preset", "weights")}
        records = Records(dict(content["experiments"]), dict(content["failed"]))
    except (KeyError, TypeError, ValueError) as error:
        raise GatewiseError(
            f"{path} is no results file of gatewise reproduce ({type(error).__name__}: {error}). Name another folder "
            f"by --out, or move that file away."
        ) from error
    for what, earlier in abouts.items():
        if earlier != about[what]:
            raise GatewiseError(
                f"{path} has results of the {what} {earlier}, and these would be of {about[what]}. Name another folder "
                "by --out, or move that file away."
            )
    return records


def check_nothing_is_lost(folder: Path, name: str, before: Record | None, settings: Mapping[str, Any]) -> None:
    """An experiment that is run again replaces what it had: with fewer methods or tasks, that would be lost."""

    def methods_and_tasks(settings: Mapping[str, Any]) -> set[tuple[str, str]]:
        return {(method, task) for method, own in settings["methods"].items() for task in own["edges"]}

    lost = methods_and_tasks(before["settings"]) - methods_and_tasks(settings) if before else set()
    if lost:
        method, task = min(lost)
        raise GatewiseError(
            f"{folder} has results of {name} with {METHOD_NAMES[method]} on {task_name(task)}, which this run would "
            "replace and does not have. Name another folder by --out, or run it with all methods and tasks."
        )


def finite(value: Any) -> Any:
    """Plain data with None in place of NaN and infinities, which JSON does not have."""
    if isinstance(value, Mapping):
        return {str(key): finite(content) for key, content in value.items()}
    if isinstance(value, list | tuple):
        return [finite(content) for content in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
