"""The list of methods. Adding one is a line here."""

from __future__ import annotations

from gatewise.methods.contract import Method


def methods() -> dict[str, Method]:
    """All methods by name."""
    from gatewise.methods.eap import EAP, EAP_IG

    return {method.name: method for method in (EAP, EAP_IG)}
