"""What makes a task doubtful for a model, told from the model's logits on both sides. Runs nothing itself."""

from __future__ import annotations

from torch import Tensor

from gatewise.tasks.pairs import Pairs

POOR_ACCURACY = 0.75  # right over wrong on clean prompts
SMALL_SHARE = 0.1  # of the clean margin that the corruption should at least take away


def find_problems(pairs: Pairs, clean: Tensor, corrupted: Tensor) -> list[str]:
    """Findings as sentences; none if all is well. clean, corrupted: logits [example, vocabulary]."""
    problems = []
    equal = int((pairs.clean == pairs.corrupted).all(dim=1).sum())
    if equal:
        problems.append(f"clean and corrupted prompt are the same in {equal} of {len(pairs)} pairs.")
    accuracy = pairs.right_over_wrong(clean).float().mean().item()
    if accuracy < POOR_ACCURACY:
        problems.append(
            f"the model prefers the right answer on only {accuracy:.0%} of the clean prompts; "
            f"a circuit for something the model cannot do explains little."
        )
    margin = pairs.margin(clean).float()
    difference = (margin - pairs.margin(corrupted).float()).mean().abs()
    if difference <= SMALL_SHARE * margin.abs().mean():
        problems.append(
            f"the margin hardly differs between the sides ({margin.mean():.3f} on clean, "
            f"{pairs.margin(corrupted).float().mean():.3f} on corrupted prompts); "
            f"choose a corruption that takes the answer away."
        )
    return problems
