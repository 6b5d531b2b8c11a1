"""A screen of the operator's page: its address, what it reads, and its template."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from surelane.calls import Calls
from surelane_operator.console.links import Links
from surelane_operator.operations import Operations

Values = Mapping[str, Any]
"""What a template is filled with. Nothing in it may depend on the person who looks: all viewers share it."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The parts of an address that a screen reads."""

    path: Mapping[str, str]
    query: Mapping[str, str] = field(default_factory=dict)

    def word(self, name: str) -> str | None:
        """Return a field of the query without surrounding spaces; ``None`` if it is empty."""
        # PostgreSQL can store neither the null character nor lone surrogates, so nothing has one.
        given = self.query.get(name, "").replace("\0", "").strip()
        return given.encode(errors="replace").decode() or None


Read = Callable[[Asked], Awaitable[Values]]


class Missing(Exception):  # noqa: N818 - it is an answer, not a failure
    """The address names something that does not exist. The message says what."""


class Moved(Exception):  # noqa: N818 - it is an answer, not a failure
    """Another screen shows what was asked for. The message is its address."""


@dataclass(frozen=True, slots=True)
class Screen:
    """One screen.

    Attributes:
        name: the template's name without ``.html``, unique.
        path: the address below ``/console``, in aiohttp's notation: ``/events/{id}``.
        title: the name in the navigation and in the window's title.
        read: reads what the template shows. It may raise :class:`Missing` or :class:`Moved`.
        listed: whether the navigation has it.
        within: the name of the listed screen that the navigation marks while this one is open.
        every: seconds between two reads for open pages; ``None``: the page is not live.
    """

    name: str
    path: str
    title: str
    read: Read
    listed: bool = True
    within: str | None = None
    every: float | None = 5.0

    @property
    def address(self) -> str:
        """Return the address; of a listed screen it has no variables."""
        return f"/console{self.path}"


async def _no_examination() -> None:
    return None


@dataclass(frozen=True, slots=True)
class Sources:
    """Where screens read.

    Attributes:
        operations: the operator's calls.
        calls: single SQL calls on the same connections.
        links: the addresses of messages and traces.
        examination: the doctor's latest examination; ``None``: there is none.
        received: what this process has received from Slack since it started: label and count.
    """

    operations: Operations
    calls: Calls
    links: Links = field(default_factory=Links)
    examination: Callable[[], Awaitable[Any]] = _no_examination
    received: Callable[[], Mapping[str, int]] = dict
