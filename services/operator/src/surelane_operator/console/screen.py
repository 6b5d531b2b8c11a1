"""A screen of the operator's page: its address, what it reads, its template, and the links out of it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from surelane_operator.reads.events import Reads
from surelane_operator.reads.filters import MAX_ID, Cursor, read_cursor

SLACK_MESSAGE = "https://slack.com/app_redirect?team={team}&channel={channel}&message_ts={ts}"

Values = Mapping[str, Any]
"""What a template is filled with. Nothing in it may depend on the person who looks: all viewers share it."""


@dataclass(frozen=True, slots=True)
class LinkTemplates:
    """The templates of links, with ``{team}``, ``{channel}`` and ``{ts}``, or ``{trace_id}``. Empty: no link."""

    message: str = SLACK_MESSAGE
    trace: str = ""

    def to_message(self, team: str | None, channel: str | None, ts: str | None) -> str | None:
        """Return the link to a message, if its place is known."""
        if not (self.message and channel and ts):
            return None
        return _filled(self.message, {"team": team or "", "channel": channel, "ts": ts})

    def to_trace(self, trace_id: str) -> str | None:
        """Return the link to a trace, if there is a template."""
        return _filled(self.trace, {"trace_id": trace_id}) if self.trace else None


def _filled(template: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        template = template.replace("{" + name + "}", quote(value, safe=""))
    return template


@dataclass(frozen=True, slots=True)
class ScreenAddress:
    """The parts of an address that a screen reads."""

    path: Mapping[str, str]
    query: Mapping[str, str] = field(default_factory=dict)

    def word(self, name: str) -> str | None:
        """Return a field of the query without surrounding spaces; ``None`` if it is empty."""
        # PostgreSQL can store neither the null character nor lone surrogates, so nothing has one.
        given = self.query.get(name, "").replace("\0", "").strip()
        return given.encode(errors="replace").decode() or None

    def cursor(self, name: str) -> Cursor | None:
        """Return the place in a list that a field of the query names; ``None``: the first page."""
        text = self.word(name)
        try:
            return None if text is None else read_cursor(text)
        except ValueError:
            raise Missing("This page of the list does not exist. Begin with the first one.") from None


def number(text: str) -> int | None:
    """Return an id that an address names; ``None``: it names none."""
    return int(text) if text.isascii() and text.isdigit() and int(text) <= MAX_ID else None


async def _no_examination() -> None:
    return None


@dataclass(frozen=True, slots=True)
class Sources:
    """Where screens read. ``examination`` returns the doctor's latest one; ``None``: there is none.

    ``shards`` are URIs of installations by name.
    """

    reads: Reads
    links: LinkTemplates = field(default_factory=LinkTemplates)
    examination: Callable[[], Awaitable[Any]] = _no_examination
    shards: Mapping[str, str] = field(default_factory=dict)


Read = Callable[[Sources, ScreenAddress], Awaitable[Values]]


class Missing(Exception):  # noqa: N818 - it is an answer, not a failure
    """The address names something that does not exist. The message says what."""


class Moved(Exception):  # noqa: N818 - it is an answer, not a failure
    """Another screen shows what was asked for. The message is its address."""


@dataclass(frozen=True, slots=True)
class Screen:
    """One screen: the template of its ``name``, and what ``read`` fills it with.

    ``within`` is the screen that the navigation marks for one that is not ``listed``. Open pages are read ``every`` so
    many seconds; ``None``: the page is not live.
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
