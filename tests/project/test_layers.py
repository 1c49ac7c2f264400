"""The house as `docs/design.md` draws it: who may use whom, what belongs to whom, and one name for one thing."""

from __future__ import annotations

import ast
import importlib
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
TREES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): ast.parse(path.read_bytes())
    for path in sorted((SOURCE / "gatewise").rglob("*.py"))
}
ROOMS = {module.split(".")[1] for module in TREES if "." in module}  # packages, and modules beside them


def read_table(text: str) -> dict[str, set[str]]:
    """Room -> the rooms it may use, from the table whose rows go from the lowest layer to the highest.

    Its last column says `nothing of ours`, names rooms, or says `the above`, with or without `but` and names.
    """
    table = re.search(r"\| folder or file .*?\n\|[- |]+\n(.*?)\n\n", text, flags=re.DOTALL)
    assert table is not None
    allowed: dict[str, set[str]] = {}
    for row in table[1].splitlines():
        own, _, use = (cell.strip() for cell in row.strip("|").split("|"))
        named = set(_rooms(use))
        if use.startswith("the above"):
            named = allowed.keys() - named
        else:
            assert named or use == "nothing of ours", use
        allowed |= {room: set(named) for room in _rooms(own)}
    return allowed


def _rooms(cell: str) -> list[str]:
    return [name.removesuffix("/").removesuffix(".py") for name in re.findall(r"`([^`]+)`", cell)]


def imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """All of them, within functions and for type checkers too: the module, and the name that is taken from it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from ((node.module or "", alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)


def arrows(trees: Mapping[str, ast.AST]) -> dict[tuple[str, str], set[str]]:
    """(room, room that it uses) -> the modules that do."""
    found = defaultdict(set)
    for module, tree in trees.items():
        for source, name in imports(tree):
            parts = (f"{source}.{name}" if source == "gatewise" else source).split(".")
            if parts[0] == "gatewise" and "." in module and parts[1] != module.split(".")[1]:
                found[module.split(".")[1], parts[1]].add(module)
    return found


def forbidden(trees: Mapping[str, ast.AST], allowed: Mapping[str, set[str]]) -> list[str]:
    return [
        f"{', '.join(sorted(modules))} must not use {there}"
        for (here, there), modules in arrows(trees).items()
        if there not in allowed[here]
    ]


ALLOWED = read_table((ROOT / "docs" / "design.md").read_text(encoding="utf-8"))


def test_the_table_names_every_room() -> None:
    assert ALLOWED.keys() == ROOMS


def test_no_arrow_that_the_table_does_not_have() -> None:
    assert forbidden(TREES, ALLOWED) == []


@pytest.mark.parametrize(
    "line",
    [
        "from gatewise.gates.labels import Gates",
        "def late():\n    import gatewise.gates",
        "if TYPE_CHECKING:\n    from gatewise import gates",
    ],
)
def test_a_forbidden_arrow_is_seen(line: str) -> None:
    assert forbidden({"gatewise.circuits.drawing": ast.parse(line)}, ALLOWED) == [
        "gatewise.circuits.drawing must not use gates"
    ]


def test_the_library_never_imports_the_paper() -> None:
    users = [module for module, tree in TREES.items() if any("gatewise_paper" in source for source, _ in imports(tree))]
    assert users == []


def test_rooms_do_not_use_each_other_in_circles() -> None:
    uses = defaultdict(set)
    for here, there in arrows(TREES):
        uses[here].add(there)
    TopologicalSorter(uses).prepare()


def private_names(tree: ast.AST) -> set[str]:
    """Names with an underscore before them that a module makes: functions, classes, variables, fields, attributes."""
    made = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            made.add(node.name)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            made.add(node.id if isinstance(node, ast.Name) else node.attr)
    return {name for name in made if name.startswith("_") and not name.startswith("__")}


def _own(owner: ast.expr) -> bool:
    """Whether it is the object itself, which may use what it inherits."""
    return ast.unparse(owner) in ("self", "cls", "super()")


def test_private_names_stay_in_their_module() -> None:
    made = {module: private_names(tree) for module, tree in TREES.items()}
    anywhere = set().union(*made.values())
    for module, tree in TREES.items():
        taken = {name for source, name in imports(tree) if source.startswith("gatewise") and name.startswith("_")}
        used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and not _own(node.value)}
        assert taken | (used & anywhere - made[module]) == set(), module


def test_no_module_is_hidden_by_what_its_package_exports() -> None:
    for module in TREES:
        package, _, name = module.rpartition(".")
        if package and name != "__main__":
            importlib.import_module(module)
            assert isinstance(getattr(importlib.import_module(package), name), ModuleType), module


def test_the_name_of_a_class_means_one_thing() -> None:
    """Of a type that is put together from others, too."""
    homes = defaultdict(list)
    for module, tree in TREES.items():
        assert isinstance(tree, ast.Module)
        for node in tree.body:
            names = [node.name] if isinstance(node, ast.ClassDef) else []
            if isinstance(node, ast.Assign):
                names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            for name in names:
                if re.fullmatch(r"[A-Z]\w*[a-z]\w*", name):
                    homes[name].append(module)
    assert {name: modules for name, modules in homes.items() if len(modules) > 1} == {}


def test_private_modules_stay_in_their_folder() -> None:
    """A module with an underscore is used by its own folder only."""
    for module, tree in TREES.items():
        for source, name in imports(tree):
            home, _, last = (f"{source}.{name}" if f"{source}.{name}" in TREES else source).rpartition(".")
            if last.startswith("_") and home.startswith("gatewise."):
                assert f"{module}.".startswith(f"{home}."), f"{module} uses {home}.{last}"


def test_the_design_lists_every_file() -> None:
    _, _, section = (ROOT / "docs" / "design.md").read_text(encoding="utf-8").partition("## Every file")
    listed, folder = set(), ""
    for line in section.splitlines():
        if heading := re.match(r"\*\*(\S+)/\*\* \S", line):
            folder = heading[1]
        elif entry := re.match(r"- `(\S+\.py)`: \S", line):
            listed.add(f"{folder}/{entry[1]}")
    files = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py") if path.name != "__init__.py"}
    assert listed == files
