"""How good circuits are."""

from gatewise.evaluation.evaluations import MIB_SHARES, Evaluation, Evaluations, evaluate
from gatewise.evaluation.knockouts import (
    Incompleteness,
    adversarial_subset,
    incompleteness,
    incompleteness_table,
    minimality,
)
from gatewise.evaluation.overlaps import Overlap, Stability, overlap, stability

__all__ = [
    "MIB_SHARES",
    "Evaluation",
    "Evaluations",
    "Incompleteness",
    "Overlap",
    "Stability",
    "adversarial_subset",
    "evaluate",
    "incompleteness",
    "incompleteness_table",
    "minimality",
    "overlap",
    "stability",
]
