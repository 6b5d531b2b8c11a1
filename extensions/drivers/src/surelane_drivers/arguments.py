"""The arguments of a query, as the libraries write them."""

import re

_ARGUMENT = re.compile(r"\$\d+")


def positional(query: str) -> str:
    """Write a query's arguments ``$1``, ``$2``, … as ``%s``."""
    return _ARGUMENT.sub("%s", query)
