"""Progress bars on standard error: everything that takes more than a few seconds shows one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Bar:
    """One line of progress; `advance` it as work is done."""

    def __init__(self, progress: Progress, task: int) -> None:
        self._progress, self._task = progress, task

    def advance(self, steps: float = 1) -> None:
        self._progress.advance(self._task, steps)  # type: ignore[arg-type]

    def describe(self, text: str) -> None:
        self._progress.update(self._task, description=text)  # type: ignore[arg-type]


@contextmanager
def progress_bar(description: str, total: float | None, *, show: bool | None = None) -> Iterator[Bar]:
    """Show a bar while the block runs. By default only when a person is watching standard error."""
    visible = sys.stderr.isatty() if show is None else show
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not visible) as progress:
        yield Bar(progress, progress.add_task(description, total=total))
