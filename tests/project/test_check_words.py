"""The check of words sees names that say nothing and docstrings without sections, and lets through what it should."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "check_words.py"


@pytest.fixture(scope="module")
def words() -> Any:
    spec = importlib.util.spec_from_file_location("check_words", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("found = 1", "found"),
        ("first, *more = []", "more"),
        ("def f(one: int) -> None: ...", "one"),
        ("def f(*some: int) -> None: ...", "some"),
        ("def f(**more: int) -> None: ...", "more"),
        ("lambda thing: 1", "thing"),
        ("for place in []: ...", "place"),
        ("[1 for item in []]", "item"),
        ("{kept: 1 for kept in []}", "kept"),
        ("with open('f') as told: ...", "told"),
        ("try: ...\nexcept OSError as said: ...", "said"),
        ("if (asked := 1): ...", "asked"),
        ("self.mine = 1", "mine"),
        ("class A:\n    how: int", "how"),
        ("import json as stuff", "stuff"),
        ("match 1:\n    case int() as res: ...", "res"),
        ("def result() -> None: ...", "result"),
        ("class _Place: ...", "_Place"),
        ("tmp2 = 1", "tmp2"),
        ("def f() -> None:\n    data = 1", "data"),
        ("for data in []: ...", "data"),
        ("def f(data: bytes) -> None: ...", "data"),
        ("def f(data) -> None: ...", "data"),
        ("def f(data: Data) -> None: ...\ndata = 1", "data"),
    ],
)
def test_a_name_that_says_nothing_is_seen(words: Any, source: str, name: str) -> None:
    assert [seen for _, seen in words.filler_names(ast.parse(source))] == [name]


@pytest.mark.parametrize(
    "source",
    [
        "circuits = foundation = someone = placement = 1",
        "print(found, run.result(), run.found)",
        "call(more=1)",
        "def f(data: Data) -> None: ...",
        "def f(data: Pairs | None = None) -> None:\n    data = ready(data)",
        "def f(data: 'Task') -> None:\n    def g() -> None:\n        data = 1",
        "class A:\n    data: bytes",
        "Data = int | str",
    ],
)
def test_other_names_are_let_through(words: Any, source: str) -> None:
    assert words.filler_names(ast.parse(source)) == []


def test_an_offence_says_where(words: Any) -> None:
    (offence,) = words.check_names({"src/gatewise/a.py": ast.parse("import json\nfound = 1")})
    assert str(offence) == "src/gatewise/a.py:2: `found` says nothing: name what it is"


def test_an_exemption_holds_for_its_name_in_its_file(words: Any) -> None:
    modules = {"src/gatewise/a.py": ast.parse("found = one = 1"), "src/gatewise/b.py": ast.parse("found = 1")}
    exemption = words.Exemption("src/gatewise/a.py", "found", why="for this test")
    assert [(offence.path, offence.message.split()[0]) for offence in words.check_names(modules, [exemption])] == [
        ("src/gatewise/a.py", "`one`"),
        ("src/gatewise/b.py", "`found`"),
    ]


def test_an_exemption_that_nothing_needs_is_an_offence(words: Any) -> None:
    exemption = words.Exemption("src/gatewise/a.py", "found", why="for this test")
    (offence,) = words.check_names({"src/gatewise/a.py": ast.parse("circuit = 1")}, [exemption])
    assert "not needed any more" in offence.message


def test_every_exemption_says_why(words: Any) -> None:
    assert all(len(exemption.why.split()) > 2 for exemption in words.EXEMPTIONS)


def messages(words: Any, files: dict[str, str], reference: str = "") -> list[str]:
    modules = {f"src/gatewise/{path}": ast.parse(text) for path, text in files.items()}
    return [str(offence) for offence in words.check_docstrings(modules, reference)]


@pytest.mark.parametrize(
    ("function", "missing"),
    [
        ('def f(a: int) -> int:\n    """One line."""', ["Args", "Returns"]),
        ("def f(a: int) -> int: ...", ["Args", "Returns"]),
        ('def f() -> int:\n    """One line."""', ["Returns"]),
        ('def f(*, a: int) -> None:\n    """One line."""', ["Args"]),
        ('def f() -> None:\n    """One line."""', []),
        ('def f(a: int) -> int:\n    """F.\n\n    Args:\n        a: A.\n\n    Returns:\n        B.\n    """', []),
        ('def f() -> Iterator[int]:\n    """F.\n\n    Yields:\n        Numbers.\n    """', []),
    ],
)
def test_missing_sections_are_seen(words: Any, function: str, missing: list[str]) -> None:
    assert messages(words, {"graph.py": function}, "::: gatewise.graph.f\n") == [
        f"src/gatewise/graph.py:1: public function `f` has no {section}" for section in missing
    ]


def test_public_is_what_the_reference_shows(words: Any) -> None:
    files = {"graph.py": "def shown() -> int: ...\ndef hidden() -> int: ...\ndef _private() -> int: ..."}
    assert messages(words, files) == []
    assert messages(words, files, "# Reference\n\n::: gatewise.graph.shown\n") == [
        "src/gatewise/graph.py:1: public function `shown` has no Returns"
    ]
    assert len(messages(words, files, "::: gatewise.graph\n")) == 2  # a module shows all but the private one


def test_public_is_what_packages_export(words: Any) -> None:
    """Through the packages in between, from private modules, and where `__all__` is computed."""
    files = {
        "__init__.py": "if TYPE_CHECKING:\n    from gatewise.circuits import draw as draw\n__all__ = sorted(NAMES)",
        "circuits/__init__.py": "from gatewise.circuits._drawing import COLOUR, draw\n__all__ = ['COLOUR', 'draw']",
        "circuits/_drawing.py": "COLOUR = 'blue'\ndef draw() -> int: ...\ndef helper() -> int: ...",
    }
    assert messages(words, files) == ["src/gatewise/circuits/_drawing.py:2: public function `draw` has no Returns"]


def test_public_methods_of_public_classes_count(words: Any) -> None:
    text = """
class Graph:
    def edges(self) -> int: ...
    def show(self) -> None: ...
    @property
    def size(self) -> int: ...
    @classmethod
    def load(cls) -> Graph: ...
    @staticmethod
    def count(edges: int) -> None: ...
    def _private(self) -> int: ...
    def __len__(self) -> int: ...
"""
    assert [
        line.split(": public function ")[1] for line in messages(words, {"g.py": text}, "::: gatewise.g.Graph")
    ] == [
        "`edges` has no Returns",
        "`load` has no Returns",
        "`count` has no Args",
    ]


def test_a_method_that_overrides_another_needs_no_sections(words: Any) -> None:
    files = {
        "base.py": "class Method:\n    def search(self) -> int: ...",
        "eap.py": "from gatewise.base import Method\nclass _Mean(Method): ...\n"
        "class Eap(_Mean):\n    def search(self) -> int: ...\n    def rank(self) -> int: ...",
    }
    assert messages(words, files, "::: gatewise.eap.Eap") == [
        "src/gatewise/eap.py:5: public function `rank` has no Returns"
    ]


def test_a_name_that_is_not_there_is_an_offence(words: Any) -> None:
    assert messages(words, {"graph.py": ""}, "# Reference\n::: gatewise.graph.gone") == [
        "docs/api.md:2: there is no gatewise.graph.gone"
    ]


def test_the_command_fails_on_a_bad_name(tmp_path: Path) -> None:
    (tmp_path / "src/gatewise").mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/api.md").write_text("# Reference\n", encoding="utf-8")
    module = tmp_path / "src/gatewise/graph.py"
    for text, code, printed in (
        ("edges = 1\n", 0, ""),
        ("found = 1\n", 1, "src/gatewise/graph.py:1: `found` says nothing: name what it is\n"),
    ):
        module.write_text(text, encoding="utf-8")
        done = subprocess.run([sys.executable, str(SCRIPT), str(tmp_path)], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (code, printed)
