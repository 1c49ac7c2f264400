"""Finding circuits: ACDC, EAP and Edge Pruning behind one call.

What needs torch is imported when it is asked for, since the list of methods does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatewise._lazy import imported_when_used

if TYPE_CHECKING:
    from gatewise.methods.base import Finding, Method, Problem, ranked
    from gatewise.methods.discovery import discover, score_edges
    from gatewise.methods.scores import Scores

__all__ = ["Finding", "Method", "Problem", "Scores", "discover", "ranked", "score_edges"]

__getattr__ = imported_when_used(
    __name__, {"base": "Finding Method Problem ranked", "scores": "Scores", "discovery": "discover score_edges"}
)
