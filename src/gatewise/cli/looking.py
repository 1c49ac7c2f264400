"""`gatewise draw`, `ablate` and `attention`: a figure, a model without parts of it, and where heads look."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.text import Text

from gatewise.cli.options import (
    DEFAULT_MODEL,
    ExamplesOption,
    FoldingTable,
    JsonOption,
    Machine,
    ModelOption,
    SeedOption,
    SkipBadOption,
    TaskOption,
    load_task,
    options_apart,
    print_json,
)

_SHOWN = 8  # tokens that a head looks at


def draw_command(
    file: Annotated[Path, typer.Argument(help="A circuit file (gatewise, EAP-IG, MIB) or a gates file.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The figure: .svg, .pdf or .png.")],
    max_edges: Annotated[int, typer.Option(help="Of a larger circuit, the strongest edges.")] = 300,
    title: Annotated[str | None, typer.Option(help="Below the figure.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Draw a circuit as a figure: layers from left to right, edges as wide as their score, gates in colour.

    Example:

    ```
    gatewise draw found/eap-ns-100.json --out circuit.svg
    ```
    """
    from gatewise.circuits.drawing import check_can_draw, draw
    from gatewise.gates.labels import load_labelled

    check_can_draw(out)
    drawn = load_labelled(file)
    draw(drawn, out, max_edges=max_edges, title=title)
    if as_json:
        print_json({"file": str(file), "figure": str(out)})
    else:
        print(f"written to {out}")


@options_apart
def ablate_command(
    machine: Machine,
    targets: Annotated[list[str], typer.Argument(help="Nodes (a5.h9), edges (a5.h9->m8), or a circuit file.")],
    model: ModelOption = DEFAULT_MODEL,
    task: TaskOption = "ioi",
    ablation: Annotated[str, typer.Option(help="What removed edges carry: patching, zero, mean, noise.")] = "patching",
    examples: ExamplesOption = 64,
    skip_bad: SkipBadOption = False,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Remove nodes, edges or a circuit from a model and measure what it still does on held-out pairs.

    A node goes with all edges that it sends; an edge without a port (a5.h9->a9.h6) means all ports.

    Examples:

    ```
    gatewise ablate a5.h0 --model tiny -n 8
    gatewise ablate 'a4.h0->a5.h0' 'm5->logits' --model tiny -n 8
    ```
    """
    from gatewise.circuits.circuit import Circuit
    from gatewise.evaluation.ablation import ablate
    from gatewise.methods.searching import check_choices

    check_choices(["ns"], ablation=ablation)
    loaded, made = load_task(model, task, machine, examples=examples, seed=seed, skip_bad=skip_bad)
    is_file = len(targets) == 1 and Path(targets[0]).is_file()
    removed: Any = Circuit.load(targets[0], loaded.graph) if is_file else targets
    left = ablate(loaded, made, removed, ablation=ablation, compute=machine.compute())  # type: ignore[arg-type]
    if as_json:
        print_json({"removed": list(left.edges), "logit_diff_left": left.logit_diff_left, **left.row()})
        return
    table = FoldingTable("", "logit difference", "accuracy", "KL to the model", numbers=True, box=box.SIMPLE_HEAD)
    for name, part in (("model", left.full), (f"without {left.name}", left.left), ("corrupted prompts", left.empty)):
        table.add_row(name, f"{part.logit_diff.mean:.2f}", f"{part.accuracy.mean:.0%}", f"{part.kl_from_full.mean:.3f}")
    console = Console(highlight=False)
    console.print(table)
    console.print(
        f"{left.logit_diff_left:.0%} of the logit difference is left without {len(left.edges):,} edges, on "
        f"{len(made.test)} held-out pairs of {made.name}."
    )


@options_apart
def attention_command(
    machine: Machine,
    heads: Annotated[list[str], typer.Argument(help="Heads, such as a5.h9.")],
    model: ModelOption = DEFAULT_MODEL,
    task: TaskOption = "ioi",
    examples: ExamplesOption = 16,
    skip_bad: SkipBadOption = False,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Show where heads look from the answer position, and what they write straight into the logit difference.

    Example:

    ```
    gatewise attention a5.h0 --model tiny -n 4
    ```
    """
    from gatewise.evaluation.heads import attention, direct_contributions

    loaded, made = load_task(model, task, machine, examples=examples, seed=seed, skip_bad=skip_bad)
    heads_patterns = [attention(loaded, made, head, compute=machine.compute()) for head in heads]
    written = direct_contributions(
        loaded, made, [patterns.head for patterns in heads_patterns], compute=machine.compute()
    )
    if as_json:
        entries = []
        for patterns in heads_patterns:
            contribution = {side: vars(written.mean(patterns.head, side)) for side in ("clean", "corrupted")}
            first = {side: getattr(patterns, side)[0].looks_at(count=_SHOWN) for side in ("clean", "corrupted")}
            looks = {"mean_attention": patterns.targets, "first_pair": first}
            entries.append({"head": patterns.head, "direct_contribution": contribution, **looks})
        print_json(entries)
        return
    console = Console(highlight=False)
    for patterns in heads_patterns:
        share, other = written.mean(patterns.head), written.mean(patterns.head, "corrupted")
        console.print(Text(patterns.head, style="bold"))
        console.print(
            f"direct contribution to the logit difference {share.value:+.2f} ({share.low:+.2f} to {share.high:+.2f}), "
            f"on corrupted prompts {other.value:+.2f}"
        )
        table = FoldingTable("mean attention to", "clean", "corrupted", numbers=True, box=box.SIMPLE_HEAD)
        for target, weight in patterns.targets["clean"].items():
            table.add_row(target, f"{weight:.2f}", f"{patterns.targets['corrupted'][target]:.2f}")
        console.print(table)
        for side in ("clean", "corrupted"):
            pattern = getattr(patterns, side)[0]
            shown = ", ".join(f"{token!r} {weight:.2f}" for token, weight in pattern.looks_at(count=_SHOWN))
            console.print(f"{side}, first pair: {shown}", markup=False)
