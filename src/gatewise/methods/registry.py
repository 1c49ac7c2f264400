"""The methods of the package, and how a method is found by what a user gives: itself, its name, or `module:Name`."""

from __future__ import annotations

from gatewise.errors import GatewiseError, suggestion
from gatewise.methods.acdc.method import Acdc
from gatewise.methods.base import Method
from gatewise.methods.eap import Eap, EapIg
from gatewise.methods.edge_pruning.method import EdgePruning
from gatewise.methods.parameters import import_named
from gatewise.methods.ranking.method import Ranking


def methods() -> dict[str, Method]:
    """Return the methods of the package by name, with their default parameters."""
    return {method.name: method for method in (Acdc(), Eap(), EapIg(), EdgePruning(), Ranking())}


def find_method(given: str | Method) -> Method:
    """Return the method that is meant.

    Args:
        given: A method, the name of one of the package, or `module:Name` of a class or an instance in a module that
            Python finds.

    Returns:
        The method; named by its class, with its default parameters.

    Raises:
        GatewiseError: There is no such method.
    """
    if isinstance(given, Method):
        return given
    known = methods()
    if given in known:
        return known[given]
    if ":" not in given:
        raise GatewiseError(
            f"there is no method {given!r}.{suggestion(given, known)} There are {', '.join(known)}, and your own as "
            f"module:Name, or as a Method."
        )
    return _import_method(given)


def _import_method(given: str) -> Method:
    method = import_named(given)
    if isinstance(method, type) and issubclass(method, Method):
        method = method()
    if not isinstance(method, Method):
        raise GatewiseError(f"{given!r} is a {type(method).__name__}; expected a gatewise Method.")
    return method


def check_directed(method: Method) -> None:
    """Refuse a method without directions where gates are wanted."""
    if not method.directed:
        directed = [name for name, other in methods().items() if other.directed]
        raise GatewiseError(f"{method.name} has no direction, so it finds no gates. Use {', '.join(directed)}.")
