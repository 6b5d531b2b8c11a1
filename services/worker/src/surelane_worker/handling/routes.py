"""Route events within their kind: what each sort of route looks at, and which kinds Slack can send.

The queue knows kinds only (``slack.block_actions``): a worker announces and claims those. A route then picks the
handler by what is in the payload, such as a button's ``action_id``.

Versions of handlers: a run stays with the version that it began under. The version is noted on the event before the
first step or wait is stored. Version 1 is not: an event with steps and without a note has it. A worker without the
version gives the event the kind ``KIND@VERSION``, which workers with that version claim (``agent.pass_to_version``).
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from surelane.events import Event
from surelane.slack import EDITS
from surelane_service.subscriptions import COMMAND, EVENT_TYPES, INTERACTIONS, MESSAGES

Wanted = str | re.Pattern[str]
"""A string that must be equal, or a compiled pattern that must be found (``search``)."""

Takes = Callable[[Event], bool]

ANSWERS = "surelane.answer"
"""The kind of clicks on the buttons of ``ctx.ask`` and ``ctx.stoppable``."""
LINK, ENTITY = "slack.link_shared", "slack.entity_details_requested"
"""The kinds of links to show in a message, and of clicks on them, for which a person waits."""
STOPPED = "slack.agent_session_stopped"
"""The kind of Slack's own Stop, which ends what runs in its thread."""


FIRST = "1"
"""The version of a handler that names none, and of runs of releases that knew no versions."""
LONGEST_VERSION = 20
_ADDRESSED = re.compile(r"\A\s*<@[^<>]+>[\s,:]*")
"""A mention at the beginning. It is removed, so that a pattern may begin with ``^``."""
_VERSION = re.compile(r"(0|[1-9]\d*)(\.(0|[1-9]\d*))*", re.ASCII)


def is_interactive(kind: str) -> bool:
    """Return whether events of a kind wait for no others, as ``agent.is_interactive`` does: people wait for them."""
    if kind in (ANSWERS, STOPPED, LINK, ENTITY) or kind.startswith(COMMAND):
        return True
    return kind.startswith("slack.") and (kind[6:] in INTERACTIONS or kind[6:] in EDITS)


def members(holders: object, name: str) -> list[object]:
    """Return a member of each object in a list that a payload may hold."""
    listed = holders if isinstance(holders, list) else []
    return [holder.get(name) for holder in listed if isinstance(holder, dict)]


def equal(wanted: Wanted, found: str) -> bool:
    """Return whether ``found`` is the wanted string, or the wanted pattern is in it."""
    return found == wanted if isinstance(wanted, str) else wanted.search(found) is not None


def contained(wanted: Wanted, found: str) -> bool:
    """Return whether the wanted string or pattern is in ``found``."""
    return wanted in found if isinstance(wanted, str) else wanted.search(found) is not None


def every(_: Event) -> bool:
    """Take every event: what ``on`` does, and a route that names nothing."""
    return True


@dataclass(frozen=True, slots=True)
class Sort:
    """A sort of route that chooses within its ``kinds``.

    Attributes:
        found: returns what a payload holds; values that are no strings match nothing.
        matches: compares a wanted string or pattern with one of them.
    """

    kinds: tuple[str, ...]
    found: Callable[[Event], list[object]]
    matches: Callable[[Wanted, str], bool] = equal

    def takes(self, wanted: Collection[Wanted]) -> Takes:
        """Return a function that says whether an event is wanted. A route that names nothing wants every event."""
        return partial(self.finds, wanted) if wanted else every

    def finds(self, wanted: Collection[Wanted], event: Event) -> bool:
        """Return whether one of ``wanted`` is in an event, and note on it where a pattern is."""
        strings = [found for found in self.found(event) if isinstance(found, str)]
        for each in wanted:
            for found in strings:
                if self.matches(each, found):
                    event.match = each.search(found) if isinstance(each, re.Pattern) else None
                    return True
        return False


def addressed_text(event: Event) -> str:
    """Return what the author of a message typed, behind the name of the bot where that stands first."""
    return _ADDRESSED.sub("", event.text)


MESSAGE = Sort(MESSAGES, lambda event: [event.text], contained)
"""Looks at what a message's author typed."""
MENTION = Sort(("slack.app_mention",), lambda event: [addressed_text(event)], contained)
"""Looks at what the author of a mention typed, behind the name of the bot where it stands first."""
EDITED, DELETED = (
    Sort((kind,), lambda event: [event.text], contained)
    for kind in ("slack.message_changed", "slack.message_deleted")
)
"""Look at the text of a message that was edited, as it is now, or deleted, as it was."""
LINKS = Sort((LINK,), lambda event: members(event.slack.get("links"), "domain"))
"""Looks at the domains of the links in a message, as the app's settings name them."""
ENTITIES = Sort(
    (ENTITY,),
    lambda event: (
        members([event.slack.get("external_ref")], "type") + members([event.slack.get("link")], "domain")
    ),
)
"""Looks at the type that the app gave a Work Object, and at the domain of its link."""
ACTION = Sort(("slack.block_actions",), lambda event: members(event.payload.get("actions"), "action_id"))
VIEW, VIEW_CLOSED = (
    Sort((kind,), lambda event: members([event.payload.get("view")], "callback_id"))
    for kind in ("slack.view_submission", "slack.view_closed")
)
SHORTCUT = Sort(("slack.shortcut", "slack.message_action"), lambda event: [event.payload.get("callback_id")])
OPTIONS = Sort(("slack.block_suggestion",), lambda event: [event.payload.get("action_id")])


def ids(event: Event) -> list[str]:
    """Return the ids in an interaction's payload, for logs."""
    found = [each for sort in (ACTION, VIEW, SHORTCUT, OPTIONS) for each in sort.found(event)]
    return [each for each in found if isinstance(each, str)]


def event_kinds(types: Iterable[Wanted]) -> Iterator[str]:
    """Yield the kinds of event types. A pattern stands for the documented types in which it is found, at least one."""
    for wanted in types:
        if isinstance(wanted, str):
            yield from MESSAGES if wanted == "message" else (f"slack.{wanted}",)
            continue
        known = sorted(name for name in EVENT_TYPES if wanted.search(name))
        if not known:
            raise ValueError(f"the pattern {wanted.pattern!r} is in no event type that Slack documents")
        yield from (f"slack.{name}" for name in known)


def command_kinds(names: Iterable[object]) -> Iterator[str]:
    """Yield the kinds of slash commands. Refuse patterns: a worker claims by kind, and each command has its own."""
    for name in names:
        if not isinstance(name, str):
            raise ValueError(  # noqa: TRY004 - a mistake like the others
                f"name each command, such as '/deploy', instead of {name!r}: a worker claims commands by their names"
            )
        yield f"{COMMAND}{name.lstrip('/')}"[:200]


def check_version(version: str, kinds: tuple[str, ...]) -> None:
    """Refuse a version that is not made of numbers, and kinds that have no room for it."""
    if len(version) > LONGEST_VERSION or not _VERSION.fullmatch(version):
        raise ValueError(f"version is a text of numbers, such as '2' or '2.1', not {version!r}")
    if long := [kind for kind in kinds if len(kind) >= 200 - LONGEST_VERSION]:
        raise ValueError(
            f"a kind with a version has fewer than {200 - LONGEST_VERSION} characters: {long[0]!r}"
        )


def numbers(version: str | None) -> list[int]:
    """Return the numbers of a version: the version with the greater ones takes new events."""
    return [int(part) for part in (version or FIRST).split(".")]


def of_kind(kind: str, version: str) -> str:
    """Return the kind of events that wait for a version."""
    return f"{kind}@{version}"


def noted(event: Event) -> str | None:
    """Return the version that is noted on an event."""
    if event.notes is None or '"version"' not in event.notes:
        return None
    found: str | None = json.loads(event.notes).get("version")
    return found


def name_plainly(event: Event) -> None:
    """Give an event that waited for a version its own kind: handlers, logs and metrics know no other."""
    if version := noted(event):
        event.kind = event.kind.removesuffix(of_kind("", version))
