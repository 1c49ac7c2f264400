"""What a stored result is called: a hash of everything that determines it."""

from __future__ import annotations

import hashlib
import json
from typing import Any

SCHEMA = 1  # raise it when a method or an entry changes its meaning: older entries are then no longer found


def key_of(plain: Any) -> str:
    """A name for plain data: 32 hexadecimal digits."""
    text = json.dumps(plain, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
