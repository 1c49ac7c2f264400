"""`gatewise plan`: memory and time of a search before it starts, as a table or as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.console import Console

from gatewise.cli.options import (
    DEFAULT_MODEL,
    ExamplesOption,
    JsonOption,
    Machine,
    MethodOption,
    ModelArgument,
    TaskOption,
    options_apart,
)

if TYPE_CHECKING:
    from gatewise.methods.base import SearchDirection
    from gatewise.plan import Forecast


@options_apart
def plan_command(
    machine: Machine,
    model: ModelArgument = DEFAULT_MODEL,
    task: TaskOption = "ioi",
    method: MethodOption = "eap",
    direction: Annotated[str, typer.Option("--direction", "-d", help="ns, dn or ns+dn.")] = "ns",
    examples: ExamplesOption = 64,
    edges: Annotated[int | None, typer.Option("--edges", "-e", help="Size of the circuit, for ACDC's time.")] = None,
    accelerator: Annotated[
        str | None, typer.Option("--on", help="An accelerator that need not be here: A100-40GB, RTX-4090, ...")
    ] = None,
    free: Annotated[str | None, typer.Option("--free", help="Memory of the machine [what is free there].")] = None,
    as_json: JsonOption = False,
) -> None:
    """Forecast memory and time of a search. Needs a config.json, a .gguf file or a well-known name: no network.

    Examples:

    ```
    gatewise plan smollm2-135m --method acdc --edges 200
    gatewise plan meta-llama/Llama-3.1-8B --dtype bfloat16 --on A100-40GB
    gatewise plan tiny --method edge-pruning -n 200 --memory 8GB --json
    ```
    """
    from gatewise.plan import forecast

    plan = forecast(
        model,
        task,
        method,
        cast("SearchDirection", direction),  # checked by forecast
        examples=examples,
        edges=edges,
        accelerator=accelerator,
        free=free,
        **machine.given,
    )
    if as_json:
        print(json.dumps(plan.to_json(), indent=2))
    else:
        Console().print(_text(plan), markup=False, highlight=False)


def _text(plan: Forecast) -> str:
    rough = " (a rule of thumb; it depends on what is found)" if plan.rough else ""
    lines = [
        f"{plan.model}: {plan.parameters:,} parameters in {plan.dtype}, {plan.graph_edges:,} edges, on {plan.device}",
        f"{plan.method} {plan.direction} on {plan.task}: {plan.examples:,} examples of up to {plan.tokens} "
        f"tokens, {plan.window} of them from the first difference on",
        f"  micro-batches  {plan.micro_batches:,} of {plan.micro_batch}",
        f"  before loading {_size(plan.runtime):>10}",
        f"  weights        {_size(plan.weights):>10}",
        f"  runs           {_size(plan.runs):>10}",
        f"  buffers        {_size(plan.buffers):>10}",
        f"  peak           {_size(plan.peak):>10}   {'fits' if plan.fits else 'DOES NOT FIT'} "
        f"({_size(plan.free)} are free)",
        f"  work           {plan.f:>8,.1f} F   F: a plain forward pass of all examples{rough}",
        f"  time           {_time(plan.seconds):>10}   at {plan.operations_per_second / 1e9:,.0f} GFLOP/s",
    ]
    return "\n".join([*lines, *(f"  note: {text}" for text in plan.advice)])


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
