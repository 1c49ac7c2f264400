"""`gatewise models`: what can be loaded by name, what is already here, and fetching the rest."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gatewise.cli.options import FoldingTable, JsonOption, print_json
from gatewise.errors import GatewiseError
from gatewise.files import cache_folder
from gatewise.models.download import DOWNLOADS, cached, fetch
from gatewise.models.loader import BUILT_IN, TINY_FOLDER

models_app = typer.Typer(invoke_without_command=True)


@dataclass(frozen=True)
class ListedModel:
    """One line of the list."""

    name: str
    edges: int
    state: str  # cached, not fetched, built in
    megabytes: float | None  # on disk, or to download; None if made in code
    description: str


def entries() -> list[ListedModel]:
    """The built-in models as they are on this machine."""
    listed = []
    for model in BUILT_IN.values():
        state, size = _state(model.name)
        megabytes = None if size is None else round(size / 1e6, 1)
        listed.append(ListedModel(model.name, model.edges, state, megabytes, model.description))
    return listed


def _state(name: str) -> tuple[str, int | None]:
    if name in DOWNLOADS:
        folder = cached(name)
        return ("not fetched", DOWNLOADS[name].size) if folder is None else ("cached", _size(folder))
    return "built in", _size(TINY_FOLDER) if name == "tiny" else None


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*"))


@models_app.callback()
def list_models(context: typer.Context, as_json: JsonOption = False) -> None:
    """List the built-in models, and fetch them: where they are, how large they are, how many edges they have.

    Example:

    ```
    gatewise models
    ```
    """
    if context.invoked_subcommand is not None:
        return
    if as_json:
        print_json({"cache": str(cache_folder()), "models": [asdict(entry) for entry in entries()]})
        return
    table = FoldingTable("model", "edges", "state", "size", "what it is", box=None)
    for entry in entries():
        size = "" if entry.megabytes is None else f"{entry.megabytes:,.1f} MB"
        table.add_row(entry.name, f"{entry.edges:,}", entry.state, size, entry.description)
    console = Console()
    console.print(table)
    console.print("Any Hugging Face id or local folder of a supported architecture can be loaded as well.")
    console.print(f"Cache: {cache_folder()} (GATEWISE_CACHE moves it)", soft_wrap=True, highlight=False)


@models_app.command("get")
def get_model(name: Annotated[str, typer.Argument(help="A model from the list.")], as_json: JsonOption = False) -> None:
    """Fetch a model into the cache.

    Example:

    ```
    gatewise models get tiny
    ```
    """
    if name not in BUILT_IN:
        raise GatewiseError(f"there is no built-in model {name!r}; built in are {', '.join(BUILT_IN)}.")
    folder = fetch(name) if name in DOWNLOADS else None
    if as_json:
        print_json({"name": name, "folder": None if folder is None else str(folder)})
    else:
        print(f"{name} comes with gatewise: nothing to fetch." if folder is None else f"{name} is in {folder}")
