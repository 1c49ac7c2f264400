"""The command `gatewise`: its global options, its subcommands, and how errors reach the user.

Subcommands import torch and transformers inside their functions: `gatewise --help` answers at once.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.metadata import version
from typing import Annotated

import typer

from gatewise.cli.compare import compare_command, conflict_command
from gatewise.cli.discover import discover_command, methods_command
from gatewise.cli.evaluate import evaluate_command
from gatewise.cli.gates import gates_command
from gatewise.cli.mib import mib_command
from gatewise.cli.models import models_app
from gatewise.cli.reproduce import reproduce_command
from gatewise.cli.run import run_command
from gatewise.cli.runs import runs_app
from gatewise.cli.sweep import sweep_command
from gatewise.cli.tasks import tasks_app
from gatewise.cli.toy import toy_command
from gatewise.cli.truth import truth_command
from gatewise.errors import GatewiseError

EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130


@dataclass
class _Settings:
    debug: bool = False


_settings = _Settings()

app = typer.Typer(
    help="Find logically complete circuits in language models and measure them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("compare")(compare_command)
app.command("conflict")(conflict_command)
app.command("discover")(discover_command)
app.command("evaluate")(evaluate_command)
app.command("gates")(gates_command)
app.command("methods")(methods_command)
app.command("mib")(mib_command)
app.command("run")(run_command)
app.command("reproduce")(reproduce_command)
app.command("sweep")(sweep_command)
app.command("toy")(toy_command)
app.command("truth")(truth_command)
app.add_typer(models_app, name="models")
app.add_typer(runs_app, name="runs")
app.add_typer(tasks_app, name="tasks")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"gatewise {version('gatewise')}")
        raise typer.Exit


@app.callback()
def _global_options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the whole traceback of an error.")] = False,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    _settings.debug = debug


def main() -> None:
    """Run the command line; what a user can mend is one line on standard error, not a traceback."""
    try:
        app(prog_name="gatewise")
    except GatewiseError as error:
        if _settings.debug:
            raise
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(EXIT_USER_ERROR)
    except KeyboardInterrupt:
        _leave_interrupted()
    except SystemExit as stop:
        if stop.code == EXIT_INTERRUPTED:  # typer's own way of passing an interrupt on
            _leave_interrupted()
        raise


def _leave_interrupted() -> None:
    print("interrupted", file=sys.stderr)
    sys.exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
