"""How good circuits are, and how well a model does the task that they are about."""

from gatewise.evaluation._overlap import Overlap, overlap
from gatewise.evaluation.ablation import AblationResult, ablate
from gatewise.evaluation.evaluations import Evaluation, Evaluations, evaluate
from gatewise.evaluation.heads import AttentionPatterns, DirectContributions, attention, direct_contributions
from gatewise.evaluation.task_check import Ability, ability, check_task

__all__ = [
    "Ability",
    "AblationResult",
    "AttentionPatterns",
    "DirectContributions",
    "Evaluation",
    "Evaluations",
    "Overlap",
    "ability",
    "ablate",
    "attention",
    "check_task",
    "direct_contributions",
    "evaluate",
    "overlap",
]
