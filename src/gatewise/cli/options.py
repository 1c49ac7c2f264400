"""What several commands share, so that it reads the same everywhere: options, loading, tables and JSON."""

from __future__ import annotations

import inspect
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gatewise.errors import GatewiseError, GatewiseWarning, printable

if TYPE_CHECKING:
    from rich.console import Console

    from gatewise.compute import Compute
    from gatewise.methods.base import Method
    from gatewise.models.model import Model
    from gatewise.store import Store
    from gatewise.tasks import Task

_MARKS = {"good": ("+", "green"), "note": ("·", "yellow"), "warning": ("!", "red")}
DEFAULT_MODEL = "smollm2-135m"


def _model_names() -> list[str]:
    from gatewise.models.loader import BUILT_IN

    return list(BUILT_IN)


_MODEL_HELP = "A built-in name, a folder, a .gguf file or a Hugging Face id."
ModelArgument = Annotated[str, typer.Argument(help=_MODEL_HELP, autocompletion=_model_names)]
ModelOption = Annotated[str, typer.Option("--model", "-m", help=_MODEL_HELP, autocompletion=_model_names)]
TaskOption = Annotated[
    str,
    typer.Option(
        "--task",
        "-t",
        help="ioi, gt, sa (options: `gatewise tasks list`), or a .csv or .jsonl file of pairs.",
        autocompletion=lambda: ["ioi", "gt", "sa"],
    ),
]
TestOption = Annotated[
    str | None, typer.Option("--test", help="File of pairs to test on [divided off the task's].", show_default=False)
]
SkipBadOption = Annotated[bool, typer.Option("--skip-bad", help="Leave bad lines of a file out, and list them.")]
ExamplesOption = Annotated[int, typer.Option("--examples", "-n", help="How many pairs.")]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of the pairs and of everything random.")]
StoreOption = Annotated[
    str | None, typer.Option("--store", help="Folder, or URL such as s3://bucket/runs, that keeps results.")
]
MethodOption = Annotated[str, typer.Option("--method", help="How to search; `gatewise methods` lists the methods.")]
FaithfulnessOption = Annotated[
    float | None,
    typer.Option(help="Instead of edges: the share of the KL to keep, such as 0.85; --edges are then the most."),
]
SettingsOption = Annotated[list[str] | None, typer.Option("--set", help="A parameter of the method: key=value.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _machine(*names: str, help: str) -> Any:
    return typer.Option(*names, help=help, rich_help_panel="Model and machine")


@dataclass(frozen=True)
class Options:
    """A group of options that several commands have: its fields, of which `options_apart` makes options."""

    @property
    def given(self) -> dict[str, Any]:
        """What differs from the defaults, by name."""
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if getattr(self, field.name) != field.default
        }


def option_words(values: Mapping[str, Any]) -> list[str]:
    """Options as they are written on the command line; None is left out, a list is repeated."""
    words = []
    for name, value in values.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
            continue
        for single in value if isinstance(value, list) else [value]:
            words += [] if single is None else [f"--{option}", str(single)]
    return words


@dataclass(frozen=True)
class Machine(Options):
    """How a model is loaded and read, and what the work may take."""

    device: Annotated[str | None, _machine("--device", help="Where to compute: cpu, cuda, cuda:1, mps [cpu].")] = None
    dtype: Annotated[str | None, _machine("--dtype", help="float32, bfloat16, float16 or float64 [float32].")] = None
    bos: Annotated[bool | None, _machine("--bos/--no-bos", help="Begin prompts with BOS [as the model needs it].")] = (
        None
    )
    first_token: Annotated[
        bool, _machine("--first-token", help="Allow answers of several tokens in files; compare their first tokens.")
    ] = False
    memory: Annotated[str | None, _machine("--memory", help="Budget for activations, such as 8GB [4GB].")] = None

    def compute(self, workers: Workers | None = None, store: Store | None = None) -> Compute:
        """Where the work of a command is done."""
        from gatewise.compute import Compute

        if workers is None:
            return Compute(memory=self.memory, store=store)
        return Compute(memory=self.memory, workers=workers.workers, ray=workers.ray, store=store, gpus=workers.gpus)


@dataclass(frozen=True)
class Workers(Options):
    """Who shares the work."""

    workers: Annotated[
        int | None, _machine("--workers", help="Processes that share the work, one thread each [this one].")
    ] = None
    ray: Annotated[str | None, _machine("--ray", help="Or a Ray cluster: auto, or its address.")] = None
    gpus: Annotated[float, _machine("--gpus", help="GPUs that each worker takes of the Ray cluster.")] = 1.0


def options_apart(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command so that every parameter that is a dataclass of options is replaced by these options."""
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        group, kind = parameter.annotation, inspect.Parameter.KEYWORD_ONLY
        if not is_dataclass(group):
            parameters.append(parameter.replace(kind=kind))
            continue
        groups[name], hints = group, get_type_hints(group, include_extras=True)
        for option in fields(group):
            annotation = hints[option.name]
            parameters.append(inspect.Parameter(option.name, kind, default=option.default, annotation=annotation))

    @wraps(command)
    def run(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{option.name: values.pop(option.name) for option in fields(group)})
        command(**values)

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def open_store(location: str) -> Store:
    """To be opened before models are loaded and searches made: what is wrong with its address is said first."""
    from gatewise.store import Store

    return Store(location)


def load(name: str, machine: Machine) -> Model:
    """Load a model, saying so on standard error."""
    from gatewise.models import load_model

    print(f"loading {printable(name)} ...", file=sys.stderr)
    return load_model(name, dtype=machine.dtype, device=machine.device)


def load_task(
    model: str,
    task: str,
    machine: Machine,
    *,
    examples: int,
    seed: int,
    test_examples: int | None = None,
    test: str | None = None,
    skip_bad: bool = False,
    say_problems: bool = True,
) -> tuple[Model, Task]:
    """A model and a task for it; synthetic models bring their own pairs.

    say_problems: print what is wrong with the pairs, whatever the model; commands that do so themselves say no.
    """
    from gatewise.models.synthetic.logic_model import synthetic_pairs
    from gatewise.tasks.builder import Task, check_task_source
    from gatewise.tasks.builder import task as make_task

    if not model.startswith("synthetic:"):
        for source in (task,) if test is None else (task, test):
            check_task_source(source, skip_bad=skip_bad)  # before a large model is loaded
    elif machine.bos is not None or machine.first_token or test is not None or skip_bad:
        raise GatewiseError(f"{model} reads no text: leave out --bos, --no-bos, --first-token, --test and --skip-bad.")
    loaded = load(model, machine)
    if not model.startswith("synthetic:"):
        reading: dict[str, Any] = {"bos": machine.bos, "first_token": machine.first_token, "skip_bad": skip_bad}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GatewiseWarning)  # they are among the task's problems
            made = make_task(
                task, loaded, examples=examples, test_examples=test_examples, seed=seed, test=test, **reading
            )
        for problem in made.problems() if say_problems else ():
            print(f"warning: {made.name}: {problem}", file=sys.stderr)
        return loaded, made
    pairs = synthetic_pairs(8)  # all alike, and as many as an interval needs
    return loaded, Task(pairs.name, pairs, pairs, seed, bos=False)


def whole_numbers(option: str, *texts: str) -> list[int]:
    """`"100,200", "500"` -> 100, 200, 500; each once, in the order given."""
    try:
        return list(dict.fromkeys(int(size) for text in texts for size in text.replace("_", "").split(",")))
    except ValueError:
        raise GatewiseError(f"{option} {' '.join(texts)}: expected whole numbers such as 500 or 100,200.") from None


def parse_method(name: str, settings: list[str] | None) -> Method:
    """Find a method and give it the parameters in the `key=value` texts of --set; the last of a key's values counts."""
    from gatewise.methods.registry import find_method

    return find_method(name).with_parameters(parse_settings(settings or []))


def parse_settings(settings: list[str]) -> dict[str, str]:
    """Split the `key=value` texts of --set."""
    values = {}
    for text in settings:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals:
            raise GatewiseError(f"--set {text!r} has no '='; write it as key=value.")
        values[key] = value
    return values


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

        def show(message: Warning | str, category: type[Warning], *where: Any, **options: Any) -> None:
            if issubclass(category, GatewiseWarning):
                print(f"warning: {printable(str(message))}", file=sys.stderr)
            else:
                usual(message, category, *where, **options)

        warnings.showwarning = show
        yield


class FoldingTable(Table):
    """A table whose cells are folded where the terminal is narrow, never clipped.

    numbers: all columns but the first hold numbers, which are aligned to the right.
    """

    def __init__(self, *headers: str, numbers: bool = False, **options: Any) -> None:
        super().__init__(*headers, **{"pad_edge": False, **options})
        for column in self.columns[1:] if numbers else ():
            column.justify = "right"

    def add_row(self, *cells: Any, **options: Any) -> None:
        """Add a row; names and contents of files in its texts do not steer the terminal."""
        super().add_row(*map(_harmless, cells), **options)

    def add_column(self, *header: Any, **options: Any) -> None:
        super().add_column(*header, **{"overflow": "fold", **options})


def _harmless(cell: Any) -> Any:
    if isinstance(cell, Text) and cell.plain != printable(cell.plain):
        return Text(printable(cell.plain), style=cell.style)
    return printable(cell) if isinstance(cell, str) else cell


def print_json(content: Any) -> None:
    """Print plain data as JSON, to standard output."""
    print(json.dumps(content, indent=2))


def print_remark(console: Console, level: str, title: str, text: str, answer: str = "") -> None:
    """A remark with its mark: + for what reassures, ! for what warns."""
    mark, colour = _MARKS[level]
    first = f"{title} {answer[0].upper()}{answer[1:]}. " if answer else f"{title} "
    console.print(Padding(Text.assemble((f"{mark} ", colour), (first, "bold"), text), (0, 2)))
