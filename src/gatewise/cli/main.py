"""The command `gatewise`: its global options, its subcommands, and how errors reach the user.

Subcommands import torch and transformers inside their functions: `gatewise --help` answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated

import typer

from gatewise.cli.compare import compare_command
from gatewise.cli.discover import discover_command, methods_command
from gatewise.cli.evaluate import evaluate_command
from gatewise.cli.gate_test import test_gate_command
from gatewise.cli.gates import gates_command
from gatewise.cli.looking import ablate_command, attention_command, draw_command
from gatewise.cli.mib import mib_command
from gatewise.cli.models import models_app
from gatewise.cli.plan import plan_command
from gatewise.cli.plugins import load_plugins
from gatewise.cli.reconcile import reconcile_command
from gatewise.cli.run import run_command
from gatewise.cli.runs import runs_app
from gatewise.cli.smallest import smallest_command
from gatewise.cli.specificity import specificity_command
from gatewise.cli.sweep import sweep_command
from gatewise.cli.tasks import tasks_app
from gatewise.errors import GatewiseError, printable

EXIT_INTERNAL_ERROR = 1
EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130


_HELP = """Find logically complete circuits in language models and measure them.

Start with:

```
gatewise run tiny --task ioi --edges 100
gatewise tasks check my.csv --model tiny
gatewise run tiny --task my.csv --edges 100
```

Results go to standard output, with --json as JSON; progress and warnings go to standard error. Exit codes: 0 done; 1
done with failures that are listed, or an internal error; 2 something you can fix, said in one line; 130 interrupted.
"""

app = typer.Typer(
    help=_HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
_LISTS = "See what there is"
_COMMANDS: dict[str, dict[str, Callable[..., None]]] = {
    "Find circuits": {
        "run": run_command,
        "discover": discover_command,
        "gates": gates_command,
        "smallest": smallest_command,
        "sweep": sweep_command,
        "plan": plan_command,
    },
    "Measure, compare, exchange": {
        "evaluate": evaluate_command,
        "ablate": ablate_command,
        "attention": attention_command,
        "draw": draw_command,
        "test-gate": test_gate_command,
        "compare": compare_command,
        "specificity": specificity_command,
        "reconcile": reconcile_command,
        "mib": mib_command,
    },
    _LISTS: {"methods": methods_command},
}
_GROUPS = {"models": models_app, "tasks": tasks_app, "runs": runs_app}
for _panel, _members in _COMMANDS.items():
    for _name, _command in _members.items():
        app.command(_name, rich_help_panel=_panel)(_command)
_names = {name for members in _COMMANDS.values() for name in members} | _GROUPS.keys()
for _plugin in load_plugins(_names):
    app.command(_plugin.name, rich_help_panel=_plugin.panel)(_plugin.command)
for _name, _group in _GROUPS.items():
    app.add_typer(_group, name=_name, rich_help_panel=_LISTS)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"gatewise {version('gatewise')}")
        raise typer.Exit


@app.callback()
def _global_options(
    _debug: Annotated[
        bool, typer.Option("--debug", help="Show the whole traceback of an error; also after the command.")
    ] = False,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """`main` reads --debug itself, since people also write it after the command."""


def main() -> None:
    """Run the command line; an error is one line on standard error, not a traceback, unless --debug is given."""
    words = [word for word in sys.argv[1:] if word != "--debug"]
    debug = len(words) < len(sys.argv) - 1
    try:
        app(args=words, prog_name="gatewise")
    except KeyboardInterrupt:
        _leave_interrupted()
    except SystemExit as stop:
        if stop.code == EXIT_INTERRUPTED:  # typer's own way of passing an interrupt on
            _leave_interrupted()
        raise
    except Exception as error:
        if debug:
            raise
        by_user = isinstance(error, GatewiseError)
        message = str(error) if by_user else _unexpected(error)
        print(f"error: {' '.join(printable(message).split())}", file=sys.stderr)
        sys.exit(EXIT_USER_ERROR if by_user else EXIT_INTERNAL_ERROR)


def _unexpected(error: Exception) -> str:
    text = (str(error).strip().splitlines() or [""])[0][:200]
    if isinstance(error, MemoryError) or "out of memory" in text.lower() or "can't allocate memory" in text:
        return (
            f"the memory is full ({text or 'MemoryError'}). Use fewer --examples, or a smaller --memory, such as 1GB."
        )
    return (
        f"{type(error).__name__}: {text}. This is a mistake in gatewise or in what it uses; the same command with "
        f"--debug shows where, for a bug report."
    )


def _leave_interrupted() -> None:
    words = [word for word in sys.argv[1:] if word != "--debug"]
    if words[:1] in (["run"], ["sweep"]) or any(word.startswith("--store") for word in words):
        print("interrupted; the same command resumes where it was", file=sys.stderr)
    elif words[:1] in (["discover"], ["gates"]):
        print("interrupted; the same command starts again; --store keeps states", file=sys.stderr)
    else:
        print("interrupted", file=sys.stderr)
    sys.exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
