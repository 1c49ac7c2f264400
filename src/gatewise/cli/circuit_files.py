"""What circuit files say about themselves: the task, model and pairs they were found with, beside what is asked."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gatewise.cli.options import Machine, load_task
from gatewise.errors import GatewiseError

if TYPE_CHECKING:
    from gatewise.circuits.circuit import Circuit
    from gatewise.engine.runs.activations import Ablation
    from gatewise.models.model import Model
    from gatewise.tasks import Task

Records = Mapping[str, Mapping[str, Any]]  # file -> its circuit's provenance
_MEASURED = ("logit_diff", "kl")  # metrics that an evaluation has anyway


@dataclass(frozen=True)
class Recorded:
    """What circuits are measured on."""

    model: Model
    task: Task
    ablation: Ablation | None


def read_circuits(paths: list[Path]) -> dict[str, Circuit | None]:
    """Read circuit files; None for a bare list of edges, which only a model's graph gives a meaning."""
    from gatewise.circuits.circuit import Circuit
    from gatewise.files import read_json

    circuits: dict[str, Circuit | None] = {}
    for path in paths:
        bare = isinstance(read_json(path, "a circuit file"), list)
        circuits[str(path)] = None if bare else Circuit.load(path)
    return circuits


def load_recorded(
    records: Records,
    machine: Machine,
    *,
    model: str | None = None,
    task: str | None = None,
    examples: int | None = None,
    seed: int | None = None,
    test: str | None = None,
    skip_bad: bool = False,
) -> Recorded:
    """Load what the files are about, or what was asked for in its place, with a warning where the two differ.

    Pairs are drawn as for the search, so that no pair that was searched on is tested on.
    """
    from gatewise.tasks.registry import RECIPES, parse_name

    model_name = str(_agreed("model", model, records))
    task_name = _with_path(str(_agreed("task", task, records)), records)
    bos = machine.bos if machine.bos is not None else _agreed("bos", None, records, default=None)
    chosen_seed = int(_agreed("seed", seed, records, default=0))
    searched = int(_agreed("examples", None, records, default=64))
    built_in = parse_name(task_name)[0] in RECIPES
    synthetic = model_name.startswith("synthetic:")
    loaded, made = load_task(
        model_name,
        task_name,
        machine if synthetic else replace(machine, bos=bos),
        # A file of pairs is divided in the proportion of both halves, a built-in task draws them apart.
        examples=searched if examples is None or built_in else examples,
        test_examples=(examples or 64) if built_in else None,
        seed=chosen_seed,
        test=test,
        skip_bad=skip_bad,
        say_problems=False,
    )
    _compare_with(loaded, made, records)
    ablation = _agreed("ablation", None, records, default=None)
    return Recorded(loaded, made, cast("Ablation | None", ablation))


def _agreed(fact: str, given: Any, records: Records, default: Any = ...) -> Any:
    """What was given, or what all files say; a warning if these differ, an error if the files do."""
    said = {file: record[fact] for file, record in records.items() if record.get(fact) is not None}
    if given is not None:
        for file, value in said.items():
            if _name(value) != _name(given):
                print(f"warning: {file} is of the {fact} {value}, and is measured on {given}.", file=sys.stderr)
        return given
    if len({_name(value) for value in said.values()}) > 1:
        listed = ", ".join(f"{value} ({file})" for file, value in said.items())
        raise GatewiseError(f"the files differ in their {fact}: {listed}. Say which is meant with --{fact}.")
    if said:
        return next(iter(said.values()))
    if default is ...:
        raise GatewiseError(f"{next(iter(records))} does not say which {fact} it is for; say it with --{fact}.")
    return default


def _name(value: Any) -> Any:
    """What facts are compared by: of a path its last part, since that is all that files hold."""
    return Path(value).name if isinstance(value, str) else value


def _with_path(task: str, records: Records) -> str:
    """The task with the path of its file, which is here or beside a circuit."""
    from gatewise.tasks.registry import RECIPES, parse_name

    short, _ = parse_name(task)
    if short in RECIPES or Path(short).is_file():
        return task
    for file in records:
        beside = Path(file).parent / short
        if Path(short).suffix and beside.is_file():
            return str(beside) + task.removeprefix(short)
    return task  # whose error names the file


def _compare_with(model: Model, task: Task, records: Records) -> None:
    """Warn where weights, pairs or metric are not those of the search."""
    for file, record in records.items():
        if record.get("weights") not in (None, model.fingerprint):
            print(f"warning: {file} was found in other weights than those of {model.name}.", file=sys.stderr)
        if record.get("task") == task.name and record.get("data") not in (None, task.train.fingerprint):
            print(
                f"warning: {file} was searched on other pairs of {task.name} than these would be (its file, --examples "
                f"or --seed differ), so that some of them may be tested on here.",
                file=sys.stderr,
            )
        metric = (record.get("metric") or {}).get("name", _MEASURED[0])
        if metric not in _MEASURED:
            print(f"warning: {file} was searched with the metric {metric}; KL and logits are shown.", file=sys.stderr)


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """In what two searches differ, a sentence each, by the provenance of their circuits."""
    facts = ("model", "weights", "task", "data", "method", "parameters", "direction", "metric", "ablation", "seed")
    sentences = []
    for fact in facts:
        if fact in first and fact in second and first[fact] != second[fact]:
            hidden = fact in ("weights", "data")  # hashes say nothing to people
            sentences.append(f"{fact} differ" if hidden else f"{fact} {_plain(first[fact])} and {_plain(second[fact])}")
    return sentences


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return str(value["name"]) if "name" in value else ", ".join(f"{key}={part}" for key, part in value.items())
    return "the method's own" if value is None else str(value)
