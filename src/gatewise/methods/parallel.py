"""Who searches: this process, one problem after the other, or workers, all parts of all problems at once."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from gatewise.methods.base import Findings, Method, Problem
from gatewise.methods.provenance import Clock
from gatewise.progress import progress_bar
from gatewise.workers import WorkerPool, threads

Searched = tuple[Problem, Findings, dict[str, Any]]  # what was asked, what was found, what it took


def searches(problems: Sequence[Problem], method: Method, workers: WorkerPool | None) -> Iterator[Searched]:
    """Search for each problem; workers yield them as they end."""
    if workers is None or (workers.workers < 2 and workers.ray is None):
        for problem in problems:
            clock = Clock()
            yield problem, method.search(problem), clock.times()
        return
    tasks = [(index, part) for index, problem in enumerate(problems) for part in method.parts(problem)]
    left = [len(method.parts(problem)) for problem in problems]
    outcomes: list[dict[Any, Any]] = [{} for _ in problems]
    seconds = [0.0 for _ in problems]
    clock = Clock()
    title = f"{method.title} {', '.join(direction for problem in problems for direction in problem.directions)}"
    with progress_bar(title, len(tasks)) as bar:
        for (index, part), (outcome, cpu_seconds) in workers.results(tasks, _do_part, (tuple(problems), method)):
            bar.advance()
            outcomes[index][part] = outcome
            seconds[index] += cpu_seconds
            left[index] -= 1
            if left[index] == 0:
                findings = method.join_parts(problems[index], outcomes[index])
                yield problems[index], findings, {**clock.times(), "cpu_seconds": round(seconds[index], 3)}


def _do_part(task: tuple[int, Any], shared: tuple[tuple[Problem, ...], Method]) -> tuple[Any, float]:
    """In a worker: do one part of one search; return what it gave and the CPU seconds it took."""
    (index, part), (problems, method), begun = task, shared, time.process_time()
    with threads(1):
        outcome = method.search_part(problems[index].for_part(part), part)
    return outcome, time.process_time() - begun
