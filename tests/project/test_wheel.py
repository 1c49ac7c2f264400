"""The sdist and the wheel made of it hold all that is needed: installed apart from the repository, they run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD = "import sys; from setuptools import build_meta as b; print(getattr(b, 'build_' + sys.argv[1])(sys.argv[2]))"


def python(*words: str, folder: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": "", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a copy of the repository the sdist, of the sdist the wheel."""
    place = tmp_path_factory.mktemp("dist")
    copy = place / "repository"
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    name = python("-c", BUILD, "sdist", str(place), folder=copy).splitlines()[-1]
    with tarfile.open(place / name) as archive:
        archive.extractall(place, filter="data")
    unpacked = place / name.removesuffix(".tar.gz")
    return place / python("-c", BUILD, "wheel", str(place), folder=unpacked).splitlines()[-1]


def test_the_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    here = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src/gatewise").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    there = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("gatewise/")}
    assert there == here


def test_the_wheel_runs_without_the_repository(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "installed"
    python(
        "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(target), str(wheel), folder=tmp_path
    )
    found = python("-c", "import gatewise; print(gatewise.__file__)", folder=tmp_path, PYTHONPATH=str(target))
    assert Path(found.strip()).parent == target / "gatewise"
    command = ("-m", "gatewise.cli.main", "run", "tiny", "--edges", "20", "--examples", "2", "--out", "here")
    assert "How faithful?" in python(*command, folder=tmp_path, PYTHONPATH=str(target))
    assert "<!doctype html>" in (tmp_path / "here/report.html").read_text(encoding="utf-8")
