"""Files of the working folder do not run: not in pip, not in workers, not in what starts them, on every Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gatewise.import_path import leave_out_working_folder, take_up
from gatewise.models.download import _run_watched
from gatewise.progress import progress_bar

pytestmark = pytest.mark.attack

SOURCES = Path(__file__).parents[1] / "src"
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
# Modules that pip, multiprocessing, a fork server, its tracker or a worker imports.
NAMES = (
    *("pip", "torch", "transformers", "numpy", "safetensors", "psutil", "filelock", "multiprocessing", "concurrent"),
    *("socket", "struct", "random", "signal", "pickle", "selectors", "runpy", "importlib", "typing", "json", "logging"),
)


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder of modules that leave a file when they are run."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    for name in NAMES:
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / name)!r} + '.ran', 'w').close()\n")
    return folder


def ran(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.parent.glob("*.ran"))


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SOURCES), "OMP_NUM_THREADS": "1"}


def interpreter(version: str) -> str:
    """A Python of this version: this one, or another one of the machine."""
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        return sys.executable
    path = shutil.which(f"python{version}")
    if path is None or subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode != 0:
        pytest.skip(f"there is no Python {version} here; CI runs the tests on each")
    return path


POOL = """
import multiprocessing, os, sys
from concurrent.futures import ProcessPoolExecutor
from gatewise.import_path import starting_elsewhere, take_up

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    if sys.argv[1] == "forkserver":
        context.set_forkserver_preload(["torch", "json", "logging"])
    folder = os.getcwd()
    with starting_elsewhere():
        pool = ProcessPoolExecutor(1, mp_context=context)
        begun = pool.submit(take_up, folder, list(sys.path))
    begun.result()
    assert "PYTHONSAFEPATH" not in os.environ
    assert pool.submit(os.getcwd).result() == os.getcwd() == folder
    print(pool.submit(os.getpid).result() != os.getpid())
"""


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
@pytest.mark.parametrize("version", PYTHONS)
def test_processes_start_without_the_working_folder(hostile: Path, version: str, method: str) -> None:
    script = hostile.parent / "script.py"
    script.write_text(POOL)
    command = [interpreter(version), str(script), method]
    done = subprocess.run(command, cwd=hostile, env=environment(), capture_output=True, text=True, check=False)
    assert (done.stdout, ran(hostile)) == ("True\n", []), done.stderr


@pytest.mark.parametrize("start", ["script", "module"])
def test_workers_of_a_command_run_nothing_of_the_working_folder(hostile: Path, start: str) -> None:
    """`torch.py` ran when the fork server made its imports."""
    script = hostile.parent / "gatewise-script.py"  # what pip makes of the entry point
    script.write_text("from gatewise.cli.main import main\nif __name__ == '__main__':\n    main()\n")
    if start == "module":  # the standard library is imported before anything of ours can run
        for name in NAMES:
            if name in sys.stdlib_module_names:
                (hostile / f"{name}.py").unlink()
    command = [sys.executable, *((str(script),) if start == "script" else ("-m", "gatewise"))]
    command += ["discover", "tiny", "--examples", "4", "--method", "acdc", "--direction", "ns,dn", "--threshold", "0.5"]
    command += ["--workers", "2", "--out", "circuits"]
    done = subprocess.run(command, cwd=hostile, env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, ran(hostile)) == (0, []), done.stderr


def test_pip_runs_nothing_of_the_working_folder(hostile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(hostile)
    folder = hostile.parent / "download"
    folder.mkdir()
    with progress_bar("pip", 1) as bar:
        code, log = _run_watched([sys.executable, "-m", "pip", "--version"], folder, bar)
    assert (code, ran(hostile)) == (0, []), log
    assert log.startswith("pip ")


def test_modules_of_the_user_are_found_last(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A worker finds a user's own module beside the script; it stands for no other."""
    monkeypatch.chdir(Path(__file__).parent)
    monkeypatch.setattr(sys, "path", ["", "/library"])
    take_up(str(tmp_path), ["", "/script", "/library"])
    assert sys.path == ["/library", "/script", str(tmp_path)]
    assert Path.cwd() == tmp_path
    take_up(str(tmp_path), ["/library"])
    assert sys.path == ["/library", "/script"]


def test_our_own_folder_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), "/library"])
    leave_out_working_folder(keep="/elsewhere")
    assert sys.path == ["/library"]
    sys.path.insert(0, str(tmp_path))
    leave_out_working_folder(keep=str(tmp_path))
    assert sys.path == [str(tmp_path), "/library"]
