"""Finding circuits: ACDC, EAP and Edge Pruning behind one call."""

from gatewise.methods.contract import Finding, Method, Problem, ranked
from gatewise.methods.scores import Scores
from gatewise.methods.search import discover, score_edges

__all__ = ["Finding", "Method", "Problem", "Scores", "discover", "ranked", "score_edges"]
