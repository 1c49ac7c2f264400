"""The reference engine: node by node, one example at a time, explicit sums, no cleverness. The independent twin.

It reads the weights of the Hugging Face modules by itself and shares no code with `gatewise.engine` or
`gatewise.models.parts`: no windows, no padding, no caches, no matrix products over senders. Never imported by the
package.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.models.model import Model
from gatewise.tasks.pairs import Pairs


def reference_logits(
    model: Model,
    pairs: Pairs,
    circuit: Circuit,
    direction: str = "ns",
    ablation: str = "interchange",
    drawn: Tensor | None = None,
) -> Tensor:
    """Logits of a circuit at the last position. [example, vocabulary]"""
    net = _Net(model)
    if direction == "dn":
        pairs = pairs.swapped()
    kept = set(circuit.edges)
    others = reference_others(model, pairs, ablation, drawn)
    prompts = [pairs.clean[row, -int(pairs.lengths[row]) :] for row in range(len(pairs))]
    return torch.stack([net.run(clean, kept, other)[1] for clean, other in zip(prompts, others, strict=True)])


def reference_others(
    model: Model, pairs: Pairs, ablation: str = "interchange", drawn: Tensor | None = None
) -> list[dict[str, Tensor]]:
    """For each example what removed edges carry by noising. drawn: [sender, example, column, d], for noise ablation"""
    net, found = _Net(model), []
    means = _means(net, pairs) if ablation == "mean" else {}
    for row, length in enumerate(pairs.lengths.tolist()):
        if ablation == "interchange":
            found.append(net.run(pairs.corrupted[row, -length:], set(model.graph.edges), None)[0])
        elif ablation == "noise":
            assert drawn is not None
            found.append({node: drawn[i, row, -length:] for i, node in enumerate(model.graph.senders)})
        else:
            zero = torch.zeros(net.d, dtype=model.dtype)
            found.append({node: means.get(node, zero).expand(length, -1) for node in model.graph.senders})
    return found


def reference_outputs(model: Model, tokens: Tensor) -> dict[str, Tensor]:
    """Outputs of all nodes when the whole model runs on one prompt."""
    return _Net(model).run(tokens, set(model.graph.edges), None)[0]


def _means(net: _Net, pairs: Pairs) -> dict[str, Tensor]:
    runs = [
        net.run(pairs.clean[row, -int(pairs.lengths[row]) :], set(net.model.graph.edges), None)[0]
        for row in range(len(pairs))
    ]
    return {node: torch.cat([run[node] for run in runs]).mean(0) for node in runs[0]}


@dataclass
class _Net:
    model: Model

    def __post_init__(self) -> None:
        self.hf: Any = self.model.hf
        self.config = self.hf.config
        self.kind = self.config.model_type
        self.d = self.model.graph.d_model
        self.layers = {
            "gpt2": lambda: self.hf.transformer.h,
            "gpt_neox": lambda: self.hf.gpt_neox.layers,
        }.get(self.kind, lambda: self.hf.model.layers)()

    def run(
        self,
        tokens: Tensor,
        kept: set[str],
        other: dict[str, Tensor] | None,
        put: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Outputs of all nodes, and the logits at the last position. put: outputs that stand in for nodes' own."""
        graph = self.model.graph
        current: dict[str, Tensor] = {"input": self.embed(tokens)}
        biases: list[tuple[int, Tensor]] = []  # with the number of senders written when they were added
        merged = graph.qkv == "merged"

        def read(port: str, reads: int) -> Tensor:
            total = torch.zeros_like(current["input"])
            for sender in graph.senders[:reads]:
                carried = current[sender] if f"{sender}->{port}" in kept else other[sender]  # type: ignore[index]
                total = total + carried
            for written, bias in biases:
                if written <= reads:
                    total = total + bias
            return total

        written = 1
        for index, layer in enumerate(self.layers):
            seen = written
            gathered = {}
            for head in range(graph.n_heads):
                name = f"a{index}.h{head}"
                inputs = [read(name if merged else f"{name}<{kind}>", seen) for kind in "qkv"]
                gathered[name] = self.head(layer, index, head, *inputs)
            total = sum(gathered.values())
            for name, value in gathered.items():
                current[name] = put.get(name, self.after_attention(layer, value, total))
            written += graph.n_heads
            bias = self.attention_bias(layer)
            if bias is not None:
                biases.append((written, bias))
            mlp_reads = seen if graph.parallel else written
            current[f"m{index}"] = put.get(f"m{index}", self.mlp(layer, read(f"m{index}", mlp_reads)))
            written += 1
            bias = self.mlp_bias(layer)
            if bias is not None:
                biases.append((written, bias))
        last = read("logits", written)[-1]
        return current, self.unembed(last)

    def embed(self, tokens: Tensor) -> Tensor:
        if self.kind == "gpt2":
            return self.hf.transformer.wte.weight[tokens] + self.hf.transformer.wpe.weight[: len(tokens)]
        if self.kind == "gpt_neox":
            return self.hf.gpt_neox.embed_in.weight[tokens]
        table = self.hf.model.embed_tokens.weight[tokens]
        return table * torch.tensor(self.d**0.5, dtype=table.dtype) if self.kind.startswith("gemma") else table

    def norm(self, module: Any, x: Tensor) -> Tensor:
        if self.kind in ("gpt2", "gpt_neox"):
            centred = x - x.mean(-1, keepdim=True)
            scaled = centred / (centred.pow(2).mean(-1, keepdim=True) + module.eps).sqrt()
            return scaled * module.weight + module.bias
        eps = getattr(module, "variance_epsilon", None) or module.eps
        scaled = x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()
        return scaled * (1 + module.weight if self.kind.startswith("gemma") else module.weight)

    def head(self, layer: Any, index: int, head: int, into_q: Tensor, into_k: Tensor, into_v: Tensor) -> Tensor:
        """What one head gathers, times its output map."""
        norm = layer.ln_1 if self.kind == "gpt2" else layer.input_layernorm
        weights, out = self.head_weights(layer, head)
        q, k, v = (
            self.norm(norm, x) @ weight + bias
            for x, (weight, bias) in zip((into_q, into_k, into_v), weights, strict=True)
        )
        size = q.shape[-1]
        attention = getattr(layer, "self_attn", None)
        if self.kind == "gemma3_text":
            q, k = self.norm(attention.q_norm, q), self.norm(attention.k_norm, k)
        if self.kind != "gpt2":
            q, k = self.rotate(q, index), self.rotate(k, index)
        scale = self.config.query_pre_attn_scalar**-0.5 if self.kind.startswith("gemma") else size**-0.5
        scores = q @ k.T * scale
        if self.kind == "gemma2" and self.config.attn_logit_softcapping:
            cap = self.config.attn_logit_softcapping
            scores = torch.tanh(scores / cap) * cap
        length = len(scores)
        back = torch.arange(length)[:, None] - torch.arange(length)[None]
        allowed = back >= 0
        sliding = self.sliding(index)
        if sliding:
            allowed = allowed & (back < sliding)
        return scores.masked_fill(~allowed, -torch.inf).softmax(-1) @ v @ out

    def sliding(self, index: int) -> int | None:
        if self.kind == "mistral":
            return self.config.sliding_window
        kinds = getattr(self.config, "layer_types", None)
        return self.config.sliding_window if kinds and kinds[index] == "sliding_attention" else None

    def head_weights(self, layer: Any, head: int) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        heads = self.model.graph.n_heads
        if self.kind == "gpt2":
            size = self.d // heads
            fused, bias = layer.attn.c_attn.weight, layer.attn.c_attn.bias
            starts = [kind * self.d + head * size for kind in range(3)]
            projections = [(fused[:, s : s + size], bias[s : s + size]) for s in starts]
            return projections, layer.attn.c_proj.weight[head * size : (head + 1) * size]
        if self.kind == "gpt_neox":
            size = self.d // heads
            fused = layer.attention.query_key_value
            starts = [head * 3 * size + kind * size for kind in range(3)]
            projections = [(fused.weight[s : s + size].T, fused.bias[s : s + size]) for s in starts]
            return projections, layer.attention.dense.weight[:, head * size : (head + 1) * size].T
        attention = layer.self_attn
        group = heads // self.config.num_key_value_heads
        size = attention.head_dim
        projections = []
        for linear, which in (
            (attention.q_proj, head),
            (attention.k_proj, head // group),
            (attention.v_proj, head // group),
        ):
            rows = slice(which * size, (which + 1) * size)
            bias = torch.zeros(size, dtype=linear.weight.dtype) if linear.bias is None else linear.bias[rows]
            projections.append((linear.weight[rows].T, bias))
        return projections, attention.o_proj.weight[:, head * size : (head + 1) * size].T

    def rotate(self, x: Tensor, index: int) -> Tensor:
        parameters = self.config.rope_parameters
        if self.kind == "gemma3_text":
            parameters = parameters[self.config.layer_types[index]]
        size = int(x.shape[-1] * parameters.get("partial_rotary_factor", 1.0))
        half = size // 2
        frequency = parameters["rope_theta"] ** (-torch.arange(half, dtype=torch.float32) * 2 / size)
        angle = torch.arange(len(x), dtype=torch.float32)[:, None] * frequency
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        first, second = x[:, :half], x[:, half:size]
        return torch.cat([first * cos - second * sin, second * cos + first * sin, x[:, size:]], dim=-1)

    def after_attention(self, layer: Any, share: Tensor, total: Tensor) -> Tensor:
        if not self.kind.startswith("gemma"):
            return share
        norm = layer.post_attention_layernorm
        return share / (total.pow(2).mean(-1, keepdim=True) + norm.eps).sqrt() * (1 + norm.weight)

    def attention_bias(self, layer: Any) -> Tensor | None:
        if self.kind == "gpt2":
            return layer.attn.c_proj.bias
        return layer.attention.dense.bias if self.kind == "gpt_neox" else layer.self_attn.o_proj.bias

    def mlp(self, layer: Any, x: Tensor) -> Tensor:
        mlp = layer.mlp
        if self.kind == "gpt2":
            return mlp.act(self.norm(layer.ln_2, x) @ mlp.c_fc.weight + mlp.c_fc.bias) @ mlp.c_proj.weight
        if self.kind == "gpt_neox":
            up, down = mlp.dense_h_to_4h, mlp.dense_4h_to_h
            y = self.norm(layer.post_attention_layernorm, x) @ up.weight.T + up.bias
            return mlp.act(y) @ down.weight.T
        gemma = self.kind.startswith("gemma")
        y = self.norm(layer.pre_feedforward_layernorm if gemma else layer.post_attention_layernorm, x)
        out = (mlp.act_fn(y @ mlp.gate_proj.weight.T) * (y @ mlp.up_proj.weight.T)) @ mlp.down_proj.weight.T
        return self.norm(layer.post_feedforward_layernorm, out) if gemma else out

    def mlp_bias(self, layer: Any) -> Tensor | None:
        if self.kind == "gpt2":
            return layer.mlp.c_proj.bias
        return layer.mlp.dense_4h_to_h.bias if self.kind == "gpt_neox" else None

    def unembed(self, x: Tensor) -> Tensor:
        if self.kind == "gpt2":
            return self.norm(self.hf.transformer.ln_f, x) @ self.hf.lm_head.weight.T
        if self.kind == "gpt_neox":
            return self.norm(self.hf.gpt_neox.final_layer_norm, x) @ self.hf.get_output_embeddings().weight.T
        logits = self.norm(self.hf.model.norm, x) @ self.hf.lm_head.weight.T
        cap = getattr(self.config, "final_logit_softcapping", None)
        return torch.tanh(logits / cap) * cap if cap else logits
