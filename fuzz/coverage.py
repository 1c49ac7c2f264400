"""One target under atheris, whose inputs follow what lines they reach: `python fuzz/coverage.py TARGET CORPUS ...`.

Further arguments are libFuzzer's. Called by run.py.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parent))

with atheris.instrument_imports(include=["gatewise", "tomllib", "json", "csv"]):
    from targets import TARGETS

from mutate import mutated


def main() -> None:
    target = TARGETS[sys.argv.pop(1)]
    seeds = target.seeds()
    corpus = Path(sys.argv[1])
    for i, seed in enumerate(seeds):
        (corpus / f"seed-{i}").write_bytes(seed)

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        """Half of the time libFuzzer's own mutations, half of the time ours, of what it has found worth keeping."""
        rng = random.Random(seed)
        if rng.random() < 0.5:
            return bytes(atheris.Mutate(data, most))
        return mutated(rng, [data, *seeds], target.json)[:most]

    atheris.Setup(sys.argv, target.run, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
