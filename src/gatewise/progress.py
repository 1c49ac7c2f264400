"""Progress on standard error: a bar where a person watches, a line now and then where it goes to a file."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_EVERY = 10.0  # seconds between lines, and before the first


class Bar:
    """One line of progress; `advance` it as work is done."""

    def __init__(self, progress: Progress, task: int, *, lines: bool) -> None:
        self._progress, self._task, self._lines = progress, task, lines
        self._started = self._last_line = time.monotonic()

    def advance(self, steps: float = 1) -> None:
        self._progress.advance(self._task, steps)  # type: ignore[arg-type]
        now = time.monotonic()
        if self._lines and now - self._last_line >= _EVERY:
            self._last_line = now
            task = self._progress.tasks[0]
            total = "" if task.total is None else f" of {task.total:,.0f}"
            sys.stderr.write(f"{task.description}: {task.completed:,.0f}{total}, {now - self._started:.0f} s\n")
            sys.stderr.flush()

    def describe(self, text: str) -> None:
        self._progress.update(self._task, description=text)  # type: ignore[arg-type]


_hidden = False


def hide_bars() -> None:
    """Show none in this process: it is one of several that share a screen."""
    global _hidden
    _hidden = True


@contextmanager
def progress_bar(description: str, total: float | None, *, show: bool | None = None) -> Iterator[Bar]:
    """Show a bar while the block runs, or lines if nobody watches standard error; with show=False, nothing."""
    show = False if show is None and _hidden else show
    watched = sys.stderr.isatty() if show is None else show
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not watched) as progress:
        yield Bar(progress, progress.add_task(description, total=total), lines=show is None and not watched)
