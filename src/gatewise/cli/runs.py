"""`gatewise runs`: what a store holds, whether it is sound, and the removal of what nobody needs."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from gatewise.cli.options import FoldingTable, JsonOption, open_store, print_json
from gatewise.errors import printable

if TYPE_CHECKING:
    from gatewise.store.maintenance import Entry

runs_app = typer.Typer(
    help="List, show and verify stored results; remove what nobody needs.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
StoreLocation = Annotated[str, typer.Option("--store", "-s", help="The folder or URL that keeps results.")]
EXIT_DAMAGED = 1


@runs_app.command("list")
def list_command(store: StoreLocation, as_json: JsonOption = False) -> None:
    """List results and checkpoints with what they are, the newest last.

    Example:

    ```
    gatewise runs list --store runs/store
    ```
    """
    from gatewise.store.maintenance import list_entries

    entries = list_entries(open_store(store))
    if as_json:
        print_json([_plain(entry) for entry in entries])
        return
    table = FoldingTable("key", "what it is", "bytes", "modified", box=None)
    table.columns[2].justify = "right"
    for column in (0, 2, 3):
        table.columns[column].no_wrap = True
    for entry in entries:
        kind = "" if entry.kind in ("circuits", "json", "array", "checkpoint") else f"{entry.kind}: "
        modified = _when(entry)[:16].replace("T", " ")
        table.add_row(entry.key[:8], Text(kind + entry.summary), f"{entry.bytes:,}", modified)
    Console().print(table)
    print(f"{len(entries)} entries, {_total(entries)}")


@runs_app.command("show")
def show_command(
    key: Annotated[str, typer.Argument(help="The key of an entry, or how it begins.")],
    store: StoreLocation,
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
        print_json({**_plain(entry), **entry.content})
        return
    print(printable(f"{entry.key} ({entry.kind}) in {entry.path}, {entry.bytes:,} bytes, {_when(entry)}"))
    content = {name: value for name, value in entry.content.items() if name not in ("key", "kind", "schema")}
    Console(soft_wrap=True).print_json(json.dumps(content))


@runs_app.command("verify")
def verify_command(store: StoreLocation, as_json: JsonOption = False) -> None:
    """Verify every entry's checksums and content; exit with 1 if one is damaged. Changes nothing.

    Example:

    ```
    gatewise runs verify --store runs/store
    ```
    """
    from gatewise.store.maintenance import list_entries

    entries = list_entries(open_store(store))
    bad = [entry for entry in entries if entry.problem]
    if as_json:
        problems = [{**_plain(entry), "problem": entry.problem} for entry in bad]
        print_json({"sound": len(entries) - len(bad), "bad": problems})
    else:
        for entry in bad:
            print(printable(f"{entry.path}: {entry.problem}"))
        print(f"{len(entries) - len(bad)} sound, {len(bad)} bad")
    if bad:
        raise typer.Exit(EXIT_DAMAGED)


@runs_app.command("gc")
def gc_command(
    store: StoreLocation,
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

    entries = (garbage if dry_run else collect)(open_store(store), checkpoints=checkpoints)
    if as_json:
        print_json({"removed": not dry_run, "entries": [_plain(entry) for entry in entries]})
        return
    for entry in entries:
        print(printable(f"{entry.kind}: {entry.path}"))
    print(f"{'would remove' if dry_run else 'removed'} {len(entries)}, {_total(entries)}")


def _plain(entry: Entry) -> dict[str, Any]:
    plain = {name: getattr(entry, name) for name in ("key", "kind", "path", "bytes", "record")}
    return {**plain, "modified": _when(entry)}


def _when(entry: Entry) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(entry.modified))


def _total(entries: list[Entry]) -> str:
    return f"{sum(entry.bytes for entry in entries):,} bytes"
