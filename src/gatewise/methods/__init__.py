"""Finding circuits: ACDC, EAP and Edge Pruning behind one call."""

from gatewise.methods.scores import Scores
from gatewise.methods.search import discover, score_edges

__all__ = ["Scores", "discover", "score_edges"]
