"""Random attacks for some minutes: stores spoilt in every way we know, hostile numbers and names on the command line.

    python tests/attack/attack.py --minutes 10        what `make attack` runs, after the tests with the marker `attack`

Nothing leaves the machine: the package is told that there is no network, and no URL is used. A round may end with a
result, or with a `GatewiseError`; sound entries are never lost or changed, and nothing outside the store is touched.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from typer.testing import CliRunner

from gatewise.archive import pack
from gatewise.cli.main import app
from gatewise.errors import GatewiseError, printable
from gatewise.store import SCHEMA, Store
from gatewise.store.maintenance import collect, list_entries

RESULTS = 6  # in each store
NUMBERS = ["0", "-1", "1e400", "nan", "", "9" * 400, str(2**70), str(-(2**63)), "\u0661", "0x10", "1_000", "1GB\x1b[2J"]
OPTIONS = ["--seed", "--examples", "--memory", "--random", "--edges", "--workers", "--sizes"]
NAMES = [
    "",
    " ",
    ".",
    "..",
    "\x1b]0;owned\x07",
    "a\nb",
    "\u202egnp.exe",
    "/dev/zero",
    "-",
    "--",
    "$A",
    "%s%n",
    "x" * 5000,
]


def fill(store: Store) -> dict[int, int]:
    """Results that a store is to give back."""
    return {
        number: store.remember({"number": number}, lambda number=number: number * number) for number in range(RESULTS)
    }


def spoil(path: Path, dice: random.Random, elsewhere: Path) -> str:
    """Do something to an entry, and say what."""
    content = path.read_bytes()
    kind = dice.choice(
        ["flip", "cut", "longer", "empty", "pipe", "link", "folder", "sparse", "newer", "older", "other"]
    )
    path.unlink()
    if kind == "flip":
        place = dice.randrange(len(content))
        path.write_bytes(content[:place] + bytes([content[place] ^ 1 << dice.randrange(8)]) + content[place + 1 :])
    elif kind in ("cut", "longer", "empty"):
        path.write_bytes(
            {"cut": content[: dice.randrange(len(content))], "longer": content + b"\0", "empty": b""}[kind]
        )
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(elsewhere)
    elif kind == "folder":
        path.mkdir()
    elif kind == "sparse":
        with path.open("wb") as stream:
            stream.truncate(1 << 41)
    elif kind in ("newer", "older"):
        path.write_bytes(pack({"schema": SCHEMA + (1 if kind == "newer" else -1), "key": path.stem}, {}))
    else:
        path.write_bytes(elsewhere.read_bytes())
    return kind


def attack_store(dice: random.Random) -> str:
    """Spoil an entry of a store; all others stay, and what was spoilt is computed again, or refused if it is newer."""
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder, elsewhere = Path(place) / "store", Path(place) / "elsewhere"
        elsewhere.write_bytes(b"not ours")
        wanted = fill(Store(folder))
        paths = sorted(folder.glob("*/*.safetensors"))
        others = {path: path.read_bytes() for path in paths}
        victim = dice.choice(paths)
        del others[victim]
        kind = spoil(victim, dice, elsewhere)
        if dice.random() < 0.5:
            list_entries(Store(folder))
        if dice.random() < 0.5 and kind != "folder":
            collect(Store(folder))
        try:
            assert fill(Store(folder)) == wanted
        except GatewiseError:
            assert kind in ("newer", "folder"), kind
        for path, content in others.items():
            assert path.read_bytes() == content, f"{kind}: another entry changed"
        assert elsewhere.read_bytes() == b"not ours", f"{kind}: a file outside changed"
        return kind


def attack_command(dice: random.Random) -> str:
    """A command with numbers and names that make no sense: an error of a user's, never an internal one."""
    words = ["discover", "tiny", "--edges", "10", "--examples", "2"]
    option = dice.choice([*OPTIONS, "--store", "--task", "--method", "--model"])
    value = dice.choice(NAMES if option in ("--store", "--task", "--method", "--model") else NUMBERS)
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.chdir(place)
        outcome = CliRunner().invoke(app, [*words, "--out", str(Path(place) / "out"), option, value])
        os.chdir("/")
    if outcome.exception is not None and not isinstance(outcome.exception, SystemExit | GatewiseError):
        raise AssertionError(f"{option} {value!r}: {outcome.exception!r}") from outcome.exception
    assert "\x1b" not in printable(str(outcome.exception))
    return option


ATTACKS: dict[str, Callable[[random.Random], str]] = {"store": attack_store, "command": attack_command}


def main() -> None:
    """Attack until the time is over, and print how often in which way."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--minutes", type=float, default=10)
    options.add_argument("--seed", type=int, default=0)
    chosen = options.parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "PIP_NO_INDEX": "1"}
    rounds, problems = Counter[str](), []
    for name, attack in ATTACKS.items():
        until, number = time.monotonic() + 60 * chosen.minutes / len(ATTACKS), 0
        while time.monotonic() < until:
            number += 1
            try:
                rounds[f"{name} {attack(random.Random(f'{name} {chosen.seed} {number}'))}"] += 1
            except Exception as error:
                problems.append(f"{name}, round {number}: {error!r}")
    for way, count in sorted(rounds.items()):
        print(f"{way}: {count:,}")
    print("\n".join([f"{sum(rounds.values()):,} rounds, {len(problems)} problems", *problems]))
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
