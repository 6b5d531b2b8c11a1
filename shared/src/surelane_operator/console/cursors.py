"""The place in a list at which a page begins, as an address names it."""

from surelane_operator.console.screen import Asked, Missing
from surelane_operator.filters import Cursor, cursor_after, read_cursor

__all__ = ["begin", "cursor_after"]


def begin(asked: Asked) -> Cursor | None:
    """Return the place that the query names; ``None``: the first page.

    Raises:
        Missing: it names none.
    """
    text = asked.word("cursor")
    if text is None:
        return None
    try:
        return read_cursor(text)
    except ValueError:
        raise Missing("This page of the list does not exist. Begin with the first one.") from None
