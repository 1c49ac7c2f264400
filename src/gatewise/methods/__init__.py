"""Finding circuits: ACDC, EAP and Edge Pruning behind one call.

What needs torch is imported when it is asked for, so that the command line answers before it is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatewise._lazy import imported_when_used

if TYPE_CHECKING:
    from gatewise.methods.acdc.method import Acdc
    from gatewise.methods.base import Finding, Method, Problem, ranked
    from gatewise.methods.discovery import discover, discover_all, score_edges
    from gatewise.methods.eap import Eap, EapIg
    from gatewise.methods.edge_pruning.method import EdgePruning
    from gatewise.methods.registry import find_method
    from gatewise.methods.scores import Scores

__all__ = [
    "Acdc",
    "Eap",
    "EapIg",
    "EdgePruning",
    "Finding",
    "Method",
    "Problem",
    "Scores",
    "discover",
    "discover_all",
    "find_method",
    "ranked",
    "score_edges",
]

__getattr__ = imported_when_used(
    __name__,
    {
        "acdc.method": "Acdc",
        "base": "Finding Method Problem ranked",
        "discovery": "discover discover_all score_edges",
        "eap": "Eap EapIg",
        "edge_pruning.method": "EdgePruning",
        "registry": "find_method",
        "scores": "Scores",
    },
)
