"""How good circuits are."""

from gatewise.evaluation.evaluate import MIB_SHARES, Evaluation, Evaluations, evaluate

__all__ = ["MIB_SHARES", "Evaluation", "Evaluations", "evaluate"]
