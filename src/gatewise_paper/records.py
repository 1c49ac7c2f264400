"""What a reproduction has in its folder: for each experiment what it found, on what, and by which command.

Experiments may be run one by one: what an earlier run recorded stays, unless it is run again. Pages are written from
the records alone (`summary.py`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gatewise.errors import GatewiseError
from gatewise_paper.experiment import Experiment, Result
from gatewise_paper.figures import draw
from gatewise_paper.naming import METHOD_NAMES, task_name

Recorded = Mapping[str, Any]  # of one experiment, as it stands in results.json


def recorded(folder: Path, experiment: Experiment, result: Result, run: Mapping[str, Any]) -> Recorded:
    """What an experiment found, and its figures, which are drawn to files. run: its options, settings and versions."""
    names = {}
    for number, (caption, make) in enumerate(result.figures.items(), start=1):
        names[caption] = f"{experiment.name}-{number}" if len(result.figures) > 1 else experiment.name
        draw(make, folder / "figures", names[caption])
    about = {"title": experiment.title, "claim": experiment.claim, "labels": list(experiment.labels)}
    found: Recorded = finite({**about, **run, **result.to_json(), "figures": names})
    return found


@dataclass(frozen=True)
class Records:
    """What is in a folder: what experiments found, and why others failed."""

    experiments: Mapping[str, Recorded] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)

    def joined(self, name: str, record: Recorded, order: Iterable[str]) -> Records:
        """With one experiment more, or anew."""
        every = {**self.experiments, name: record}
        return Records(
            {one: every[one] for one in order if one in every},
            {one: why for one, why in self.failed.items() if one != name},
        )

    def with_failed(self, failed: Mapping[str, str]) -> Records:
        return Records(self.experiments, {**self.failed, **failed})


def recorded_before(folder: Path, about: Mapping[str, Any]) -> Records:
    """What earlier runs left in a folder; an error if they were about something else."""
    path = folder / "results.json"
    if not path.is_file():
        return Records()
    content = json.loads(path.read_text())
    for what in ("preset", "weights"):
        known = content["about"][what]
        if known != about[what]:
            said = known if isinstance(known, str) else "an older gatewise"
            raise GatewiseError(
                f"{path} has results of the {what} {said}, and these would be of {about[what]}. Name another folder by "
                "--out, or move that file away."
            )
    return Records(content["experiments"], content["failed"])


def check_nothing_is_lost(folder: Path, name: str, before: Recorded | None, settings: Mapping[str, Any]) -> None:
    """An experiment that is run again replaces what it had: with fewer methods or tasks, that would be lost."""

    def pairs(some: Mapping[str, Any]) -> set[tuple[str, str]]:
        return {(method, task) for method, own in some["methods"].items() for task in own["edges"]}

    lost = pairs(before["settings"]) - pairs(settings) if before else set()
    if lost:
        method, task = min(lost)
        raise GatewiseError(
            f"{folder} has results of {name} with {METHOD_NAMES[method]} on {task_name(task)}, which this run would "
            "replace and does not have. Name another folder by --out, or run it with all methods and tasks."
        )


def finite(value: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
