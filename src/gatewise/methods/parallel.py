"""Who searches: this process, one problem after the other, or workers, all parts of all problems at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from gatewise.devices import halvings, is_accelerator, is_out_of_memory
from gatewise.methods.base import Findings, Method, Problem
from gatewise.methods.provenance import Clock
from gatewise.progress import progress_bar
from gatewise.workers import WorkerPool, threads

Outcome = TypeVar("Outcome")
Searched = tuple[Problem, Findings, dict[str, Any]]  # what was asked, what was found, what it took


def searches(problems: Sequence[Problem], method: Method, workers: WorkerPool | None) -> Iterator[Searched]:
    """Search for each problem; workers yield them as they end."""
    if workers is None or (workers.workers < 2 and workers.ray is None):
        for problem in problems:
            clock = Clock()
            fitting, findings = _in_fitting_memory(problem, method.search)
            yield fitting, findings, clock.times()
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
    problem = problems[index].for_part(part)
    # Parts of additive methods are numbered by batches, which may not change: they cut batches themselves.
    for _ in range(0 if method.additive else halvings()):
        problem = replace(problem, setting=problem.setting.with_less_memory())
    with threads(1):
        _, outcome = _in_fitting_memory(problem, lambda fitting: method.search_part(fitting, part))
    return outcome, time.process_time() - begun


def _in_fitting_memory(problem: Problem, search: Callable[[Problem], Outcome]) -> tuple[Problem, Outcome]:
    """Search, from the start with half of the budget whenever an accelerator's memory is full."""
    while True:
        try:
            return problem, search(problem)
        except RuntimeError as error:
            if not is_accelerator(problem.model.device) or not is_out_of_memory(error):
                raise
        problem.setting.make_room(max(len(batch.pairs) for batch in problem.setting.batches()))
        problem = replace(problem, setting=problem.setting.with_less_memory())
