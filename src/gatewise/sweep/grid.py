"""Grids: what a sweep is asked for, as a TOML file, and its cells."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

from gatewise.errors import GatewiseError
from gatewise.files import read_regular, shown
from gatewise.methods.base import SEARCH_DIRECTIONS, Method, SearchDirection
from gatewise.methods.registry import find_method
from gatewise.methods.smallest import check_faithfulness, check_ranks_once

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MOST_CELLS = 1_000_000
_TOO_LARGE = 10**18
_MOST_BYTES = 1 << 20

_KINDS: dict[type, str] = {str: "text", int: "a whole number", bool: "true or false"}


@dataclass(frozen=True, kw_only=True)
class _Common:
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


# What is the same for all cells, and the types it may have in a grid.
_COMMON = {name: tuple({*(get_args(hint) or (hint,))} - {NoneType}) for name, hint in get_type_hints(_Common).items()}


@dataclass(frozen=True)
class Cell(_Common):
    """One search and its evaluation on held-out pairs: one row of the table for each circuit it finds."""

    model: str
    task: str
    method: str
    direction: SearchDirection
    sizes: tuple[int, ...]  # found together; empty with a threshold or a faithfulness
    threshold: float | None
    seed: int
    parameters: tuple[tuple[str, Any], ...] = ()  # of the method, where they differ from its defaults
    faithfulness: float | None = None  # the smallest circuit that keeps this share of the KL
    most_edges: int | None = None  # that it may have
    together: tuple[SearchDirection, ...] = field(
        default=(), compare=False
    )  # directions whose circuits one search finds

    @property
    def bound_method(self) -> Method:
        """The method with the cell's parameters."""
        return find_method(self.method).with_parameters(dict(self.parameters))

    def __str__(self) -> str:
        if self.faithfulness is not None:
            goal = f"faithfulness {self.faithfulness:g}"
        else:
            goal = f"threshold {self.threshold:g}" if self.threshold is not None else f"{_and(self.sizes)} edges"
        parameters = "".join(f" {name}={value}" for name, value in self.parameters)
        return f"{self.model} {self.task} {self.method} {self.direction} {goal} seed {self.seed}{parameters}"


@dataclass(frozen=True)
class Grid(_Common):
    """All combinations of models, tasks, methods with their parameters, directions, sizes and seeds."""

    models: tuple[str, ...]
    tasks: tuple[str, ...]
    methods: Mapping[str, Mapping[str, tuple[Any, ...]]]  # for each method, the values of its parameters
    directions: tuple[SearchDirection, ...] = ("ns",)
    sizes: tuple[tuple[int, ...], ...] = ()
    thresholds: tuple[float, ...] = ()
    faithfulness: tuple[float, ...] = ()
    most_edges: int | None = None  # of circuits by faithfulness
    seeds: tuple[int, ...] = (0,)

    def __len__(self) -> int:
        variants = sum(math.prod(len(values) for values in axes.values()) for axes in self.methods.values())
        goals = len(self.sizes) + len(self.thresholds) + len(self.faithfulness)
        return len(self.models) * len(self.tasks) * variants * len(self.directions) * goals * len(self.seeds)

    def cells(self) -> list[Cell]:
        """List the cells.

        Returns:
            All combinations in a fixed order: all of a model together, then all of its task and seed.
        """
        if len(self) > MOST_CELLS:
            raise GatewiseError(f"the grid has {len(self):,} cells; expected at most {MOST_CELLS:,}. Split it.")
        goals: list[tuple[tuple[int, ...], float | None, float | None]] = [(sizes, None, None) for sizes in self.sizes]
        goals += [((), threshold, None) for threshold in self.thresholds]
        goals += [((), None, share) for share in self.faithfulness]
        common = {name: getattr(self, name) for name in _COMMON}
        together = {name: self.directions if find_method(name).together else () for name in self.methods}
        variants = [  # methods with each combination of their parameters' values
            (method, tuple(zip(axes, values, strict=True)))
            for method, axes in self.methods.items()
            for values in product(*axes.values())
        ]
        return [
            Cell(model, task, method, direction, sizes, threshold, seed, parameters, faithfulness,
                 None if faithfulness is None else self.most_edges, **common, together=together[method])
            for model, task, seed in product(self.models, self.tasks, self.seeds)
            for method, parameters in variants
            for direction, (sizes, threshold, faithfulness) in product(self.directions, goals)
        ]  # fmt: skip


def read_grid(path: str | Path, *, trust_code: bool = False) -> Grid:
    """Read a grid from a TOML file.

    Args:
        path: The file, whose keys are the fields of `Grid`.
        trust_code: Whether methods that it names as `module:Name` may be imported, which runs their code.

    Returns:
        The grid.

    Raises:
        GatewiseError: The file cannot be read, or says something that is not expected.
    """
    path = Path(path)
    try:
        content = read_regular(path, _MOST_BYTES)
    except OSError as error:
        raise GatewiseError(f"cannot read {path}: {error.strerror}. Give the TOML file of a grid.") from error
    try:
        table = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, or a number of too many digits
        raise GatewiseError(f"{path} is not valid TOML ({error}).") from error
    try:
        if not trust_code:
            _refuse_code(table)
        return grid_from(table)
    except GatewiseError as error:
        raise GatewiseError(f"{path}: {error}") from error


def _refuse_code(table: Mapping[str, Any]) -> None:
    """Refuse methods that are code of somebody's: a file is read as data."""
    methods = table.get("methods")
    for name in methods if isinstance(methods, (dict, list)) else [methods]:
        if isinstance(name, str) and ":" in name:
            raise GatewiseError(
                f"it names the method {shown(name)}, which is code that would run. If you trust it, read the grid with "
                f"--trust-code, or read_grid(..., trust_code=True)."
            )


def grid_from(table: Mapping[str, Any]) -> Grid:
    """Make a grid from plain data. Single values may stand for lists of one."""
    left = dict(table)
    models = _list(left.pop("models", None), "models", (str,))
    tasks = _list(left.pop("tasks", None), "tasks", (str,))
    methods = _methods(left.pop("methods", None))
    axes: dict[str, tuple[type, ...]] = {
        "directions": (str,),
        "seeds": (int,),
        "thresholds": (int, float),
        "faithfulness": (int, float),
    }
    fields: dict[str, Any] = {name: _list(left.pop(name), name, axes[name]) for name in axes if name in left}
    if "thresholds" in fields:
        fields["thresholds"] = tuple(map(float, fields["thresholds"]))
    if "sizes" in left:
        fields["sizes"] = _sizes(left.pop("sizes"))
    if "most_edges" in left:
        fields["most_edges"] = _value(left.pop("most_edges"), "most_edges", (int,))
    fields |= {name: _value(left.pop(name), name, _COMMON[name]) for name in _COMMON if name in left}
    if left:
        known = "models, tasks, methods, directions, sizes, thresholds, faithfulness, most_edges, seeds, "
        known += ", ".join(_COMMON)
        raise GatewiseError(f"a grid has no {next(iter(left))!r}; it has {known}.")
    grid = Grid(models, tasks, methods, **fields)
    for direction in grid.directions:
        if direction not in SEARCH_DIRECTIONS:
            raise GatewiseError(f"directions: expected 'ns', 'dn' or 'ns+dn', got {direction!r}.")
    if not (grid.sizes or grid.thresholds or grid.faithfulness):
        raise GatewiseError(
            "the grid has neither sizes (numbers of edges) nor thresholds nor faithfulness; give at least one of them."
        )
    _check_faithfulness(grid)
    for name, least in (("examples", 1), ("test_examples", 1), ("threads", 1), ("random_circuits", 0)):
        if getattr(grid, name) < least:
            raise GatewiseError(f"{name} is {getattr(grid, name)}; expected at least {least}.")
    return grid


def _check_faithfulness(grid: Grid) -> None:
    """Refuse shares that are none, and methods that cannot be asked for them."""
    if grid.most_edges is not None and (grid.most_edges < 1 or not grid.faithfulness):
        raise GatewiseError(f"most_edges is {grid.most_edges}; it is at least 1, and goes with faithfulness.")
    for share in grid.faithfulness:
        check_faithfulness(share)
    for name in grid.methods if grid.faithfulness else ():
        check_ranks_once(find_method(name))


def _methods(value: Any) -> dict[str, dict[str, tuple[Any, ...]]]:
    """Read `["eap"]`, or `[methods.eap]` tables of parameters, whose lists are further axes."""
    tables = value if isinstance(value, dict) else {name: {} for name in _list(value, "methods", (str,))}
    methods: dict[str, dict[str, tuple[Any, ...]]] = {}
    for name, parameters in tables.items():
        method = find_method(name)
        if not isinstance(parameters, dict):
            raise GatewiseError(f"[methods.{name}] is a table of parameters, got {parameters!r}.")
        methods[name] = {}
        for key, given in parameters.items():
            values = _list(given, f"methods.{name}.{key}", (str, int, float, bool))
            methods[name][key] = tuple(method.parse({key: text})[key] for text in values)
    if not methods:
        raise GatewiseError('the grid has no methods; write methods = ["eap"], or a table [methods.eap].')
    return methods


def _sizes(value: Any) -> tuple[tuple[int, ...], ...]:
    """Read `[50, 100]` as one search each, `[[50, 100]]` as one search that finds both."""
    searches = value if isinstance(value, list) else [value]
    return tuple(_list(sizes, "sizes", (int,)) for sizes in searches)


def _list(value: Any, name: str, kinds: tuple[type, ...]) -> tuple[Any, ...]:
    if value is None:
        raise GatewiseError(f"the grid has no {name}.")
    values = value if isinstance(value, list) else [value]
    if not values:
        raise GatewiseError(f"{name} is empty; give at least one value, or leave it out.")
    checked = tuple(_value(member, name, kinds) for member in values)
    if len(set(map(repr, checked))) < len(checked):
        raise GatewiseError(f"{name} has a value twice: {list(checked)}.")
    return checked


def _value(value: Any, name: str, kinds: tuple[type, ...]) -> Any:
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        expected = _and([_KINDS.get(kind, f"a {kind.__name__}") for kind in kinds], "or")
        raise GatewiseError(f"{name}: expected {expected}, got {value!r}.")
    if isinstance(value, float) and not math.isfinite(value):
        raise GatewiseError(f"{name}: expected a finite number, got {value!r}.")
    if isinstance(value, int) and abs(value) >= _TOO_LARGE:
        raise GatewiseError(f"{name}: expected a whole number of at most 18 digits, got one of {len(str(value))}.")
    return value


def _and(values: Iterable[object], word: str = "and") -> str:
    texts = [str(value) for value in values]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} {word} {texts[-1]}"
