"""Gradient rules: how gradients go back where a model is not linear. What the model computes never changes.

A gradient says what an infinitesimal change does; attribution multiplies it by a large one. A rule exchanges the
gradient of norms, softmax, products and activations for one that holds further. `with` it

    with gradient_rule(GIM): ...

what runs inside goes back by that rule: the building blocks of all architectures ask here. A part's own gradient is
exchanged by a *stand-in*, another function of the same input, whose gradient is taken instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from gatewise.errors import GatewiseError

RuleName = Literal["plain", "constant-norm", "gim", "relp"]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True)
class GradientRule:
    """What a backward pass does where the model is not linear; without arguments, what the chain rule says.

    Fields say most rules. For others, subclass it and override `softmax`, `activation` or `product`: each returns a
    tensor of the part's shape, whose gradient is taken for the part's own, or None for the part's own.

    Args:
        name: For people, and for the key of stored results: choose another one when a subclass changes what it does.
        constant_norms: Whether the scales of norms are constants. Means are subtracted as always.
        softmax_temperature: At which the softmax of attention has its Jacobian; None: patterns are constants.
        attention_share: Of its gradient, what each factor of a product gets in attention: query and key (their
            product is the scores), pattern and value.
        gate_share: The same for the two factors of a gated MLP.
        secant: Whether activations count as the line from 0 through the point, z * (act(z) / z), not as the tangent.
    """

    name: str = ""
    constant_norms: bool = False
    softmax_temperature: float | None = 1.0
    attention_share: float = 1.0
    gate_share: float = 1.0
    secant: bool = False

    def __post_init__(self) -> None:
        if not self.name and type(self) is not GradientRule:
            object.__setattr__(self, "name", f"{type(self).__module__}:{type(self).__qualname__}")
        temperature = self.softmax_temperature
        if temperature is not None and not (_is_number(temperature) and temperature > 0):
            raise GatewiseError(f"softmax_temperature is {temperature!r}; expected a number above 0, or None.")
        for name in ("attention_share", "gate_share"):
            if not _is_number(getattr(self, name)):
                raise GatewiseError(f"{name} is {getattr(self, name)!r}; expected a number.")
        for name in ("constant_norms", "secant"):
            if not isinstance(getattr(self, name), bool):
                raise GatewiseError(f"{name} is {getattr(self, name)!r}; expected True or False.")

    def __str__(self) -> str:
        return self.name or repr(self)

    @property
    def qkv_shares(self) -> tuple[float, float, float]:
        """Of the gradients at queries, keys and values what remains: those of the scores pass two products."""
        return self.attention_share**2, self.attention_share**2, self.attention_share

    def softmax(self, scores: Tensor) -> Tensor | None:
        """Return a stand-in for the softmax over the last dimension.

        Args:
            scores: Attention scores, -inf where a position may not look. [..., column]

        Returns:
            Something like `scores`, or None.
        """
        temperature = self.softmax_temperature
        if temperature is None:
            return torch.zeros_like(scores)
        # Times the temperature, since the Jacobian alone is meant, not the slope of scores / temperature.
        return None if temperature == 1 else temperature * (scores / temperature).softmax(dim=-1)

    def activation(self, function: Callable[[Tensor], Tensor], z: Tensor) -> Tensor | None:
        """Return a stand-in for an activation.

        Args:
            function: The activation.
            z: Its input.

        Returns:
            Something like `z`, or None.
        """
        if not self.secant:
            return None
        with torch.no_grad():
            nonzero = torch.where(z == 0, torch.finfo(z.dtype).eps, z)  # at 0 the line's limit from above
            slope = function(nonzero) / nonzero
        return z * slope

    def product(self, first: Tensor, second: Tensor) -> Tensor | None:
        """Return a stand-in for the product in a gated MLP.

        Args:
            first: The activated gate.
            second: What it lets through.

        Returns:
            Something like their product, or None.
        """
        return None if self.gate_share == 1 else first * second * self.gate_share


PLAIN = GradientRule("plain")
CONSTANT_NORM = GradientRule("constant-norm", constant_norms=True)
GIM = GradientRule("gim", constant_norms=True, softmax_temperature=2.0, attention_share=0.5, gate_share=0.5)
RELP = GradientRule("relp", constant_norms=True, gate_share=0.5, secant=True)
_RULES: dict[RuleName, GradientRule] = {
    "plain": PLAIN,
    "constant-norm": CONSTANT_NORM,
    "gim": GIM,
    "relp": RELP,
}
_current: ContextVar[GradientRule] = ContextVar("gradient_rule", default=PLAIN)


def find_rule(given: RuleName | GradientRule) -> GradientRule:
    """Return the rule that is meant by a name, or the rule itself."""
    return given if isinstance(given, GradientRule) else _RULES[given]


@contextmanager
def gradient_rule(rule: GradientRule) -> Iterator[None]:
    """Let what runs inside go back by this rule."""
    token = _current.set(rule)
    try:
        yield
    finally:
        _current.reset(token)


def norms_are_constant() -> bool:
    """True if gradients do not go through the scales of norms."""
    return _current.get().constant_norms


def norm_scale(scale: Tensor) -> Tensor:
    """Return a norm's scale, as a constant if the rule says so."""
    return scale.detach() if norms_are_constant() else scale


def softmax(scores: Tensor, dtype: torch.dtype) -> Tensor:
    """Compute the softmax of attention scores in this number type. [..., column] -> the same"""
    weights = scores.softmax(dim=-1, dtype=dtype)
    return with_gradient_of(_current.get().softmax(scores.to(dtype)), weights) if weights.requires_grad else weights


def activate(function: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    """Compute an activation."""
    y = function(z)
    return with_gradient_of(_current.get().activation(function, z), y) if y.requires_grad else y


def product(first: Tensor, second: Tensor) -> Tensor:
    """Compute the product of two factors that both depend on the input, as in a gated MLP.

    Args:
        first: The activated gate.
        second: What it lets through.

    Returns:
        Their product, whose gradient rules can share out between the two.
    """
    y = first * second
    return with_gradient_of(_current.get().product(first, second), y) if y.requires_grad else y


def with_gradient_of(stand_in: Tensor | None, value: Tensor) -> Tensor:
    """Return the value to the last bit, with the gradient of a stand-in of the same shape, if there is one."""
    if stand_in is None:
        return value
    exchanged: Tensor = _Exchange.apply(stand_in, value.detach())  # type: ignore[no-untyped-call]
    return exchanged


class _Exchange(torch.autograd.Function):
    """Forward the second argument, backward the first."""

    @staticmethod
    def forward(ctx: Any, stand_in: Tensor, value: Tensor) -> Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, into_value: Tensor) -> tuple[Tensor, None]:
        return into_value, None
