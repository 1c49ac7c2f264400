"""Options that several commands share, so that they read the same everywhere."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from gatewise.models.model import Model
    from gatewise.store import Store

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
