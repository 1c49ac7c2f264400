"""AutoCircuit on the models and pairs of acdc.py: its ACDC, seconds and F for each edge; its EAP and a circuit, F.

`make bench-peers`.

Runs in an environment of its own, since AutoCircuit needs older versions of what gatewise needs; acdc.py reads what
this writes. On 2 layers it searches from end to end. On 12 that would take days: there every edge of a random sample
is removed alone, by the same patched forward pass that its ACDC does for each edge, and the mean is the figure. With
`--quick` so on 2 layers.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # see engine.py

import argparse
import json
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from auto_circuit.data import PromptDataLoader, PromptDataset
from auto_circuit.prune import run_circuits
from auto_circuit.prune_algos.ACDC import acdc_prune_scores
from auto_circuit.prune_algos.mask_gradient import mask_gradient_prune_scores
from auto_circuit.types import AblationType, PatchType
from auto_circuit.utils.ablation_activations import src_ablations
from auto_circuit.utils.graph_utils import patch_mode, patchable_model, set_all_masks
from auto_circuit.utils.tensor_ops import multibatch_kl_div
from shapes import lively_gpt2, random_prompts
from torch import Tensor
from transformer_lens import HookedTransformer, HookedTransformerConfig
from transformer_lens.pretrained.weight_conversions import convert_gpt2_weights
from transformers import GPT2LMHeadModel

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
TOKENS = 15
CIRCUIT_EDGES = 30  # of 606


def hooked(hf: GPT2LMHeadModel) -> HookedTransformer:
    """The same model for TransformerLens."""
    shape = hf.config
    config = HookedTransformerConfig(
        n_layers=shape.n_layer,
        d_model=shape.n_embd,
        n_ctx=shape.n_positions,
        d_head=shape.n_embd // shape.n_head,
        n_heads=shape.n_head,
        d_vocab=shape.vocab_size,
        act_fn="gelu_new",
        normalization_type="LN",
        device="cpu",
    )
    model = HookedTransformer(config)
    weights = convert_gpt2_weights(hf, config)
    model.load_state_dict({**weights, "unembed.b_U": torch.zeros(config.d_vocab)}, strict=False)
    return model.eval().requires_grad_(False)


def timed(call: Callable[[], object], now: Callable[[], float], repeats: int = 5) -> float:
    """Median seconds of a call, after one that does not count."""
    call()
    found = []
    for _ in range(repeats):
        started = now()
        call()
        found.append(now() - started)
    return statistics.median(found)


class Bench:
    """One model with its pairs, and AutoCircuit around it."""

    def __init__(self, layers: int, examples: int, clock: str) -> None:
        self.now, self.examples = CLOCKS[clock], examples
        self.hf = lively_gpt2(layers)
        self.clean, self.corrupted = random_prompts(self.hf.config.vocab_size, examples, TOKENS)
        answers = [torch.zeros(1, dtype=torch.long)] * examples
        incorrect = [torch.ones(1, dtype=torch.long)] * examples
        data = PromptDataset(self.clean, self.corrupted, answers, incorrect)
        self.loader = PromptDataLoader(data, seq_len=TOKENS, diverge_idx=0, batch_size=examples)
        lens = hooked(self.hf)
        with torch.no_grad():
            difference = (self.hf(self.clean).logits[:, -1] - lens(self.clean)[:, -1]).abs().max()
            if difference > 1e-2:
                sys.exit(f"TransformerLens' model is not the same: logits differ by {difference:.3g}.")
            self.lens_seconds = timed(lambda: lens(self.clean), self.now)
        for needed in ("attn_result", "attn_in", "split_qkv_input", "hook_mlp_in"):  # AutoCircuit asks for these
            getattr(lens, f"set_use_{needed}")(True)
        self.model = patchable_model(lens, factorized=True, slice_output="last_seq", separate_qkv=True)

    def plain(self) -> float:
        """F by the bench's clock."""
        with torch.no_grad():
            return timed(lambda: self.hf(self.clean), self.now)

    def search(self, threshold: float) -> dict[str, Any]:
        """AutoCircuit's ACDC from end to end, for one threshold."""
        before, started = self.plain(), self.now()
        scores = acdc_prune_scores(self.model, self.loader, None, tao_exps=[0], tao_bases=[threshold])
        seconds = self.now() - started
        kept = sum(int(torch.isinf(score).sum()) for score in scores.values())
        edges = len(self.model.edges)
        return self._figure(seconds / edges, [before, self.plain()], edges, threshold=threshold, kept=kept)

    def operations(self, circuit_edges: int) -> dict[str, Any]:
        """Its edge attribution patching (the mask's gradient at 0, other side's activations), and one circuit's run."""
        resample = {"ablation_type": AblationType.RESAMPLE}

        def attribute() -> Any:
            asked: dict[str, Any] = {"grad_function": "logit", "answer_function": "avg_diff", "mask_val": 0.0}
            return mask_gradient_prune_scores(self.model, self.loader, None, **asked, **resample)

        scores = attribute()

        def run() -> Any:
            return run_circuits(self.model, self.loader, [circuit_edges], scores, PatchType.TREE_PATCH, **resample)

        found = {}
        for name, call in {"EAP, ns": attribute, "a circuit, all of it": run}.items():
            before = self.plain()
            seconds = timed(call, self.now, repeats=3)
            f = statistics.mean([before, self.plain()])
            found[name] = {"pairs": self.examples, "seconds": seconds, "plain_seconds": f, "f": seconds / f}
        return found

    def sample(self, count: int) -> dict[str, Any]:
        """The mean cost of removing one edge, over a random sample of edges."""
        model = self.model
        others, own = src_ablations(model, self.corrupted), src_ablations(model, self.clean)
        edges = sorted(model.edges, key=str)
        chosen = random.Random(0).sample(edges, count)
        with torch.inference_mode():
            reference = model(self.clean)[model.out_slice].log_softmax(dim=-1)
            _, tokens, position, attention = model.input_to_embed(self.clean)
            residuals = self._residuals()
        set_all_masks(model, val=0.0)
        before, found = self.plain(), []
        with patch_mode(model, others, curr_src_outs=own), torch.inference_mode():
            for edge in chosen:
                started = self.now()
                edge.patch_mask(model).data[edge.patch_idx] = 1.0
                layer = int(edge.dest.module_name.split(".")[1])
                logits = model(
                    residuals[layer],
                    start_at_layer=layer,
                    tokens=tokens,
                    shortformer_pos_embed=position,
                    attention_mask=attention,
                )[model.out_slice]
                multibatch_kl_div(logits.log_softmax(dim=-1), reference).item()
                edge.patch_mask(model).data[edge.patch_idx] = 0.0
                found.append(self.now() - started)
        figure = self._figure(statistics.mean(found), [before, self.plain()], len(edges), sample=count)
        return {**figure, "extrapolated": True, "standard_error": statistics.stdev(found) / count**0.5}

    def _residuals(self) -> list[Tensor]:
        _, cache = self.model.run_with_cache(self.clean)
        return [cache[f"blocks.{layer}.hook_resid_pre"].clone() for layer in range(self.model.cfg.n_layers)]

    def _figure(self, per_edge: float, plain: list[float], edges: int, **more: Any) -> dict[str, Any]:
        f = statistics.mean(plain)
        return {
            "pairs": self.examples,
            "edges": edges,
            "seconds_per_edge": per_edge,
            "f_per_edge": per_edge / f,
            "plain_seconds": f,
            "hooked_plain_seconds": self.lens_seconds,
            "extrapolated": False,
            **more,
        }


def main() -> None:
    options = _parse()
    torch.set_num_threads(options.threads)
    result: dict[str, Any] = {"environment": _environment(options), "figures": {}}
    thresholds = {"2 layers, 1 %": options.thresholds[0], "2 layers, 5 %": options.thresholds[1]}
    if "2" in options.layers:
        bench = Bench(2, options.examples, options.clock)
        result["operations"] = bench.operations(CIRCUIT_EDGES)
        _write(result, options.out)
        sampled = bench.sample(options.sample) if options.quick else None  # the cost does not depend on the threshold
        for name, threshold in thresholds.items():
            result["figures"][name] = sampled or bench.search(threshold)
            _write(result, options.out)  # what there is, should the rest be interrupted
    if "12" in options.layers:
        result["figures"]["12 layers"] = Bench(12, options.examples, options.clock).sample(options.sample)
    _write(result, options.out)


def _write(result: dict[str, Any], path: Path | None) -> None:
    text = json.dumps(result, indent=2)
    print(text)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def _environment(options: argparse.Namespace) -> dict[str, Any]:
    names = ("auto-circuit", "transformer-lens", "transformers", "torch", "numpy")
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "clock": options.clock,
        "threads": options.threads,
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        **{name: version(name) for name in names},
    }


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="AutoCircuit's ACDC, measured as acdc.py measures ours.")
    parser.add_argument("--layers", nargs="+", choices=["2", "12"], default=["2", "12"], help="which models [both]")
    parser.add_argument("--examples", type=int, default=32, help="pairs [32]")
    parser.add_argument("--sample", type=int, default=40, help="edges to measure where not all are [40]")
    parser.add_argument("--quick", action="store_true", help="a sample of edges on 2 layers too: extrapolated")
    parser.add_argument("--thresholds", nargs=2, type=float, default=[0.15, 0.06], help="tau for 1 %% and 5 %%")
    parser.add_argument("--threads", type=int, default=2, help="torch's threads [2]")
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall", help="cpu: for a busy machine [wall]")
    parser.add_argument("--out", type=Path, help="write the JSON to this file as well")
    return parser.parse_args()


if __name__ == "__main__":
    main()
