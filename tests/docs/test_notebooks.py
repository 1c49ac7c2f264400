"""The example notebook runs from top to bottom, and the outputs in it are those of this version."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CONTENT = json.loads((ROOT / "docs" / "example.ipynb").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """The notebook run by the script that keeps its outputs, and the folder it ran in."""
    spec = importlib.util.spec_from_file_location("run_notebook", ROOT / "scripts" / "run_notebook.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    folder = tmp_path_factory.mktemp("notebook")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return script.executed(CONTENT), folder


def words(content: dict[str, Any]) -> list[list[str]]:
    """What each cell shows, without the numbers: those may differ in the last digits from machine to machine."""
    found = []
    for cell in content["cells"]:
        texts = []
        for output in cell.get("outputs", []):
            for kind, text in {"stdout": output.get("text", []), **output.get("data", {})}.items():
                texts += [kind, " ".join(re.sub(r"[-+]?\d[\d.,]*(e-\d+)?", "#", "".join(text)).split())]
        found.append(texts)
    return found


def test_outputs_are_of_this_version(ran: tuple[dict[str, Any], Path]) -> None:
    """If this fails after a change of what objects show, run `make notebook`."""
    assert words(CONTENT) == words(ran[0])


def test_every_code_cell_but_the_last_shows_something() -> None:
    code = [cell for cell in CONTENT["cells"] if cell["cell_type"] == "code"]
    assert len(code) >= 10
    assert [bool(cell["outputs"]) for cell in code] == [True] * (len(code) - 1) + [False]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert sum("text/html" in output.get("data", {}) for cell in code for output in cell["outputs"]) >= 5


def test_the_files_it_writes(ran: tuple[dict[str, Any], Path]) -> None:
    assert sorted(path.name for path in ran[1].iterdir()) == ["circuit.json", "circuit.svg", "gates.safetensors"]


def test_format() -> None:
    assert (CONTENT["nbformat"], CONTENT["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in CONTENT["cells"]]
    assert len(set(ids)) == len(ids)
