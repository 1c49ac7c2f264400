"""`gatewise runs`: what a store holds, whether it is sound, and the removal of what nobody needs."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from gatewise.cli.options import FoldingTable, JsonOption, open_store

if TYPE_CHECKING:
    from gatewise.store.maintenance import Entry

runs_app = typer.Typer(
    help="List, show and verify stored results; remove what nobody needs.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
PlaceOption = Annotated[str, typer.Option("--store", "-s", help="The folder or URL that keeps results.")]
EXIT_DAMAGED = 1


@runs_app.command("list")
def list_command(store: PlaceOption, as_json: JsonOption = False) -> None:
    """List results and checkpoints with what they are, the newest last.

    Example:

    ```
    gatewise runs list --store runs/store
    ```
    """
    from gatewise.store.maintenance import list_entries

    found = list_entries(open_store(store))
    if as_json:
        print(json.dumps([_plain(entry) for entry in found], indent=2))
        return
    _print_table(found)
    print(f"{len(found)} entries, {sum(entry.bytes for entry in found):,} bytes")


@runs_app.command("show")
def show_command(
    key: Annotated[str, typer.Argument(help="The key of an entry, or how it begins.")],
    store: PlaceOption,
    as_json: JsonOption = False,
) -> None:
    """Show what was asked and what came out, once its checksums hold.

    Example:

    ```
    gatewise runs show 3f9a --store runs/store
    ```
    """
    from gatewise.store.maintenance import find_entry

    entry = find_entry(open_store(store), key)
    if as_json:
        print(json.dumps({**_plain(entry), **entry.content}, indent=2))
        return
    print(f"{entry.key} ({entry.kind}) in {entry.path}, {entry.bytes:,} bytes, {_when(entry)}")
    Console(soft_wrap=True).print_json(
        json.dumps({k: v for k, v in entry.content.items() if k not in ("key", "kind", "schema")})
    )


@runs_app.command("verify")
def verify_command(store: PlaceOption, as_json: JsonOption = False) -> None:
    """Verify every entry's checksums and content; exit with 1 if one is damaged. Changes nothing.

    Example:

    ```
    gatewise runs verify --store runs/store
    ```
    """
    from gatewise.store.maintenance import list_entries

    found = list_entries(open_store(store))
    bad = [entry for entry in found if entry.problem]
    if as_json:
        said = [{**_plain(entry), "problem": entry.problem} for entry in bad]
        print(json.dumps({"sound": len(found) - len(bad), "bad": said}, indent=2))
    else:
        for entry in bad:
            print(f"{entry.path}: {entry.problem}")
        print(f"{len(found) - len(bad)} sound, {len(bad)} bad")
    if bad:
        raise typer.Exit(EXIT_DAMAGED)


@runs_app.command("gc")
def gc_command(
    store: PlaceOption,
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="Also checkpoints of unfinished searches.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove leftovers of killed processes, damaged entries, results of other schemas, needless checkpoints.

    Example:

    ```
    gatewise runs gc --store runs/store --dry-run
    ```
    """
    from gatewise.store.maintenance import collect, garbage

    found = (garbage if dry_run else collect)(open_store(store), checkpoints=checkpoints)
    if as_json:
        print(json.dumps({"removed": not dry_run, "entries": [_plain(entry) for entry in found]}, indent=2))
        return
    for entry in found:
        print(f"{entry.kind}: {entry.path}")
    print(f"{'would remove' if dry_run else 'removed'} {len(found)}, {sum(entry.bytes for entry in found):,} bytes")


def _plain(entry: Entry) -> dict[str, Any]:
    return {
        "key": entry.key,
        "kind": entry.kind,
        "path": entry.path,
        "bytes": entry.bytes,
        "modified": _when(entry),
        "record": entry.record,
    }


def _when(entry: Entry) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(entry.modified))


def _print_table(found: list[Entry]) -> None:
    table = FoldingTable("key", "what it is", "bytes", "modified", box=None)
    table.columns[2].justify = "right"
    for column in (0, 2, 3):
        table.columns[column].no_wrap = True
    for entry in found:
        what = entry.summary if entry.kind in ("circuits", "json", "checkpoint") else f"{entry.kind}: {entry.summary}"
        table.add_row(entry.key[:8], Text(what), f"{entry.bytes:,}", _when(entry)[:16].replace("T", " "))
    Console().print(table)
