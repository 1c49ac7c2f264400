"""A model as the engines see it: a graph, its sublayers, an embedding and an unembedding."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gatewise.circuits.graph import Graph
from gatewise.devices import fetched
from gatewise.display import card
from gatewise.errors import GatewiseError
from gatewise.models.components import Attention, KeysValues, Pointwise, softcapped
from gatewise.models.layout import Layout


@dataclass(frozen=True, eq=False, repr=False)
class Model:
    """A language model (or a logic model) ready to be run as circuits. Weights are used in place."""

    name: str
    graph: Graph
    embed: Callable[[Tensor, Tensor], Tensor]  # tokens, positions [example, column] -> [source, example, column, d]
    sublayers: tuple[Attention | Pointwise, ...]  # one for each of graph.sublayers[1:-1]
    final_norm: Callable[[Tensor], Tensor]  # final residual [..., d] -> [..., d]
    head: Tensor  # [vocabulary, d], from the normed residual to logits
    vocabulary_size: int
    tensors: Callable[[], dict[str, Tensor]]  # the named weights, for the fingerprint
    tokenizer: Any = None
    hf: Any = None  # the transformers module, if there is one
    softcap: float | None = None  # of the logits
    needs_bos: bool = False  # whether prompts begin with BOS whatever the tokenizer does by itself
    planned_for: str = ""  # the kind of device that a model on the meta device stands for
    compared_at: set[int] = field(default_factory=set)  # lengths of prompts at which transformers gave the same logits

    def unembed(self, x: Tensor) -> Tensor:
        """Compute the logits of final residuals.

        Args:
            x: The residual stream after the last layer. [..., d]

        Returns:
            Logits. [..., vocabulary]
        """
        return softcapped(F.linear(self.final_norm(x), self.head), self.softcap)

    def run_sublayer(self, index: int, x: Tensor, layout: Layout, prefix: KeysValues | None) -> Tensor:
        """Compute what all nodes of a sublayer write.

        Args:
            index: Which of `sublayers`.
            x: Inputs of its ports, or 1 if all read the same. [port or 1, rows..., example, window, d]
            layout: Where the tokens of the batch stand.
            prefix: Cached keys and values of the columns before the window, if there are any.

        Returns:
            Outputs, without the output bias. [node, rows..., example, window, d]
        """
        sublayer = self.sublayers[index]
        if isinstance(sublayer, Attention):
            return sublayer(x, layout, prefix)
        return sublayer(x.expand(sublayer.n_nodes, *x.shape[1:]))

    @property
    def device(self) -> torch.device:
        return self.head.device

    @property
    def dtype(self) -> torch.dtype:
        return self.head.dtype

    @property
    def d_model(self) -> int:
        return self.graph.d_model

    def siblings(self, node: int) -> range:
        """Return the senders whose outputs change with this one's.

        Args:
            node: A sender index.

        Returns:
            The node itself, or all heads of its layer if a norm over their sum couples them (Gemma).
        """
        index = self.graph.sublayer_of_sender[node]
        sublayer, nodes = self.sublayers[index - 1] if index else None, self.graph.sender_slices[index]
        coupled = isinstance(sublayer, Attention) and sublayer.joint_norm is not None
        return range(nodes.start, nodes.stop) if coupled else range(node, node + 1)

    def check_finite(self) -> None:
        """Refuse weights that are not finite; looked at once.

        Raises:
            GatewiseError: A weight holds NaN or infinity.
        """
        if self._not_finite is not None:
            raise GatewiseError(
                f"the weight {self._not_finite!r} of {self.name} holds NaN or infinity; load sound weights."
            )

    @cached_property
    def _not_finite(self) -> str | None:
        weights = self.tensors()
        flags = fetched([torch.isfinite(weight).all() for weight in weights.values()])
        return next((name for name, finite in zip(weights, flags, strict=True) if not finite), None)

    @property
    def changes_singly(self) -> bool:
        """Whether edges can be changed one at a time: not where a norm couples queries of heads before they attend."""
        return all(sublayer.separable for sublayer in self.sublayers if isinstance(sublayer, Attention))

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the weights."""
        digest = hashlib.sha256()
        weights = dict(sorted(self.tensors().items()))
        for name, tensor in zip(weights, fetched([*weights.values()]), strict=True):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().contiguous().view(torch.uint8).numpy().data)
        return digest.hexdigest()[:16]

    @cached_property
    def head_moments(self) -> tuple[Tensor, float, Tensor]:
        """Of the rows of the unembedding: their mean [d], the largest distance from it, their covariance [d, d]."""
        middle = self.head.mean(dim=0)
        away = self.head - middle
        return middle, float(away.norm(dim=1).max()), (away.T @ away) / len(away)

    def __reduce__(self) -> tuple[Any, ...]:
        """For workers: the transformers module, of which they make the rest, without the tokenizer."""
        from gatewise.models.transformer import adapt_again, adapter_of

        if self.hf is None:
            raise GatewiseError(f"{self.name} is made in code and cannot be sent to workers; leave them out.")
        return adapt_again, (self.hf, self.name, self.graph.qkv, adapter_of(self.hf), tuple(self.compared_at))

    def _summary(self) -> str:
        graph, dtype = self.graph, str(self.dtype).removeprefix("torch.")
        size = f"{graph.n_layers} layers x {graph.n_heads} heads, {graph.n_edges:,} edges"
        return f"{self.name}: {size}, {dtype} on {self.device}"

    def __repr__(self) -> str:
        return f"<Model {self._summary()}>"

    def _repr_html_(self) -> str:
        return card("Model", self._summary())
