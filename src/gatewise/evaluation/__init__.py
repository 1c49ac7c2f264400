"""How good circuits are."""

from gatewise.evaluation._stability import Overlap, Stability, overlap, stability
from gatewise.evaluation.ablation import KnockOut, knock_out
from gatewise.evaluation.evaluations import MIB_SHARES, Evaluation, Evaluations, evaluate
from gatewise.evaluation.task_check import Ability, ability, check_task

__all__ = [
    "MIB_SHARES",
    "Ability",
    "Evaluation",
    "Evaluations",
    "KnockOut",
    "Overlap",
    "Stability",
    "ability",
    "check_task",
    "evaluate",
    "knock_out",
    "overlap",
    "stability",
]
