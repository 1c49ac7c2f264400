"""How good circuits are."""

from gatewise.evaluation.abilities import Ability, ability, check_task
from gatewise.evaluation.evaluations import MIB_SHARES, Evaluation, Evaluations, evaluate
from gatewise.evaluation.knockouts import (
    Incompleteness,
    KnockOut,
    adversarial_subset,
    incompleteness,
    incompleteness_table,
    knock_out,
    minimality,
)
from gatewise.evaluation.overlaps import Overlap, Stability, overlap, stability

__all__ = [
    "MIB_SHARES",
    "Ability",
    "Evaluation",
    "Evaluations",
    "Incompleteness",
    "KnockOut",
    "Overlap",
    "Stability",
    "ability",
    "adversarial_subset",
    "check_task",
    "evaluate",
    "incompleteness",
    "incompleteness_table",
    "knock_out",
    "minimality",
    "overlap",
    "stability",
]
