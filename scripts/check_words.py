"""Fail on names that say nothing, and on public functions whose docstring has no Args or no Returns: `make lint`.

A name says what a thing is (`circuits`, `scores`, `receiver`), not that it was found or is one of some. The source is
parsed, never imported, so this takes a second and needs nothing but Python. Another clone: give its folder.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

PACKAGES = ("gatewise", "gatewise_paper")  # in src/
FILLERS = {
    *("found", "one", "some", "place", "told", "said", "asked", "mine", "how", "shelf", "team", "more", "kept"),
    *("thing", "things", "stuff", "result", "res", "item", "data", "tmp", "temp", "foo"),
}

# What a public call measures on may be pairs, a task or a prepared setting, and `data` is the name that all of them
# share (model, data, ...): so `data` is allowed as a parameter with one of these types, and as a field.
DATA = re.compile(r"\b(Data|Pairs|Task)\b")


class Exemption(NamedTuple):
    """A filler name that may stay in one file."""

    path: str  # from the root of the repository
    name: str
    why: str


EXEMPTIONS: tuple[Exemption, ...] = ()


class Offence(NamedTuple):
    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


class _Bindings(ast.NodeVisitor):
    """Collects the filler names that a module binds: variables, parameters, attributes, functions and imports."""

    def __init__(self) -> None:
        self.fillers: list[tuple[int, str]] = []
        self._in_class = [False]  # innermost scope last
        self._data_allowed = [False]  # whether `data` is a parameter that may have this name, there or further out

    def _bind(self, node: ast.AST, name: str | None, kind: str = "variable") -> None:
        plain = (name or "").strip("_").rstrip("0123456789").lower()
        if plain in FILLERS and not (plain == "data" and self._may_be_data(node, name, kind)):
            self.fillers.append((getattr(node, "lineno", 1), name or ""))

    def _may_be_data(self, node: ast.AST, name: str | None, kind: str) -> bool:
        """Whether `data` is a parameter of one of the types of DATA, such a parameter made ready, a field or a type."""
        if isinstance(node, ast.arg) and node.annotation is not None and DATA.search(ast.unparse(node.annotation)):
            self._data_allowed[-1] = True
        return kind == "attribute" or name == "Data" or self._data_allowed[-1]

    def _visit_scope(self, node: ast.AST, in_class: bool) -> None:
        self._in_class.append(in_class)
        self._data_allowed.append(self._data_allowed[-1])
        self.generic_visit(node)
        self._in_class.pop()
        self._data_allowed.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._bind(node, node.name, "function")
        self._visit_scope(node, in_class=False)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 (ast finds methods by the names of its classes)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._visit_scope(node, in_class=False)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._bind(node, node.name, "class")
        self._visit_scope(node, in_class=True)

    def visit_arg(self, node: ast.arg) -> None:
        self._bind(node, node.arg, "parameter")
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Store):
            self._bind(node, node.id, "attribute" if self._in_class[-1] else "variable")

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Store):
            self._bind(node, node.attr, "attribute")
        self.generic_visit(node)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        self._bind(node, node.name)
        self.generic_visit(node)

    def visit_alias(self, node: ast.alias) -> None:
        self._bind(node, node.asname)

    def visit_MatchAs(self, node: ast.MatchAs | ast.MatchStar) -> None:
        self._bind(node, node.name)
        self.generic_visit(node)

    visit_MatchStar = visit_MatchAs  # noqa: N815

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        self._bind(node, node.rest)
        self.generic_visit(node)


def filler_names(tree: ast.Module) -> list[tuple[int, str]]:
    """Line and name of every filler that the module binds."""
    bindings = _Bindings()
    bindings.visit(tree)
    return bindings.fillers


def check_names(modules: Mapping[str, ast.Module], exemptions: Sequence[Exemption] = EXEMPTIONS) -> Iterator[Offence]:
    """Yield an offence for each filler name in the modules, by path, and for each exemption that none of them needs."""
    exempt = {(exemption.path, exemption.name) for exemption in exemptions}
    used = set()
    for path, tree in modules.items():
        for line, name in filler_names(tree):
            if (path, name) in exempt:
                used.add((path, name))
            else:
                yield Offence(path, line, f"`{name}` says nothing: name what it is")
    for path, name in sorted(exempt - used):
        yield Offence("scripts/check_words.py", 1, f"the exemption of `{name}` in {path} is not needed any more")


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Source:
    """Modules by their dotted names, in which a public name is followed to where it is defined.

    Args:
        modules: Syntax tree of each file, by its path from the root of the repository.
    """

    def __init__(self, modules: Mapping[str, ast.Module]) -> None:
        self.trees: dict[str, ast.Module] = {}
        self.paths: dict[str, str] = {}
        for path, tree in modules.items():
            module = ".".join(Path(path).with_suffix("").parts[1:]).removesuffix(".__init__")
            self.trees[module], self.paths[module] = tree, path

    def exported(self) -> Iterator[str]:
        """Yield the full names in `__all__` of every public package; if that is computed, the names it imports."""
        for module, path in self.paths.items():
            if not path.endswith("__init__.py") or any(part.startswith("_") for part in module.split(".")):
                continue
            for statement in _statements(self.trees[module].body):
                if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
                    try:
                        names = ast.literal_eval(statement.value)
                    except ValueError:
                        names = self._imported(module)
                    yield from (f"{module}.{name}" for name in names)

    def _imported(self, module: str) -> list[str]:
        """Names that a module imports from its own package and below."""
        return [
            alias.asname or alias.name
            for statement in _statements(self.trees[module].body)
            if isinstance(statement, ast.ImportFrom) and f"{statement.module}.".startswith(f"{module}.")
            for alias in statement.names
            if not alias.name.startswith("_") and not f"{statement.module}.".startswith(f"{module}._")
        ]

    def definitions(self, name: str) -> Iterator[tuple[str, Definition, bool]]:
        """Yield the functions and classes that a full name means, each with its path and whether it is a method.

        A module means all its public ones. A name that is bound to anything else means none.

        Raises:
            KeyError: There is no such name.
        """
        if name in self.trees:
            for statement in self.trees[name].body:
                if isinstance(statement, Definition) and not statement.name.startswith("_"):
                    yield self.paths[name], statement, False
            return
        home, _, last = name.rpartition(".")
        if home in self.trees:
            for statement in reversed([*_statements(self.trees[home].body)]):  # the last of several overloads
                if isinstance(statement, Definition) and statement.name == last:
                    yield self.paths[home], statement, False
                    return
                if isinstance(statement, ast.ImportFrom):
                    origins = [alias.name for alias in statement.names if (alias.asname or alias.name) == last]
                    if origins:
                        if f"{statement.module}".split(".")[0] in PACKAGES:
                            yield from self.definitions(f"{statement.module}.{origins[0]}")
                        return
                if isinstance(statement, ast.Assign | ast.AnnAssign):
                    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                    if last in map(ast.unparse, targets):
                        return
        elif home:
            for path, owner, _ in self.definitions(home):
                for statement in reversed(owner.body):
                    if isinstance(statement, Definition) and statement.name == last:
                        yield path, statement, isinstance(owner, ast.ClassDef)
                        return
        raise KeyError(name)

    def overrides(self, path: str, owner: ast.ClassDef, name: str) -> bool:
        """Whether a class that this one derives from has a method of the name: that one tells what it takes."""
        module = next(module for module, home in self.paths.items() if home == path)
        for base in map(ast.unparse, owner.bases):
            try:
                parents = [*self.definitions(f"{module}.{base}")]
            except KeyError:
                continue  # of Python or another package
            for home, parent, _ in parents:
                if isinstance(parent, ast.ClassDef) and (
                    any(isinstance(member, ast.FunctionDef) and member.name == name for member in parent.body)
                    or self.overrides(home, parent, name)
                ):
                    return True
        return False


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, those under `if` (such as TYPE_CHECKING) and `try` too."""
    for statement in body:
        if isinstance(statement, ast.If | ast.Try):
            yield from _statements([*statement.body, *statement.orelse])
        else:
            yield statement


def missing_sections(function: ast.FunctionDef | ast.AsyncFunctionDef, method: bool) -> list[str]:
    """Sections that the docstring of a function should have and has not: "Args", "Returns"."""
    arguments = function.args
    parameters = [*arguments.posonlyargs, *arguments.args]
    if method and "staticmethod" not in map(ast.unparse, function.decorator_list):
        parameters = parameters[1:]  # self or cls
    parameters += [*arguments.kwonlyargs, *filter(None, (arguments.vararg, arguments.kwarg))]
    returned = "None" if function.returns is None else ast.unparse(function.returns)
    headings = set((ast.get_docstring(function) or "").splitlines())
    missing = []
    if parameters and "Args:" not in headings:
        missing.append("Args")
    if returned not in ("None", "NoReturn", "Never") and not headings & {"Returns:", "Yields:"}:
        missing.append("Returns")
    return missing


def check_docstrings(modules: Mapping[str, ast.Module], reference: str) -> Iterator[Offence]:
    """Yield an offence for each public function without Args or Returns.

    Public is what `reference`, the text of docs/api.md, shows by lines `::: name`, what packages export, and the public
    methods of such classes; properties need no sections, nor do methods that override one of ours.
    """
    source = Source(modules)
    lines = enumerate(reference.splitlines(), 1)
    shown = {text.removeprefix("::: ").strip(): line for line, text in lines if text.startswith("::: ")}
    seen = set()
    for name in [*shown, *source.exported()]:
        try:
            definitions = [*source.definitions(name)]
        except KeyError:
            yield Offence("docs/api.md" if name in shown else "src", shown.get(name, 1), f"there is no {name}")
            continue
        for path, definition, method in definitions:
            for function, is_method in _functions(definition, method):
                if (path, function.lineno) in seen:
                    continue
                seen.add((path, function.lineno))
                if isinstance(definition, ast.ClassDef) and source.overrides(path, definition, function.name):
                    continue
                for section in missing_sections(function, is_method):
                    yield Offence(path, function.lineno, f"public function `{function.name}` has no {section}")


def _functions(definition: Definition, method: bool) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, bool]]:
    """Yield the function itself, or the public methods of a class, each with whether it is a method."""
    if not isinstance(definition, ast.ClassDef):
        yield definition, method
        return
    for statement in definition.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) and not statement.name.startswith("_"):
            decorators = " ".join(map(ast.unparse, statement.decorator_list))
            if not re.search(r"property|overload|\.setter", decorators):
                yield statement, True


def read_modules(root: Path) -> dict[str, ast.Module]:
    """Syntax trees of the packages in src/, by path from the root."""
    return {
        path.relative_to(root).as_posix(): ast.parse(path.read_bytes())
        for package in PACKAGES
        for path in sorted((root / "src" / package).rglob("*.py"))
    }


def main(root: Path) -> int:
    """Print every offence, and return 1 if there is any."""
    modules = read_modules(root)
    reference = (root / "docs" / "api.md").read_text(encoding="utf-8")
    names, docstrings = [*check_names(modules)], [*check_docstrings(modules, reference)]
    for offence in sorted([*names, *docstrings]):
        print(offence)
    if names or docstrings:
        print(f"{len(names)} names that say nothing, {len(docstrings)} sections missing in docstrings", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1]))
