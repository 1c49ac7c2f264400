"""How good circuits are."""

from gatewise.evaluation._stability import Overlap, Stability, overlap, stability
from gatewise.evaluation.ablation import AblationResult, ablate
from gatewise.evaluation.evaluations import MIB_SHARES, Evaluation, Evaluations, evaluate
from gatewise.evaluation.task_check import Ability, ability, check_task

__all__ = [
    "MIB_SHARES",
    "Ability",
    "AblationResult",
    "Evaluation",
    "Evaluations",
    "Overlap",
    "Stability",
    "ability",
    "ablate",
    "check_task",
    "evaluate",
    "overlap",
    "stability",
]
