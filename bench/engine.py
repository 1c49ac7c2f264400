"""`make bench`: speed and memory of gatewise, in units of F.

F is transformers' own `model(input_ids)` on the same clean batch, without gradients, with the same threads, in the
same process and the same rounds: it cancels most of what differs between machines. The model has GPT-2 small's shape
and random weights; values do not change the cost.

A section is a function that makes a model and pairs and gives the jobs to measure on them, the first of which is F;
adding one is such a function and a line in `SECTIONS`.
"""

from __future__ import annotations

import os

# Threads that spin while they wait steal the time of whatever else runs on a small machine. Read when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from measure import CLOCKS, PLAIN, Job, as_json, as_table, environment, extra_memory, peak_in_fresh_process, time_jobs
from rich.console import Console
from shapes import random_prompts
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from gatewise.circuits.circuit import Circuit
from gatewise.engine.forward.dense import DenseEngine
from gatewise.engine.forward.sparse import SparseEngine
from gatewise.engine.running import dense_mask, run_circuit
from gatewise.engine.runs.activations import both_runs
from gatewise.engine.setting import Setting
from gatewise.models.model import Model
from gatewise.models.transformer import adapt
from gatewise.tasks.pairs import Pairs

MANY = 8  # circuits
ONE = "run_circuit, 1,000 random edges, runs cached"


def gpt2_small() -> Model:
    torch.manual_seed(0)
    return adapt(GPT2LMHeadModel(GPT2Config()), name="gpt2-small-shape")


def random_pairs(vocabulary: int, examples: int, tokens: int, same: int) -> Pairs:
    """Random prompts whose two sides agree in the first `same` tokens and differ in all others."""
    clean, corrupted = random_prompts(vocabulary, examples, tokens, same)
    correct, incorrect = torch.randint(vocabulary, (2, examples), generator=torch.Generator().manual_seed(1)).tolist()
    return Pairs.from_tokens(clean, corrupted, correct=correct, incorrect=incorrect)


def different_from_the_start() -> tuple[Model, Pairs]:
    model = gpt2_small()
    return model, random_pairs(model.vocabulary_size, examples=32, tokens=15, same=0)


def engine() -> dict[str, Job]:
    """32 pairs of 15 tokens that differ from the first token on: the prefix saving does not help."""
    return _engine_jobs(*different_from_the_start(), limits=True)


def engine_ioi() -> dict[str, Job]:
    """32 pairs of 14 tokens that differ from the 10th on, as in IOI with the second name changed: 5 columns of 14."""
    model = gpt2_small()
    return _engine_jobs(model, random_pairs(model.vocabulary_size, examples=32, tokens=14, same=9), limits=False)


def attribution() -> dict[str, Job]:
    """EAP and EAP-IG on 32 pairs of 15 tokens that differ from the first token on."""
    from gatewise.methods import EapIg, discover_all, score_edges

    model, pairs = different_from_the_start()
    all_three = partial(discover_all, model, pairs, "eap", ("ns", "dn", "ns+dn"), sizes=[1000])
    return {
        PLAIN: _plain(model, pairs),
        "EAP, ns": Job(lambda: partial(score_edges, model, pairs, "eap", "ns"), most_f=3, most_mb=897),
        "EAP, ns+dn": Job(lambda: partial(score_edges, model, pairs, "eap", "ns+dn"), most_f=4.5, most_mb=1083),
        "EAP, all three directions": Job(lambda: all_three, most_f=4.5, most_mb=1083),
        "EAP-IG, 5 steps": Job(lambda: partial(score_edges, model, pairs, EapIg(steps=5)), most_f=15),
    }


def edge_pruning() -> dict[str, Job]:
    """A training step of Edge Pruning on 32 pairs of 15 tokens that differ from the first token on, in its midst."""
    from gatewise.methods import EdgePruning
    from gatewise.methods.edge_pruning.training import Goal, Training, take_step
    from gatewise.methods.objective import Objective

    model, pairs = different_from_the_start()
    method, edges = EdgePruning(), model.graph.n_edges

    def step(both: bool) -> Callable[[], object]:
        objective = Objective(
            Setting(model, pairs), ("ns", "dn") if both else ("ns",), method.examples_per_step(len(pairs))
        )
        state = Training.begin(edges, method.start, seed=0)
        state.parameters[:edges] = 3 * torch.randn(edges, generator=torch.Generator().manual_seed(0))
        state.step = method.steps // 2
        return lambda: take_step(objective, state, Goal(edges // 100, edges), method)

    return {
        PLAIN: _plain(model, pairs),
        "a step, ns": Job(lambda: step(False), most_f=8, most_mb=4000),
        "a step, ns+dn jointly": Job(lambda: step(True)),
    }


SECTIONS: dict[str, Callable[[], dict[str, Job]]] = {
    "engine": engine,
    "engine-ioi": engine_ioi,
    "attribution": attribution,
    "edge-pruning": edge_pruning,
}


def _plain(model: Model, pairs: Pairs) -> Job:
    @torch.no_grad()
    def call() -> object:
        return model.hf(pairs.clean)

    return Job(lambda: call)


def _engine_jobs(model: Model, pairs: Pairs, *, limits: bool) -> dict[str, Job]:
    """Running circuits. No circuit comes after itself: sublayers with the same edges as before would not be run
    again."""
    graph, most = model.graph, 1.3 if limits else None
    circuits = [graph.random_circuit(1000, seed=seed) for seed in range(MANY)]
    halves = [graph.random_circuit(graph.n_edges // 2, seed=seed) for seed in range(2)]

    def cached(chosen: Sequence[Circuit], at_once: int = 1) -> Callable[[], object]:
        engine = SparseEngine(model, both_runs(model, pairs).intervention(model, "ns"))
        groups = [chosen[first : first + at_once] for first in range(0, len(chosen), at_once)]
        return lambda: [engine.logits_of(group) for group in groups]

    def gradient() -> Callable[[], object]:
        engine = DenseEngine(model, both_runs(model, pairs).intervention(model, "ns"))
        mask = dense_mask(model, circuits[0])

        def logit_diff(logits: Tensor) -> Tensor:
            return pairs.logit_diff(logits).mean()

        return lambda: engine.gradient(mask, logit_diff)

    return {
        PLAIN: _plain(model, pairs),
        "prepare: both runs": Job(lambda: lambda: both_runs(model, pairs).intervention(model, "ns"), memory=False),
        ONE: Job(partial(cached, circuits), per=MANY, most_f=most, most_mb=1500 if limits else None),
        "all but 1,000 edges": Job(partial(cached, [~c for c in circuits[:2]]), per=2, most_f=most, memory=False),
        "half of the edges": Job(partial(cached, halves), per=2, most_f=most, most_mb=1500 if limits else None),
        **{
            f"{n} circuits of 1,000 edges at once, each": Job(
                partial(cached, circuits, n), per=MANY, below=ONE, memory=False
            )
            for n in (4, MANY)
        },
        "run_circuit, all of it": Job(lambda: partial(run_circuit, model, pairs, circuits[0])),
        "gradient by the mask, runs cached": Job(gradient),
    }


def main() -> None:
    options = _parse()
    torch.set_num_threads(options.threads)
    if options.peak:
        section, job = options.peak
        print(extra_memory(SECTIONS[section]()[job]))
        return
    console, found = Console(width=110, quiet=options.json), {}
    console.print(", ".join(f"{key} {value}" for key, value in environment(options.clock).items()), highlight=False)
    console.print("ms and F: fastest of all rounds. F, median: median over rounds. Extra MB: peak of a fresh process.")
    for name in options.only or SECTIONS:
        print(f"measuring {name} ...", file=sys.stderr)
        jobs = SECTIONS[name]()
        threads = ["--threads", str(options.threads)]
        peak = partial(_peak, name, threads) if options.memory else None
        found[name] = time_jobs(jobs, options.repeats, peak, options.clock)
        console.print(as_table(f"{name}: {(SECTIONS[name].__doc__ or '').strip()}", found[name]))
    if options.json:
        print(as_json(found, options.clock))
    if options.out:
        options.out.write_text(as_json(found, options.clock) + "\n")


def _peak(section: str, threads: list[str], job: str) -> float:
    return peak_in_fresh_process(__file__, [*threads, "--peak", section, job])


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Speed and memory of gatewise in units of a plain forward pass.")
    parser.add_argument("--only", action="append", choices=list(SECTIONS), help="a section; may be repeated [all]")
    parser.add_argument("--repeats", type=int, default=5, help="rounds of all jobs [5]")
    parser.add_argument("--threads", type=int, default=2, help="torch's threads [2]")
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall", help="cpu: for a busy machine [wall]")
    parser.add_argument("--no-memory", dest="memory", action="store_false", help="leave the memory out: twice as fast")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--out", type=Path, help="write the JSON to this file as well")
    parser.add_argument("--peak", nargs=2, metavar=("SECTION", "JOB"), help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
