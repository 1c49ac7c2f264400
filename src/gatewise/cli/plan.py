"""`gatewise plan`: memory and time of a search before it starts, as a table or as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from gatewise.cli.options import DEFAULT_MODEL, ExamplesOption, JsonOption, MemoryOption, TaskOption

if TYPE_CHECKING:
    from gatewise.plan import Forecast


def plan_command(
    model: Annotated[
        str, typer.Option("--model", "-m", help="A built-in or well-known name, or a folder with config.json.")
    ] = DEFAULT_MODEL,
    task: TaskOption = "ioi",
    method: Annotated[str, typer.Option("--method", help="eap, eap-ig, acdc or edge-pruning.")] = "eap",
    direction: Annotated[str, typer.Option("--direction", "-d", help="ns, dn or ns+dn.")] = "ns",
    examples: ExamplesOption = 64,
    edges: Annotated[int | None, typer.Option("--edges", "-e", help="Size of the circuit, for ACDC's time.")] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="float32, bfloat16 or float64.")] = "float32",
    memory: MemoryOption = None,
    free: Annotated[str | None, typer.Option("--free", help="Memory of the machine [what is free here].")] = None,
    as_json: JsonOption = False,
) -> None:
    """Forecast memory and time of a search. Needs a config.json or a well-known name: no weights, no network."""
    from gatewise.plan import forecast

    found = forecast(
        model, task, method, direction, examples=examples, edges=edges, dtype=dtype, memory=memory, free=free  # type: ignore[arg-type]
    )  # fmt: skip
    if as_json:
        print(json.dumps(found.to_json(), indent=2))
    else:
        Console().print(_text(found), markup=False, highlight=False)


def _text(found: Forecast) -> str:
    rough = " (a rule of thumb; it depends on what is found)" if found.rough else ""
    lines = [
        f"{found.model}: {found.parameters:,} parameters in {found.dtype}, {found.graph_edges:,} edges",
        f"{found.method} {found.direction} on {found.task}: {found.examples:,} examples of up to {found.tokens} "
        f"tokens, {found.window} of them from the first difference on",
        f"  micro-batches  {found.micro_batches:,} of {found.micro_batch}",
        f"  Python, torch  {_size(found.runtime):>10}",
        f"  weights        {_size(found.weights):>10}",
        f"  runs           {_size(found.runs):>10}",
        f"  buffers        {_size(found.buffers):>10}",
        f"  peak           {_size(found.peak):>10}   {'fits' if found.fits else 'DOES NOT FIT'} "
        f"({_size(found.free)} are free)",
        f"  work           {found.f:>8,.1f} F   F: a plain forward pass of all examples{rough}",
        f"  time           {_time(found.seconds):>10}   at {found.operations_per_second / 1e9:,.0f} GFLOP/s",
    ]
    return "\n".join([*lines, *(f"  note: {text}" for text in found.advice)])


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
