"""Does the interval of the Jaccard index hold what two independent draws of pairs agree on? `make coverage-study`

Each case draws pairs twice, independently, from a large pool: on `tiny` for the three tasks, and on synthetic models
with noise. The 95 % interval is made from the first draw alone, and is right if it holds the Jaccard index of the
circuits of both draws. Where templates are resampled, a draw has templates of its own, too.

    python bench/coverage_study.py [--cases 100] [--seed 0]
"""

from __future__ import annotations

import argparse
import random

import torch

import gatewise as gw
from gatewise.circuits.selection import select_edges
from gatewise.methods import score_examples
from gatewise.methods.example_scores import ExampleScores
from gatewise.models.synthetic.random_circuits import random_logic_model
from gatewise.validity.confidence import resample_scores, resampled_units

KINDS = ("ioi", "gt", "sa", "synthetic", "synthetic")
SIZES, EXAMPLES, POOL = (50, 100, 200, 500), (16, 32, 64), 1_000


class Pool:
    """Scores of many examples, from which draws are made."""

    def __init__(self, scores: ExampleScores) -> None:
        self.scores, self.rows = scores, torch.cat([block for _, block in scores.blocks()])

    def draw(self, rng: random.Random, examples: int) -> ExampleScores:
        """Draw examples; where pairs share templates, templates first."""
        unit, units = resampled_units(self.scores.pairs)
        if unit == "templates":
            count = len(set(units))
            chosen = []
            for template in rng.choices(range(count), k=count):
                members = [row for row, owner in enumerate(units) if owner == template]
                chosen += rng.sample(members, max(1, examples // count))
        else:
            chosen = rng.sample(range(len(self.rows)), examples)
        pairs = self.scores.pairs[chosen]
        return ExampleScores(self.scores.graph, pairs, {}, [slice(0, len(chosen))], [self.rows[chosen]])


def jaccard(first: ExampleScores, second: ExampleScores, edges: int) -> float:
    masks = [select_edges(scores.graph, scores.mean().values.abs(), edges) for scores in (first, second)]
    return float((masks[0] & masks[1]).sum() / (masks[0] | masks[1]).sum())


def run_case(pool: Pool, rng: random.Random, edges: int, resamples: int) -> tuple[bool, float, float, float, float]:
    """Whether the interval holds the Jaccard index of two draws, that index, and the interval's mean, width, plain."""
    examples = rng.choice(EXAMPLES)
    first, second = pool.draw(rng, examples), pool.draw(rng, examples)
    truth = jaccard(first, second, edges)
    confidence = resample_scores(first, edges=edges, resamples=resamples, seed=rng.randrange(1 << 30))
    interval = confidence.jaccard
    holds = interval.low - 1e-9 <= truth <= interval.high + 1e-9
    return holds, truth, interval.value, interval.high - interval.low, confidence.plain_jaccard


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--resamples", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    tiny = gw.load_model("tiny")
    pools = {kind: Pool(score_examples(tiny, gw.task(kind, tiny, examples=POOL).train)) for kind in KINDS[:3]}
    outcomes: dict[str, list[tuple[bool, float, float, float, float]]] = {}
    for case in range(options.cases):
        kind = KINDS[case % len(KINDS)]
        if kind == "synthetic":
            synthetic = random_logic_model(case, layers=3, noise=0.3, examples=400)
            pool = Pool(score_examples(synthetic.model, synthetic.pairs))
            size = max(4, round(len(synthetic.circuit) * rng.choice((0.5, 1, 1.5))))
        else:
            pool, size = pools[kind], rng.choice(SIZES)
        outcomes.setdefault(kind, []).append(run_case(pool, rng, size, options.resamples))
    print("| pairs | cases | covered | mean Jaccard of draws | of resamples | plain | mean width |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for kind in (*outcomes, "all"):
        rows = torch.tensor([row for name, group in outcomes.items() if kind in (name, "all") for row in group])
        covered, truth, value, width, plain = rows.double().mean(dim=0).tolist()
        print(f"| {kind} | {len(rows)} | {covered:.0%} | {truth:.3f} | {value:.3f} | {plain:.3f} | {width:.3f} |")


if __name__ == "__main__":
    main()
