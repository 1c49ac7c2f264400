"""The reference engine: node by node, one example at a time, explicit sums, no cleverness. The independent twin.

It reads the weights of the Hugging Face modules by itself and shares no code with `gatewise.engine` or
`gatewise.models.components`: no windows, no padding, no caches of keys and values, no matrix products over senders. A
node that reads the very tensors it has read before is not computed again. Never imported by the package.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
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
    ablation: str = "patching",
    drawn: Tensor | None = None,
) -> Tensor:
    """Logits of a circuit at the last position. [example, vocabulary]"""
    return reference_of_many(model, pairs, [circuit], direction, ablation, drawn)[0]


def reference_of_many(
    model: Model,
    pairs: Pairs,
    circuits: Sequence[Circuit],
    direction: str = "ns",
    ablation: str = "patching",
    drawn: Tensor | None = None,
) -> Tensor:
    """The same for many circuits, whose other run is made once. [circuit, example, vocabulary]"""
    reference = Reference(model, pairs, direction, ablation, drawn)
    return torch.stack([reference.logits(circuit) for circuit in circuits])


class Reference:
    """The same for circuits that come one by one."""

    def __init__(
        self,
        model: Model,
        pairs: Pairs,
        direction: str = "ns",
        ablation: str = "patching",
        drawn: Tensor | None = None,
    ) -> None:
        self.net, self.pairs = _Net(model), pairs if direction == "ns" else pairs.swapped()
        self.others = reference_others(model, self.pairs, ablation, drawn)

    @torch.inference_mode()
    def logits(self, circuit: Circuit) -> Tensor:
        """[example, vocabulary]"""
        kept = set(circuit.edges)
        prompts = [self.pairs.clean[row, -int(length) :] for row, length in enumerate(self.pairs.lengths)]
        return torch.stack(
            [self.net.run(clean, kept, other)[1] for clean, other in zip(prompts, self.others, strict=True)]
        )


def reference_others(
    model: Model, pairs: Pairs, ablation: str = "patching", drawn: Tensor | None = None
) -> list[dict[str, Tensor]]:
    """For each example what removed edges carry by noising. drawn: [sender, example, column, d], for noise ablation"""
    net, found = _Net(model), []
    means = _means(net, pairs) if ablation == "mean" else {}
    for row, length in enumerate(pairs.lengths.tolist()):
        if ablation == "patching":
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


def _sum(parts: Sequence[Tensor]) -> Tensor:
    """One after the other, in their order."""
    total = torch.zeros_like(parts[0])
    for part in parts:
        total = total + part
    return total


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
            "gpt_neo": lambda: self.hf.transformer.h,
            "opt": lambda: self.hf.model.decoder.layers,
            "gpt_neox": lambda: self.hf.gpt_neox.layers,
        }.get(self.kind, lambda: self.hf.model.layers)()
        # What does not depend on the circuit is looked up once: most of a run's time would go there.
        self.head_weights = cache(self.head_weights)  # type: ignore[method-assign]
        self.turns = cache(self.turns)  # type: ignore[method-assign]
        self.done: dict[tuple[Any, ...], tuple[tuple[Tensor, ...], Any]] = {}

    def run(
        self,
        tokens: Tensor,
        kept: set[str],
        other: dict[str, Tensor] | None,
        put: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Outputs of all nodes, and the logits at the last position. put: outputs that stand in for nodes' own."""
        graph = self.model.graph
        current: dict[str, Tensor] = {"input": self.once(("input", *tokens.tolist()), (), self.embed, tokens)}
        biases: list[tuple[int, Tensor]] = []  # with the number of senders written when they were added
        merged = graph.qkv == "merged"

        def read(port: str, reads: int) -> tuple[Tensor, ...]:
            """What adds up to the input of a port."""
            senders = graph.senders[:reads]
            carried = (current[one] if f"{one}->{port}" in kept else other[one] for one in senders)  # type: ignore[index]
            return (*carried, *(bias for written, bias in biases if written <= reads))

        written = 1
        for index, layer in enumerate(self.layers):
            seen = written
            names = [f"a{index}.h{head}" for head in range(graph.n_heads)]
            projected = []
            for head, name in enumerate(names):
                inputs = [read(name if merged else f"{name}<{kind}>", seen) for kind in "qkv"]
                projected.append(self.once((name, "qkv"), sum(inputs, ()), self.project, layer, head, inputs))
            if self.kind == "olmo2":
                projected = self.once((index,), sum(projected, ()), self.norm_over_heads, layer, projected)
            gathered = [
                self.once((name, "gathered"), qkv, self.gather, layer, index, head, qkv)
                for head, (name, qkv) in enumerate(zip(names, projected, strict=True))
            ]
            for name, value in zip(names, gathered, strict=True):
                own = self.once((name, "output"), (value, *gathered), self.after_attention, layer, value, gathered)
                current[name] = put.get(name, own)
            written += graph.n_heads
            bias = self.attention_bias(layer)
            if bias is not None:
                biases.append((written, bias))
            parts = read(f"m{index}", seen if graph.parallel else written)
            current[f"m{index}"] = put.get(f"m{index}", self.once((f"m{index}",), parts, self.mlp, layer, parts))
            written += 1
            bias = self.mlp_bias(layer)
            if bias is not None:
                biases.append((written, bias))
        return current, self.unembed(_sum(read("logits", written))[-1])

    def once(self, name: tuple[Any, ...], reads: tuple[Tensor, ...], work: Callable[..., Any], *given: Any) -> Any:
        """What `work` makes of these tensors, done once: circuits that differ in few edges share most of a run."""
        key = (*name, *map(id, reads))
        if key not in self.done:
            self.done[key] = (reads, work(*given))  # tensors that are kept keep their ids
        return self.done[key][1]

    def embed(self, tokens: Tensor) -> Tensor:
        if self.kind in ("gpt2", "gpt_neo"):
            return self.hf.transformer.wte.weight[tokens] + self.hf.transformer.wpe.weight[: len(tokens)]
        if self.kind == "opt":
            body = self.hf.model.decoder
            return body.embed_tokens.weight[tokens] + body.embed_positions.weight[2 : 2 + len(tokens)]
        if self.kind == "gpt_neox":
            return self.hf.gpt_neox.embed_in.weight[tokens]
        table = self.hf.model.embed_tokens.weight[tokens]
        return table * torch.tensor(self.d**0.5, dtype=table.dtype) if self.kind.startswith("gemma") else table

    def norm(self, module: Any, x: Tensor) -> Tensor:
        if self.kind in ("gpt2", "gpt_neo", "gpt_neox", "opt"):
            centred = x - x.mean(-1, keepdim=True)
            scaled = centred / (centred.pow(2).mean(-1, keepdim=True) + module.eps).sqrt()
            return scaled * module.weight + module.bias
        eps = getattr(module, "variance_epsilon", None) or module.eps
        scaled = x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()
        return scaled * (1 + module.weight if self.kind.startswith("gemma") else module.weight)

    def project(self, layer: Any, head: int, parts: list[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """One head's queries, keys and values out of what its three ports read."""
        inputs = [_sum(some) for some in parts]
        if self.kind != "olmo2":
            name = {"gpt2": "ln_1", "gpt_neo": "ln_1", "opt": "self_attn_layer_norm"}.get(self.kind, "input_layernorm")
            inputs = [self.norm(getattr(layer, name), x) for x in inputs]
        weights = self.head_weights(layer, head)[0]
        q, k, v = (x @ weight + bias for x, (weight, bias) in zip(inputs, weights, strict=True))
        if self.kind in ("gemma3_text", "qwen3"):
            q, k = self.norm(layer.self_attn.q_norm, q), self.norm(layer.self_attn.k_norm, k)
        return q, k, v

    def norm_over_heads(self, layer: Any, projected: list[tuple[Tensor, ...]]) -> list[tuple[Tensor, ...]]:
        """OLMo 2: queries and keys are divided by the root mean square over all heads of the layer."""
        normed = [list(qkv) for qkv in projected]
        group = len(projected) // self.config.num_key_value_heads
        for kind, norm in enumerate((layer.self_attn.q_norm, layer.self_attn.k_norm)):
            squares = sum(qkv[kind].pow(2).mean(-1, keepdim=True) for qkv in projected) / len(projected)
            for head, qkv in enumerate(normed):
                size = qkv[kind].shape[-1]
                start = (head // group if kind else head) * size
                scaled = qkv[kind] / (squares + norm.variance_epsilon).sqrt()
                qkv[kind] = scaled * norm.weight[start : start + size]
        return [tuple(qkv) for qkv in normed]

    def gather(self, layer: Any, index: int, head: int, qkv: tuple[Tensor, ...]) -> Tensor:
        return self.attend(index, *qkv) @ self.head_weights(layer, head)[1]

    def attend(self, index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """What one head gathers."""
        rotary = self.kind not in ("gpt2", "gpt_neo", "opt")
        if self.kind == "smollm3":
            rotary = bool(self.config.no_rope_layers[index])
        if rotary:
            q, k = self.rotate(q, index), self.rotate(k, index)
        scale = self.config.query_pre_attn_scalar**-0.5 if self.kind.startswith("gemma") else q.shape[-1] ** -0.5
        if self.kind == "gpt_neo":
            scale = 1.0
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
        return scores.masked_fill(~allowed, -torch.inf).softmax(-1) @ v

    def sliding(self, index: int) -> int | None:
        if self.kind in ("mistral", "phi3"):
            return self.config.sliding_window
        if self.kind == "gpt_neo":
            return self.config.window_size if self.config.attention_layers[index] == "local" else None
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
        attention = layer.attn.attention if self.kind == "gpt_neo" else layer.self_attn
        group = heads // getattr(self.config, "num_key_value_heads", heads)
        size = attention.head_dim
        out = attention.out_proj if self.kind in ("gpt_neo", "opt") else attention.o_proj
        of_head = out.weight[:, head * size : (head + 1) * size].T
        if self.kind == "phi3":
            joined, key_heads = attention.qkv_proj.weight, heads // group
            firsts = (head, heads + head // group, heads + key_heads + head // group)
            rows = [slice(first * size, (first + 1) * size) for first in firsts]
            return [(joined[row].T, joined.new_zeros(size)) for row in rows], of_head
        projections = []
        for linear, which in (
            (attention.q_proj, head),
            (attention.k_proj, head // group),
            (attention.v_proj, head // group),
        ):
            rows = slice(which * size, (which + 1) * size)  # type: ignore[assignment]
            bias = torch.zeros(size, dtype=linear.weight.dtype) if linear.bias is None else linear.bias[rows]
            projections.append((linear.weight[rows].T, bias))
        return projections, of_head

    def rotate(self, x: Tensor, index: int) -> Tensor:
        cos, sin = self.turns(index, len(x), x.shape[-1], x.dtype)
        half = cos.shape[-1]
        first, second = x[:, :half], x[:, half : 2 * half]
        return torch.cat([first * cos - second * sin, second * cos + first * sin, x[:, 2 * half :]], dim=-1)

    def turns(self, index: int, length: int, size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosine and sine of every position's angles in a layer. [position, pair of dimensions] each"""
        parameters = self.config.rope_parameters
        if self.kind == "gemma3_text":
            parameters = parameters[self.config.layer_types[index]]
        size = int(size * parameters.get("partial_rotary_factor", 1.0))
        frequency = 1 / parameters["rope_theta"] ** (torch.arange(size // 2, dtype=torch.float32) * 2 / size)
        if parameters["rope_type"] == "llama3":
            turns = parameters["original_max_position_embeddings"] / (2 * torch.pi / frequency)
            low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
            kept = ((turns - low) / (high - low)).clamp(0, 1)
            frequency = (1 - kept) * frequency / parameters["factor"] + kept * frequency
        angle = torch.arange(length, dtype=torch.float32)[:, None] * frequency
        return angle.cos().to(dtype), angle.sin().to(dtype)

    def after_attention(self, layer: Any, share: Tensor, shares: list[Tensor]) -> Tensor:
        if not self.kind.startswith(("gemma", "olmo2")):
            return share
        norm, total = layer.post_attention_layernorm, _sum(shares)
        if self.kind == "olmo2":
            return share / (total.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon).sqrt() * norm.weight
        return share / (total.pow(2).mean(-1, keepdim=True) + norm.eps).sqrt() * (1 + norm.weight)

    def attention_bias(self, layer: Any) -> Tensor | None:
        if self.kind == "gpt2":
            return layer.attn.c_proj.bias
        if self.kind == "gpt_neo":
            return layer.attn.attention.out_proj.bias
        if self.kind == "opt":
            return layer.self_attn.out_proj.bias
        return layer.attention.dense.bias if self.kind == "gpt_neox" else layer.self_attn.o_proj.bias

    def mlp(self, layer: Any, parts: tuple[Tensor, ...]) -> Tensor:
        x = _sum(parts)
        if self.kind == "opt":
            y = self.norm(layer.final_layer_norm, x) @ layer.fc1.weight.T + layer.fc1.bias
            return layer.activation_fn(y) @ layer.fc2.weight.T
        mlp = layer.mlp
        if self.kind == "gpt_neo":
            y = self.norm(layer.ln_2, x) @ mlp.c_fc.weight.T + mlp.c_fc.bias
            return mlp.act(y) @ mlp.c_proj.weight.T
        if self.kind == "gpt2":
            return mlp.act(self.norm(layer.ln_2, x) @ mlp.c_fc.weight + mlp.c_fc.bias) @ mlp.c_proj.weight
        if self.kind == "gpt_neox":
            up, down = mlp.dense_h_to_4h, mlp.dense_4h_to_h
            y = self.norm(layer.post_attention_layernorm, x) @ up.weight.T + up.bias
            return mlp.act(y) @ down.weight.T
        if self.kind == "phi3":
            y = self.norm(layer.post_attention_layernorm, x) @ mlp.gate_up_proj.weight.T
            half = y.shape[-1] // 2
            return mlp.activation_fn(y[:, :half]) * y[:, half:] @ mlp.down_proj.weight.T
        gemma = self.kind.startswith("gemma")
        y = x
        if self.kind != "olmo2":
            y = self.norm(layer.pre_feedforward_layernorm if gemma else layer.post_attention_layernorm, x)
        gate, up = (
            y @ linear.weight.T + (0 if linear.bias is None else linear.bias) for linear in (mlp.gate_proj, mlp.up_proj)
        )
        out = mlp.act_fn(gate) * up @ mlp.down_proj.weight.T
        return self.norm(layer.post_feedforward_layernorm, out) if gemma or self.kind == "olmo2" else out

    def mlp_bias(self, layer: Any) -> Tensor | None:
        if self.kind in ("gpt2", "gpt_neo"):
            return layer.mlp.c_proj.bias
        if self.kind == "opt":
            return layer.fc2.bias
        return layer.mlp.dense_4h_to_h.bias if self.kind == "gpt_neox" else layer.mlp.down_proj.bias

    def unembed(self, x: Tensor) -> Tensor:
        if self.kind in ("gpt2", "gpt_neo"):
            return self.norm(self.hf.transformer.ln_f, x) @ self.hf.lm_head.weight.T
        if self.kind == "opt":
            return self.norm(self.hf.model.decoder.final_layer_norm, x) @ self.hf.lm_head.weight.T
        if self.kind == "gpt_neox":
            return self.norm(self.hf.gpt_neox.final_layer_norm, x) @ self.hf.get_output_embeddings().weight.T
        logits = self.norm(self.hf.model.norm, x) @ self.hf.lm_head.weight.T
        cap = getattr(self.config, "final_logit_softcapping", None)
        return torch.tanh(logits / cap) * cap if cap else logits
