"""The one exception for everything a user can get wrong.

A message says what was given, what was expected, and the way out. The command line prints it as one line.
"""

import difflib
import unicodedata
from collections.abc import Iterable


class GatewiseError(ValueError):
    """A problem the user can fix: bad input, a missing file, too little memory."""


class GatewiseWarning(UserWarning):
    """Something the user should know before trusting a number."""


def printable(text: str) -> str:
    """Return text with control characters spelt out, so that no name or content of a file steers a terminal."""
    return "".join(_spelt_out(character) for character in text)


def _spelt_out(character: str) -> str:
    harmless = character in "\n\t" or not unicodedata.category(character).startswith("C")
    return character if harmless else character.encode("unicode_escape").decode()


def first_line(error: BaseException) -> str:
    """Return the first line of what a library's error says, without its full stop; its type if it says nothing."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].strip().rstrip(".:")


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'ioi'?" if a name is nearly one that is known, else nothing."""
    near = difflib.get_close_matches(name.lower(), list(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""
