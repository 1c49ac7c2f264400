"""Delete moves to a device, one at a time, and see whether the stand-in accelerator notices.

    python scripts/mutate_devices.py --count 20 --seed 0

Each mutation deletes one `.to(device)`, `on_device(...)` or `device=` of a copy of the package; a fork then runs every
public call of tests/standin_calls.py on the stand-in. A mutation is *caught* if a call raises or gives other numbers
than the CPU. What is not caught is printed with its line: on CUDA it would be as harmless, or no test reaches it.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
_ROOMS = ("engine", "evaluation", "gates", "methods", "models", "report", "tasks")
_ARCHITECTURES = ("llama", "gemma3", "olmo2")


class Mutation(NamedTuple):
    """A stretch of a file, and what comes in its place."""

    path: Path
    start: int
    end: int
    text: str

    def describe(self) -> str:
        source = self.path.read_text()
        line = source.count("\n", 0, self.start) + 1
        return f"{self.path.relative_to(ROOT)}:{line}: {source[self.start : self.end]} -> {self.text or 'nothing'}"


def candidates(folder: Path) -> Iterator[Mutation]:
    """All moves to a device in the rooms that compute."""
    for path in sorted(path for room in _ROOMS for path in (folder / room).rglob("*.py")):
        source = path.read_text()
        for match in re.finditer(r"\.to\(|\bon_device\(|\brows_of\(", source):
            end = _closing(source, match.end())
            inside = source[match.end() : end - 1]
            if match[0] != ".to(":
                yield Mutation(path, match.start(), end, inside[: _first_comma(inside)])
            elif "device" in inside:
                yield Mutation(path, match.start(), end, "")
        for match in re.finditer(r", device=[\w.]+", source):
            yield Mutation(path, match.start(), match.end(), "")


def _closing(source: str, start: int) -> int:
    """Where a parenthesis that is open at `start` has been closed."""
    depth, end = 1, start
    while depth:
        depth += {"(": 1, ")": -1}.get(source[end], 0)
        end += 1
    return end


def _first_comma(inside: str) -> int:
    depth = 0
    for position, sign in enumerate(inside):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(sign, 0)
        if sign == "," and depth == 0:
            return position
    return len(inside)


def numbers(folder: Path, device: str, target: Path, expected: Path | None) -> None:
    """In a fork: run all calls with the package of a folder; save their numbers, or compare them with saved ones."""
    sys.path.insert(0, str(folder))
    warnings.simplefilter("ignore")
    import standin_calls
    import torch
    from small_models import random_pairs, small_model

    import gatewise as gw

    model = gw.load_model("tiny", device=device)
    task = gw.task("ioi", model, examples=8)
    known = {} if expected is None else torch.load(expected)
    given = {}
    for call, compute in standin_calls.CALLS.items():
        given[call] = dict(standin_calls.numbers_of(compute(model, task)))
        if known:
            _check(call, given[call], known[call])
    for architecture in _ARCHITECTURES:
        small, pairs = small_model(architecture, device=device), random_pairs(lengths=(6, 4, 6, 5) * 2)
        outcome = {
            "eap": gw.score_edges(small, pairs),
            "evaluate": gw.evaluate(small, pairs, gw.discover(small, pairs, edges=60)),
        }
        if small.changes_singly:
            outcome |= {"acdc": gw.discover(small, pairs, "acdc", threshold=0.05)}
            outcome |= {"gate": gw.test_gate(small, pairs, "a1.h0", {"q": "<q>", "v": "<v>"})}
        given[architecture] = dict(standin_calls.numbers_of(outcome))
        if known:
            _check(architecture, given[architecture], known[architecture])
    torch.save(given, target)


def _check(call: str, given: dict[str, object], known: dict[str, object]) -> None:
    import torch

    for path, value in known.items():
        other = given[path]
        equal = (
            torch.equal(other.nan_to_num(), value.nan_to_num()) if isinstance(value, torch.Tensor) else other == value
        )
        if not equal:
            raise AssertionError(f"{call}{path} has other numbers")


def forked(folder: Path, device: str, target: Path, expected: Path | None = None) -> str:
    """Run `numbers` in a fork of this process; return what it ended with, "" if nothing was wrong."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        problem = ""
        try:
            numbers(folder, device, target, expected)
        except BaseException as error:
            problem = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        os.write(writing, problem[:2000].encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        problem = pipe.read().decode()
    os.waitpid(child, 0)
    return problem


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    # Imported once, before the forks; the package itself is not, since each fork has another.
    import standin_device
    import torch
    import transformers.models.gpt2.modeling_gpt2  # noqa: F401

    standin_device.load_into_process()
    torch.set_num_threads(1)
    package = ROOT / "src" / "gatewise"
    chosen = random.Random(options.seed).sample(list(candidates(package)), options.count)
    with tempfile.TemporaryDirectory() as scratch:
        expected = Path(scratch, "expected.pt")
        problem = forked(ROOT / "src", "cpu", expected) or forked(
            ROOT / "src", "standin:1", expected.with_name("x"), expected
        )
        assert not problem, f"without any mutation: {problem}"
        for mutation in chosen:
            copy = Path(scratch, "copy")
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(ROOT / "src", copy)
            source = mutation.path.read_text()
            mutated = source[: mutation.start] + mutation.text + source[mutation.end :]
            (copy / mutation.path.relative_to(ROOT / "src")).write_text(mutated)
            problem = forked(copy, "standin:1", expected.with_name("x"), expected)
            print(f"{'caught' if problem else 'NOT CAUGHT'}  {mutation.describe()}\n    {problem}", flush=True)


if __name__ == "__main__":
    main()
