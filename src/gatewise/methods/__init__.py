"""Finding circuits: ACDC, EAP and Edge Pruning behind one call."""

from gatewise.methods.search import Scores, discover, score_edges

__all__ = ["Scores", "discover", "score_edges"]
