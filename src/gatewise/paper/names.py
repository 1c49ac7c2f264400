"""What things are called in tables and figures."""

from __future__ import annotations

from gatewise.methods.contract import SEARCH_DIRECTIONS
from gatewise.methods.registry import methods

DIRECTIONS = SEARCH_DIRECTIONS
DIRECTION_NAMES = {"ns": "Ns", "dn": "Dn", "ns+dn": "Ns+Dn"}
METHOD_NAMES = {name: method.title for name, method in methods().items()}
TASK_NAMES = {"ioi": "IOI", "gt": "GT", "sa": "SA"}
