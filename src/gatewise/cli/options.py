"""What several commands share, so that it reads the same everywhere: options, and what becomes of their texts."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gatewise.errors import GatewiseError, GatewiseWarning

if TYPE_CHECKING:
    from gatewise.models.model import Model
    from gatewise.store import Store
    from gatewise.tasks import Task

DEFAULT_MODEL = "smollm2-135m"


def _model_names() -> list[str]:
    from gatewise.models.loader import BUILT_IN

    return list(BUILT_IN)


ModelArgument = Annotated[
    str, typer.Argument(help="A built-in name, a Hugging Face id or a folder.", autocompletion=_model_names)
]
TaskOption = Annotated[
    str,
    typer.Option(
        "--task",
        "-t",
        help="ioi, gt, sa (options: `gatewise tasks list`), or a .csv or .jsonl file of pairs.",
        autocompletion=lambda: ["ioi", "gt", "sa"],
    ),
]
ExamplesOption = Annotated[int, typer.Option("--examples", "-n", help="How many pairs.")]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of the pairs and of everything random.")]
MemoryOption = Annotated[str | None, typer.Option("--memory", help="Budget for activations, such as 8GB [4GB].")]
StoreOption = Annotated[
    str | None, typer.Option("--store", help="Folder, or URL such as s3://bucket/runs, that keeps results.")
]
MethodOption = Annotated[str, typer.Option("--method", help="How to search; `gatewise methods` lists the methods.")]
SettingsOption = Annotated[list[str] | None, typer.Option("--set", help="A parameter of the method: key=value.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def open_store(place: str) -> Store:
    """To be opened before models are loaded and searches made: what is wrong with its address is said first."""
    from gatewise.store import Store

    return Store(place)


def load(name: str) -> Model:
    """Load a model, saying so on standard error."""
    from gatewise.models import load_model

    print(f"loading {name} ...", file=sys.stderr)
    return load_model(name)


def load_task(model: str, task: str, *, examples: int, seed: int) -> tuple[Model, Task]:
    """A model and a task for it; planted models bring their own pairs."""
    from gatewise.models.planted import planted_pairs
    from gatewise.tasks import Task
    from gatewise.tasks import task as make_task

    loaded = load(model)
    if model.startswith("planted:"):
        pairs = planted_pairs(8)  # all alike, and as many as an interval needs
        return loaded, Task(pairs.name, pairs, pairs, seed, bos=False)
    return loaded, make_task(task, loaded, examples=examples, seed=seed)


def whole_numbers(option: str, *texts: str) -> list[int]:
    """`"100,200", "500"` -> 100, 200, 500; each once, in the order given."""
    try:
        return list(dict.fromkeys(int(size) for text in texts for size in text.replace("_", "").split(",")))
    except ValueError:
        raise GatewiseError(f"{option} {' '.join(texts)}: expected whole numbers such as 500 or 100,200.") from None


def parse_parameters(method: str, settings: list[str]) -> dict[str, Any]:
    """The parameters in the `key=value` texts of --set; the last of several values for a key counts."""
    from gatewise.methods.parameters import parse_parameter
    from gatewise.methods.registry import find_method

    config, found = find_method(method).config, {}
    for text in settings:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals:
            raise GatewiseError(f"--set {text!r} has no '='; write it as key=value.")
        found[key] = parse_parameter(method, config, key, value)
    return found


def make_folder(folder: Path) -> None:
    """Before the work: a search may take hours."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise GatewiseError(f"cannot make the folder {folder}: {error.strerror}. Give another with --out.") from error


@contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Our own warnings as one line each, without the place in the code."""
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, GatewiseWarning):
                print(f"warning: {message}", file=sys.stderr)
            else:
                usual(message, category, *where, **more)

        warnings.showwarning = show
        yield
