"""The list of methods. Adding one is a line here."""

from __future__ import annotations

from gatewise.methods.contract import Method


def methods() -> dict[str, Method]:
    """All methods by name."""
    from gatewise.methods.acdc import ACDC
    from gatewise.methods.eap import EAP, EAP_IG
    from gatewise.methods.edge_pruning import EDGE_PRUNING

    return {method.name: method for method in (ACDC, EAP, EAP_IG, EDGE_PRUNING)}
