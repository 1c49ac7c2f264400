"""Grids: what a sweep is asked for, as a TOML file, and its cells."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from gatewise.errors import GatewiseError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MOST_CELLS = 1_000_000
_TOO_LARGE = 10**18
_MOST_BYTES = 1 << 20

_KINDS: dict[type, str] = {str: "text", int: "a whole number", bool: "true or false"}
_ALIKE: dict[str, tuple[type, ...]] = {  # what is the same for all cells, and what a grid may say about it
    **dict.fromkeys(("examples", "test_examples", "random_circuits", "threads"), (int,)),
    "memory": (str, int),
    **dict.fromkeys(("device", "dtype"), (str,)),
    **dict.fromkeys(("bos", "first_token"), (bool,)),
}


@dataclass(frozen=True, kw_only=True)
class _Alike:
    """What is the same for all cells of a grid."""

    examples: int = 64  # pairs to search on
    test_examples: int = 64  # held-out pairs to evaluate on
    random_circuits: int = 3
    memory: str | int | None = None
    device: str | None = None
    dtype: str | None = None
    bos: bool | None = None
    first_token: bool = False
    threads: int = 1


@dataclass(frozen=True)
class Cell(_Alike):
    """One search and its evaluation on held-out pairs: one row of the table for each circuit it finds."""

    model: str
    task: str
    method: str
    direction: str
    sizes: tuple[int, ...]  # found together; empty with a threshold
    threshold: float | None
    seed: int
    parameters: tuple[tuple[str, Any], ...] = ()  # of the method, where they differ from its defaults
    together: tuple[str, ...] = field(default=(), compare=False)  # directions whose circuits one search finds

    def __str__(self) -> str:
        asked = f"threshold {self.threshold:g}" if self.threshold is not None else f"{_and(self.sizes)} edges"
        more = "".join(f" {name}={value}" for name, value in self.parameters)
        return f"{self.model} {self.task} {self.method} {self.direction} {asked} seed {self.seed}{more}"


@dataclass(frozen=True)
class Grid(_Alike):
    """All combinations of models, tasks, methods with their parameters, directions, sizes and seeds."""

    models: tuple[str, ...]
    tasks: tuple[str, ...]
    methods: Mapping[str, Mapping[str, tuple[Any, ...]]]  # for each method, the values of its parameters
    directions: tuple[str, ...] = ("ns",)
    sizes: tuple[tuple[int, ...], ...] = ()
    thresholds: tuple[float, ...] = ()
    seeds: tuple[int, ...] = (0,)

    def __len__(self) -> int:
        variants = sum(math.prod(len(values) for values in axes.values()) for axes in self.methods.values())
        asked = len(self.sizes) + len(self.thresholds)
        return len(self.models) * len(self.tasks) * variants * len(self.directions) * asked * len(self.seeds)

    def cells(self) -> list[Cell]:
        """In a fixed order, all cells of a model together, then all of its task and seed."""
        if len(self) > MOST_CELLS:
            raise GatewiseError(f"the grid has {len(self):,} cells; expected at most {MOST_CELLS:,}. Split it.")
        asked: list[tuple[tuple[int, ...], float | None]] = [(sizes, None) for sizes in self.sizes]
        asked += [((), threshold) for threshold in self.thresholds]
        alike = {name: getattr(self, name) for name in _ALIKE}
        return [
            Cell(model, task, method, direction, sizes, threshold, seed, parameters,
                 **alike, together=self._together(method))
            for model, task, seed in product(self.models, self.tasks, self.seeds)
            for method, parameters in self._variants()
            for direction, (sizes, threshold) in product(self.directions, asked)
        ]  # fmt: skip

    def _together(self, method: str) -> tuple[str, ...]:
        """The directions that one search of this method finds together."""
        from gatewise.methods.registry import find_method

        return self.directions if find_method(method).together else ()

    def _variants(self) -> list[tuple[str, tuple[tuple[str, Any], ...]]]:
        """Methods with each combination of their parameters' values."""
        return [
            (method, tuple(zip(axes, values, strict=True)))
            for method, axes in self.methods.items()
            for values in product(*axes.values())
        ]


def read_grid(path: str | Path) -> Grid:
    """Read a grid; every way it can be wrong is an error that says what was expected."""
    path = Path(path)
    try:
        with path.open("rb") as stream:
            content = stream.read(_MOST_BYTES + 1)
    except OSError as error:
        raise GatewiseError(f"cannot read {path}: {error.strerror}. Give the TOML file of a grid.") from error
    if len(content) > _MOST_BYTES:
        raise GatewiseError(f"{path} is larger than {_MOST_BYTES:,} bytes; a grid is a short TOML file.")
    try:
        table = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, or a number of too many digits
        raise GatewiseError(f"{path} is not valid TOML ({error}).") from error
    try:
        return grid_from(table)
    except GatewiseError as error:
        raise GatewiseError(f"{path}: {error}") from error


def grid_from(table: Mapping[str, Any]) -> Grid:
    """A grid from plain data. Single values may stand for lists of one."""
    left = dict(table)
    models = _list(left.pop("models", None), "models", (str,))
    tasks = _list(left.pop("tasks", None), "tasks", (str,))
    methods = _methods(left.pop("methods", None))
    axes: dict[str, tuple[type, ...]] = {"directions": (str,), "seeds": (int,), "thresholds": (int, float)}
    more: dict[str, Any] = {name: _list(left.pop(name), name, axes[name]) for name in axes if name in left}
    if "thresholds" in more:
        more["thresholds"] = tuple(map(float, more["thresholds"]))
    if "sizes" in left:
        more["sizes"] = _sizes(left.pop("sizes"))
    for name in [name for name in _ALIKE if name in left]:
        more[name] = _one(left.pop(name), name, _ALIKE[name])
    if left:
        known = "models, tasks, methods, directions, sizes, thresholds, seeds, " + ", ".join(_ALIKE)
        raise GatewiseError(f"a grid has no {next(iter(left))!r}; it has {known}.")
    grid = Grid(models, tasks, methods, **more)
    if not (grid.sizes or grid.thresholds):
        raise GatewiseError("the grid has neither sizes (numbers of edges) nor thresholds; give at least one of them.")
    for name, least in (("examples", 1), ("test_examples", 1), ("threads", 1), ("random_circuits", 0)):
        if getattr(grid, name) < least:
            raise GatewiseError(f"{name} is {getattr(grid, name)}; expected at least {least}.")
    return grid


def _methods(value: Any) -> dict[str, dict[str, tuple[Any, ...]]]:
    """`["eap"]`, or `[methods.eap]` tables of parameters, whose lists are further axes."""
    from gatewise.methods.registry import find_method

    chosen = value if isinstance(value, dict) else {name: {} for name in _list(value, "methods", (str,))}
    found = {}
    for name, parameters in chosen.items():
        config = find_method(name).config
        if not isinstance(parameters, dict):
            raise GatewiseError(f"[methods.{name}] is a table of parameters, got {parameters!r}.")
        found[name] = {key: _values(name, config, key, given) for key, given in parameters.items()}
    if not found:
        raise GatewiseError('the grid has no methods; write methods = ["eap"], or a table [methods.eap].')
    return found


def _values(method: str, config: type[Any], key: str, given: Any) -> tuple[Any, ...]:
    """Values of a parameter, each as `gatewise discover --set` would take it."""
    from gatewise.methods.parameters import parse_parameter

    plain = _list(given, f"methods.{method}.{key}", (str, int, float, bool))
    return tuple(parse_parameter(method, config, key, str(value)) for value in plain)


def _sizes(value: Any) -> tuple[tuple[int, ...], ...]:
    """`[50, 100]`: one search each; `[[50, 100]]`: one search that finds both."""
    if not isinstance(value, list):
        value = [value]
    return tuple(_list(one, "sizes", (int,)) for one in value)


def _list(value: Any, name: str, kinds: tuple[type, ...]) -> tuple[Any, ...]:
    if value is None:
        raise GatewiseError(f"the grid has no {name}.")
    found = value if isinstance(value, list) else [value]
    if not found:
        raise GatewiseError(f"{name} is empty; give at least one value, or leave it out.")
    checked = tuple(_one(one, name, kinds) for one in found)
    if len(set(map(repr, checked))) < len(checked):
        raise GatewiseError(f"{name} has a value twice: {list(checked)}.")
    return checked


def _one(value: Any, name: str, kinds: tuple[type, ...]) -> Any:
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        expected = _and([_KINDS.get(kind, f"a {kind.__name__}") for kind in kinds], "or")
        raise GatewiseError(f"{name}: expected {expected}, got {value!r}.")
    if isinstance(value, float) and not math.isfinite(value):
        raise GatewiseError(f"{name}: expected a finite number, got {value!r}.")
    if isinstance(value, int) and abs(value) >= _TOO_LARGE:
        raise GatewiseError(f"{name}: expected a whole number of at most 18 digits, got one of {len(str(value))}.")
    return value


def _and(items: Any, word: str = "and") -> str:
    texts = [str(item) for item in items]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} {word} {texts[-1]}"
