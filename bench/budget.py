"""Extra memory of searches and evaluations against the budget they were given, by the length of prompts.

    python bench/budget.py                          # the table of docs/benchmarks.md, some minutes
    python bench/budget.py --tokens 500 --jobs eap

Every measurement is a fresh process with a small random model. The pairs differ from their first token on, so that the
two sides share nothing, or in the last 20 tokens. Extra memory is the peak of resident memory during the call, less
what was resident before. A method is one line of `JOBS`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import torch
from measure import Job, environment, extra_memory, peak_in_fresh_process
from transformers import LlamaConfig, LlamaForCausalLM

import gatewise as gw
from gatewise.methods import Acdc, EapIg, EdgePruning, Ranking
from gatewise.models.model import Model
from gatewise.models.transformer import adapt
from gatewise.tasks.pairs import Pairs

BUDGETS = {32: 100, 500: 100, 2_000: 300, 4_000: 600}  # tokens: MB
EXAMPLES = {32: 200, 500: 20, 2_000: 4, 4_000: 2}
EXAMPLES_OF_STATES = {32: 16, 500: 1, 2_000: 1, 4_000: 1}  # of ACDC, which keeps the states of all of them
DIFFERENT = 20  # tokens, where the beginning is shared
VOCABULARY = 512
MOST = 1.2  # times the budget

Run = Callable[[Model, Pairs, gw.Compute], object]
JOBS: dict[str, Run] = {
    "eap": lambda model, pairs, compute: gw.discover(model, pairs, "eap", "ns+dn", edges=100, compute=compute),
    "eap-ig": lambda model, pairs, compute: gw.discover(model, pairs, EapIg(steps=3), edges=100, compute=compute),
    "acdc": lambda model, pairs, compute: gw.discover(model, pairs, Acdc(), threshold=1e-3, compute=compute),
    "edge-pruning": lambda model, pairs, compute: gw.discover(
        model, pairs, EdgePruning(steps=3), edges=100, compute=compute
    ),
    "ranking": lambda model, pairs, compute: gw.discover(model, pairs, Ranking(steps=3), edges=100, compute=compute),
    "evaluation": lambda model, pairs, compute: gw.evaluate(
        model, pairs, model.graph.random_circuit(100, seed=0), random_circuits=1, compute=compute
    ),
}


def random_model() -> Model:
    """A Llama of 4 layers and 4 heads with random weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=max(BUDGETS),
    )
    return adapt(LlamaForCausalLM(config), name="random")


def random_pairs(examples: int, tokens: int, different: int) -> Pairs:
    """Pairs whose last tokens differ."""
    generator = torch.Generator().manual_seed(0)
    clean = torch.randint(1, VOCABULARY, (examples, tokens), generator=generator)
    corrupted = clean.clone()
    corrupted[:, -different:] = clean[:, -different:] % (VOCABULARY - 2) + 1
    return Pairs.from_tokens(clean.tolist(), corrupted.tolist(), [1] * examples, [2] * examples)


def make_job(name: str, tokens: int, different: int, budget: int) -> Job:
    """A job on prompts of so many tokens, within so many MB."""
    model, examples = random_model(), (EXAMPLES_OF_STATES if name == "acdc" else EXAMPLES)[tokens]
    pairs = random_pairs(examples, tokens, different)
    # What torch and the library load when they are first used is not the work's: so everything is used once before.
    JOBS[name](model, random_pairs(2, 8, 4), gw.Compute())
    return Job(lambda: lambda: JOBS[name](model, pairs, gw.Compute(memory=f"{budget}MB")))


def measure_all(names: list[str], tokens: list[int]) -> bool:
    """Print the table; say whether all keep the budget."""
    print("| tokens | budget, MB |", " | ".join(names), "|")
    print("| ---: | ---: |", " | ".join("---:" for _ in names), "|")
    kept = True
    for count in tokens:
        budget = BUDGETS[count]
        for different in (count, DIFFERENT):
            shares = []
            for name in names:
                arguments = ["--child", name, "--tokens", str(count), "--different", str(different)]
                extra = peak_in_fresh_process(__file__, arguments)
                kept = kept and extra <= MOST * budget * 2**20 / 1e6
                shares.append(f"{extra:,.0f}")
            shared = "" if different == count else f", {count - DIFFERENT} of them shared"
            print(f"| {count:,}{shared} | {budget * 2**20 / 1e6:,.0f} |", " | ".join(shares), "|", flush=True)
    return kept


def main() -> None:
    """Measure, or be the process that is measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", choices=BUDGETS, default=list(BUDGETS))
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--child", choices=JOBS, help=argparse.SUPPRESS)
    parser.add_argument("--different", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        (tokens,) = given.tokens
        print(extra_memory(make_job(given.child, tokens, given.different, BUDGETS[tokens])))
        return
    kept = measure_all(given.jobs, given.tokens)
    print(", ".join(f"{name} {value}" for name, value in environment("wall").items()))
    if not kept:
        sys.exit(f"some took more than {MOST} times their budget.")


if __name__ == "__main__":
    main()
