"""The one exception for everything a user can get wrong.

A message says what was given, what was expected, and the way out. The command line prints it as one line.
"""


class GatewiseError(ValueError):
    """A problem the user can mend: bad input, a missing file, too little memory."""


class GatewiseWarning(UserWarning):
    """Something the user should know before trusting a number."""
