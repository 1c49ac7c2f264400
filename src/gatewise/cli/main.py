"""The command `gatewise`: its global options, its subcommands, and how errors reach the user.

Subcommands import torch and transformers inside their functions: `gatewise --help` answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Annotated

import typer

from gatewise.cli.compare import compare_command
from gatewise.cli.discover import discover_command, methods_command
from gatewise.cli.evaluate import evaluate_command
from gatewise.cli.gate_test import test_gate_command
from gatewise.cli.gates import gates_command
from gatewise.cli.mib import mib_command
from gatewise.cli.models import models_app
from gatewise.cli.plan import plan_command
from gatewise.cli.reconcile import reconcile_command
from gatewise.cli.run import run_command
from gatewise.cli.runs import runs_app
from gatewise.cli.sweep import sweep_command
from gatewise.cli.tasks import tasks_app
from gatewise.errors import GatewiseError

EXIT_INTERNAL_ERROR = 1
EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130


@dataclass
class _Settings:
    debug: bool = False


_settings = _Settings()

_HELP = """Find logically complete circuits in language models and measure them.

Start with:

```
gatewise run tiny --task ioi --edges 100
gatewise tasks check my.csv --model tiny
gatewise run tiny --task my.csv --edges 100
```

Results go to standard output, with --json as JSON; progress and warnings go to standard error. Exit codes: 0 done; 1
done with failures that are listed, or an internal error; 2 something you can mend, said in one line; 130 interrupted.
"""

app = typer.Typer(
    help=_HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
_COMMANDS: dict[str, dict[str, Callable[..., None]]] = {
    "Find circuits": {
        "run": run_command,
        "discover": discover_command,
        "gates": gates_command,
        "sweep": sweep_command,
        "plan": plan_command,
    },
    "Measure, compare, exchange": {
        "evaluate": evaluate_command,
        "test-gate": test_gate_command,
        "compare": compare_command,
        "reconcile": reconcile_command,
        "mib": mib_command,
    },
}
for _panel, _members in _COMMANDS.items():
    for _name, _command in _members.items():
        app.command(_name, rich_help_panel=_panel)(_command)
for _entry in entry_points(group="gatewise.commands"):  # the paper's, and those of other packages: docs/own-command.md
    app.command(_entry.name, rich_help_panel=f"Added by {_entry.module.partition('.')[0]}")(_entry.load())
app.command("methods", rich_help_panel="See what there is")(methods_command)
app.add_typer(models_app, name="models", rich_help_panel="See what there is")
app.add_typer(tasks_app, name="tasks", rich_help_panel="See what there is")
app.add_typer(runs_app, name="runs", rich_help_panel="See what there is")


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"gatewise {version('gatewise')}")
        raise typer.Exit


@app.callback()
def _global_options(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the whole traceback of an error; also after the command.")
    ] = False,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    _settings.debug = _settings.debug or debug


def main() -> None:
    """Run the command line; an error is one line on standard error, not a traceback, unless --debug is given."""
    arguments = sys.argv[1:]
    _settings.debug = "--debug" in arguments  # also after the command, where people write it
    try:
        app(args=[word for word in arguments if word != "--debug"], prog_name="gatewise")
    except GatewiseError as error:
        _report(str(error), EXIT_USER_ERROR)
    except KeyboardInterrupt:
        _leave_interrupted()
    except SystemExit as stop:
        if stop.code == EXIT_INTERRUPTED:  # typer's own way of passing an interrupt on
            _leave_interrupted()
        raise
    except Exception as error:
        _report(_unexpected(error), EXIT_INTERNAL_ERROR)


def _report(message: str, code: int) -> None:
    """Within an `except` block: the traceback if it was asked for, else one line."""
    if _settings.debug:
        raise
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)


def _unexpected(error: Exception) -> str:
    said = (str(error).strip().splitlines() or [""])[0][:200]
    if isinstance(error, MemoryError) or "out of memory" in said.lower() or "can't allocate memory" in said:
        return (
            f"the memory is full ({said or 'MemoryError'}). Use fewer --examples, or a smaller --memory, such as 1GB."
        )
    return (
        f"{type(error).__name__}: {said}. This is a mistake in gatewise or in what it uses; the same command with "
        f"--debug shows where, for a bug report."
    )


def _leave_interrupted() -> None:
    print("interrupted", file=sys.stderr)
    sys.exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
