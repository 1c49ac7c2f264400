"""Commands that other packages add to `gatewise` by the entry-point group `gatewise.commands`: docs/own-command.md."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from importlib.metadata import entry_points

import typer


@dataclass(frozen=True)
class Plugin:
    """A command of another package, and the heading under which `gatewise --help` lists it."""

    name: str
    panel: str
    command: Callable[..., None]


def load_plugins(taken: Collection[str]) -> list[Plugin]:
    """Load the commands of installed packages; one that cannot be loaded is left out, with a line on standard error.

    taken: names of commands that `gatewise` has itself.
    """
    plugins = []
    for entry in entry_points(group="gatewise.commands"):
        package = entry.module.partition(".")[0]
        try:
            if entry.name in taken:
                raise ValueError("gatewise has a command of this name")
            command = entry.load()
            trial = typer.Typer()
            trial.command()(command)
            typer.main.get_command(trial)  # options that typer cannot read are to break this command only
        except Exception as error:
            problem = " ".join(f"{type(error).__name__}: {error}".split())
            print(f"warning: the command {entry.name!r} of {package} is left out: {problem}", file=sys.stderr)
        else:
            panel = getattr(sys.modules[package], "help_panel", f"Added by {package}")
            plugins.append(Plugin(entry.name, panel, command))
    return plugins
