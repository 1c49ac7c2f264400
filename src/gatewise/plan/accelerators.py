"""Accelerators by name: memory and rates as their makers give them, for forecasts on a machine that has none.

Nothing here was measured. Rates are of dense matrix products without sparsity; float32 without TF32, torch's default.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from gatewise.errors import GatewiseError
from gatewise.plan.rates import Rates

REACHED = 0.5  # share of the makers' rates that a forecast believes in
CONTEXT_BYTES = 600 << 20  # what CUDA and its libraries keep for themselves


@dataclass(frozen=True)
class Accelerator:
    """GiB of memory; 10^12 operations in float32 and, if it has them, in bfloat16; 10^9 bytes, per second."""

    memory: int
    float32: float
    bfloat16: float | None
    bandwidth: float


ACCELERATORS = {
    "T4": Accelerator(16, 8.1, None, 300),
    "V100-32GB": Accelerator(32, 15.7, None, 900),
    "L4": Accelerator(24, 30.3, 121, 300),
    "A10": Accelerator(24, 31.2, 125, 600),
    "RTX-3090": Accelerator(24, 35.6, 71, 936),
    "RTX-4090": Accelerator(24, 82.6, 165, 1008),
    "A6000": Accelerator(48, 38.7, 155, 768),
    "L40S": Accelerator(48, 91.6, 362, 864),
    "A100-40GB": Accelerator(40, 19.5, 312, 1555),
    "A100-80GB": Accelerator(80, 19.5, 312, 2039),
    "H100-80GB": Accelerator(80, 67, 989, 3350),
    "H200": Accelerator(141, 67, 989, 4800),
}


def find_accelerator(name: str) -> tuple[str, Accelerator]:
    """Find the accelerator of this name, or the only one that begins so; spaces and case do not matter."""
    wanted = name.strip().replace(" ", "-").lower()
    exact = [known for known in ACCELERATORS if known.lower() == wanted]
    matches = exact or [known for known in ACCELERATORS if wanted and known.lower().startswith(wanted)]
    if len(matches) != 1:
        close = matches or difflib.get_close_matches(wanted.upper(), ACCELERATORS, n=1)
        hint = f" (did you mean {' or '.join(close)}?)" if close else ""
        raise GatewiseError(
            f"the accelerator {name!r} is not known{hint}; known are {', '.join(ACCELERATORS)}. For another one give "
            f"its memory as free, such as 24GB."
        )
    return matches[0], ACCELERATORS[matches[0]]


def rates_of(name: str, dtype: str) -> Rates:
    """Return what a forecast takes an accelerator to do in a second."""
    accelerator = ACCELERATORS[name]
    operations = {"float32": accelerator.float32, "bfloat16": accelerator.bfloat16}.get(dtype)
    if operations is None:
        has = "float32" if accelerator.bfloat16 is None else "float32 and bfloat16"
        raise GatewiseError(f"{name} was asked to compute in {dtype}; a forecast for it is made for {has}.")
    return Rates(REACHED * operations * 1e12, REACHED * accelerator.bandwidth * 1e9)
