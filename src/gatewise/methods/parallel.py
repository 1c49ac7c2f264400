"""Who searches: this process, one problem after the other, or a team of workers, all parts of all problems at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gatewise.methods.base import Division, Findings, Method, Problem
from gatewise.methods.provenance import Clock
from gatewise.progress import progress_bar
from gatewise.store.checkpoints import Checkpoint
from gatewise.workers import WorkerPool, threads

Searched = tuple[Problem, Findings, dict[str, Any]]  # what was asked, what was found, what it took


def searches(problems: Sequence[Problem], method: Method, config: Any, team: WorkerPool | None) -> Iterator[Searched]:
    """Search for each problem; a team yields them as they end."""
    if team is None or (team.workers < 2 and team.ray is None):
        for problem in problems:
            clock = Clock()
            yield problem, method.search(problem, config), clock.times()
        return
    parts = method.parts or Division(_one_part, _Whole(method.search), _found_by_it)
    tasks = [(place, name) for place, problem in enumerate(problems) for name in parts.names(problem, config)]
    clock, shared = Clock(), _Shared(tuple(problems), config, parts.work, parts.saves)
    found: list[dict[Any, Any]] = [{} for _ in problems]
    seconds = [0.0 for _ in problems]
    title = f"{method.title} {', '.join(one for problem in problems for one in problem.directions)}"
    with progress_bar(title, len(tasks)) as bar:
        for (place, name), (value, processor) in team.results(tasks, _do_part, shared):
            bar.advance()
            found[place][name] = value
            seconds[place] += processor
            problem = problems[place]
            if len(found[place]) == len(parts.names(problem, config)):
                joined, times = parts.join(problem, config, found[place]), clock.times()
                yield problem, joined, {**times, "cpu_seconds": round(seconds[place], 3)}


@dataclass(frozen=True, eq=False)
class _Shared:
    """What all parts of some searches need."""

    problems: tuple[Problem, ...]
    config: Any
    work: Callable[[Problem, Any, Any], Any]
    saves: bool


def _do_part(task: tuple[int, Any], shared: _Shared) -> tuple[Any, float]:
    """In a worker: what is found, and the processor's seconds it took."""
    (place, name), begun = task, time.process_time()
    problem = shared.problems[place]
    if name is not None:
        problem = replace(problem, checkpoint=problem.checkpoint.part(str(name)) if shared.saves else Checkpoint())
    with threads(1):
        found = shared.work(problem, shared.config, name)
    return found, time.process_time() - begun


# A search that is not cut is one part, None.


def _one_part(problem: Problem, config: Any) -> list[None]:
    return [None]


@dataclass(frozen=True)
class _Whole:
    search: Callable[[Problem, Any], Findings]

    def __call__(self, problem: Problem, config: Any, name: None) -> Findings:
        return self.search(problem, config)


def _found_by_it(problem: Problem, config: Any, found: Mapping[None, Findings]) -> Findings:
    return found[None]
