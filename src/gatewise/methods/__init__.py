"""Finding circuits: ACDC, EAP, Edge Pruning and learned ranking behind one call.

What needs torch is imported when it is asked for, so that the command line answers before it is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatewise._lazy import imported_when_used

if TYPE_CHECKING:
    from gatewise.methods.acdc.method import Acdc as Acdc
    from gatewise.methods.base import Finding as Finding
    from gatewise.methods.base import Method as Method
    from gatewise.methods.base import Problem as Problem
    from gatewise.methods.base import ranked as ranked
    from gatewise.methods.discovery import discover as discover
    from gatewise.methods.discovery import discover_all as discover_all
    from gatewise.methods.discovery import score_edges as score_edges
    from gatewise.methods.eap import Eap as Eap
    from gatewise.methods.eap import EapIg as EapIg
    from gatewise.methods.edge_pruning.method import EdgePruning as EdgePruning
    from gatewise.methods.exact import Exact as Exact
    from gatewise.methods.example_scores import ExampleScores as ExampleScores
    from gatewise.methods.example_scores import score_examples as score_examples
    from gatewise.methods.ranking.method import Ranking as Ranking
    from gatewise.methods.registry import find_method as find_method
    from gatewise.methods.scores import Scores as Scores
    from gatewise.methods.smallest import SmallestCircuit as SmallestCircuit
    from gatewise.methods.smallest import smallest_circuits as smallest_circuits

_NAMES = {  # of the package, by where they are defined
    "acdc.method": "Acdc",
    "base": "Finding Method Problem ranked",
    "discovery": "discover discover_all score_edges",
    "eap": "Eap EapIg",
    "edge_pruning.method": "EdgePruning",
    "exact": "Exact",
    "example_scores": "ExampleScores score_examples",
    "ranking.method": "Ranking",
    "registry": "find_method",
    "scores": "Scores",
    "smallest": "SmallestCircuit smallest_circuits",
}
__all__ = sorted(name for names in _NAMES.values() for name in names.split())
__getattr__ = imported_when_used(__name__, _NAMES)
