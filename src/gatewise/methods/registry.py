"""The list of methods, and how one is found by what a user gives: a method, its name, or `module:NAME`."""

from __future__ import annotations

import os
import sys
from importlib import import_module

from gatewise.errors import GatewiseError
from gatewise.methods.base import Method


def methods() -> dict[str, Method]:
    """The methods of the package by name."""
    from gatewise.methods.acdc.search import ACDC
    from gatewise.methods.eap import EAP, EAP_IG
    from gatewise.methods.edge_pruning import EDGE_PRUNING

    return {method.name: method for method in (ACDC, EAP, EAP_IG, EDGE_PRUNING)}


def find_method(given: str | Method) -> Method:
    """The method that was given, named, or written as `module:NAME` of a module that Python finds."""
    if isinstance(given, Method):
        return given
    known = methods()
    if given in known:
        return known[given]
    if ":" not in given:
        raise GatewiseError(
            f"there is no method {given!r}; there are {', '.join(known)}, and your own as module:NAME, or as a Method."
        )
    return _imported(given)


def _imported(given: str) -> Method:
    module_name, _, name = given.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # a file beside the user, as `python -m` finds it
    try:
        found = getattr(import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise GatewiseError(f"the method {given!r} cannot be imported: {error}. Write it as module:NAME.") from error
    if not isinstance(found, Method):
        raise GatewiseError(f"{given!r} is a {type(found).__name__}; expected a gatewise Method.")
    return found


def check_directed(method: Method) -> None:
    """Refuse a method without directions where gates are wanted."""
    if not method.directed:
        directed = [name for name, one in methods().items() if one.directed]
        raise GatewiseError(f"{method.name} has no direction, so it finds no gates. Use {', '.join(directed)}.")
