"""Route events within their kind: what each sort of route looks at, and which kinds Slack can send.

The queue knows kinds only (``slack.block_actions``): a worker announces and claims those. A route then picks the
handler by what is in the payload, such as a button's ``action_id``.
"""

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from surelane.events import Event
from surelane.slack import EDITS, edited_message

Wanted = str | re.Pattern[str]
"""A string that must be equal, or a compiled pattern that must be found (``search``)."""

Takes = Callable[[Event], bool]

COMMAND = "slack.command."
MESSAGES = tuple(f"slack.message{channel}" for channel in (".im", ".mpim", ".channels", ".groups", ""))
"""The kinds of messages. The last one is of channels of another type."""

EVENT_TYPES = frozenset(
    """
    agent_session_stopped app_context_changed app_deleted app_home_opened app_installed app_mention app_requested
    app_uninstalled app_uninstalled_team assistant_thread_context_changed assistant_thread_started call_rejected
    channel_archive channel_created channel_deleted channel_history_changed channel_id_changed channel_left
    channel_rename channel_shared channel_unarchive channel_unshared dnd_updated dnd_updated_user email_domain_changed
    emoji_changed entity_details_requested file_change file_comment_added file_comment_deleted file_comment_edited
    file_created file_deleted file_public file_shared file_unshared function_executed grid_migration_finished
    grid_migration_started group_archive group_close group_deleted group_history_changed group_left group_open
    group_rename group_unarchive im_close im_created im_history_changed im_open invite_requested link_shared
    member_joined_channel member_left_channel message message.channels message.groups message.im message.mpim
    message_changed message_deleted message_metadata_deleted message_metadata_posted message_metadata_updated
    pin_added pin_removed reaction_added reaction_removed resources_added resources_removed scope_denied scope_granted
    shared_channel_invite_accepted shared_channel_invite_approved shared_channel_invite_declined
    shared_channel_invite_received shared_channel_invite_requested star_added star_removed subteam_created
    subteam_members_changed subteam_self_added subteam_self_removed subteam_updated team_access_granted
    team_access_revoked team_domain_change team_join team_rename tokens_revoked user_change user_huddle_changed
    user_profile_changed user_status_changed workflow_deleted workflow_published workflow_step_deleted
    workflow_step_execute workflow_unpublished
    """.split()  # noqa: SIM905 - a list literal would fill a page
)
"""The event types that Slack documents."""

INTERACTIONS = frozenset(
    """
    block_actions block_suggestion dialog_cancellation dialog_submission dialog_suggestion interactive_message
    message_action shortcut view_closed view_submission workflow_step_edit
    """.split()  # noqa: SIM905 - a list literal would fill a page
)
"""The types of interactions that Slack documents. They need no subscription."""


ANSWERS = "surelane.answer"
"""The kind of clicks on the buttons of ``ctx.ask`` and ``ctx.stoppable``."""
LINK, ENTITY = "slack.link_shared", "slack.entity_details_requested"
"""The kinds of links to show in a message, and of clicks on them, for which a person waits."""
STOPPED = "slack.agent_session_stopped"
"""The kind of Slack's own Stop, which ends what runs in its thread."""


def is_interactive(kind: str) -> bool:
    """Return whether events of a kind wait for no others: what people click, type, edit, stop and link to.

    ``agent.is_interactive`` says the same in the database.
    """
    if kind in (ANSWERS, STOPPED, LINK, ENTITY) or kind.startswith(COMMAND):
        return True
    return kind.startswith("slack.") and (kind[6:] in INTERACTIONS or kind[6:] in EDITS)


def texts(event: Event) -> Iterator[object]:
    """Yield the text of a message."""
    yield event.slack.get("text")


def edited_texts(event: Event) -> Iterator[object]:
    """Yield the text of a message that was edited, as it is now, or deleted, as it was."""
    yield edited_message(event.slack).get("text")


def link_domains(event: Event) -> Iterator[object]:
    """Yield the domains of the links in a message, as the app's settings name them."""
    links = event.slack.get("links")
    for link in links if isinstance(links, list) else ():
        yield _member(link, "domain")


def entity_names(event: Event) -> Iterator[object]:
    """Yield the type that the app gave a Work Object, and the domain of its link."""
    yield _member(event.slack.get("external_ref"), "type")
    yield _member(event.slack.get("link"), "domain")


def action_ids(event: Event) -> Iterator[object]:
    """Yield the ids of the buttons and menus that a person used."""
    actions = event.payload.get("actions")
    for action in actions if isinstance(actions, list) else ():
        yield _member(action, "action_id")


def view_ids(event: Event) -> Iterator[object]:
    """Yield the ``callback_id`` of a modal."""
    yield _member(event.payload.get("view"), "callback_id")


def callback_ids(event: Event) -> Iterator[object]:
    """Yield the ``callback_id`` of a shortcut."""
    yield event.payload.get("callback_id")


def option_ids(event: Event) -> Iterator[object]:
    """Yield the id of the menu that asks for its options."""
    yield event.payload.get("action_id")


def equal(wanted: Wanted, found: str) -> bool:
    """Return whether ``found`` is the wanted string, or the wanted pattern is in it."""
    return found == wanted if isinstance(wanted, str) else wanted.search(found) is not None


def contained(wanted: Wanted, found: str) -> bool:
    """Return whether the wanted string or pattern is in ``found``."""
    return wanted in found if isinstance(wanted, str) else wanted.search(found) is not None


def every(_: Event) -> bool:
    """Take every event: what ``on`` does, and a route that names nothing."""
    return True


def ids(event: Event) -> list[str]:
    """Return the ids in an interaction's payload, for logs."""
    readers = (action_ids, view_ids, callback_ids, option_ids)
    return [found for reader in readers for found in reader(event) if isinstance(found, str)]


@dataclass(frozen=True, slots=True)
class Sort:
    """A sort of route that chooses within its kinds.

    Attributes:
        kinds: the kinds of its events.
        found: yields what a payload holds; values that are no strings match nothing.
        matches: compares a wanted string or pattern with one of them.
    """

    kinds: tuple[str, ...]
    found: Callable[[Event], Iterator[object]]
    matches: Callable[[Wanted, str], bool] = equal

    def takes(self, wanted: Collection[Wanted]) -> Takes:
        """Return a function that says whether an event is wanted. A route that names nothing wants every event."""
        return Wants(self, tuple(wanted)) if wanted else every


@dataclass(frozen=True, slots=True)
class Wants:
    """Takes the events of a sort in which one of ``wanted`` is found."""

    sort: Sort
    wanted: tuple[Wanted, ...]

    def __call__(self, event: Event) -> bool:
        """Return whether an event is wanted."""
        matches = self.sort.matches
        strings = [found for found in self.sort.found(event) if isinstance(found, str)]
        return any(matches(each, found) for each in self.wanted for found in strings)


MESSAGE = Sort(MESSAGES, texts, contained)
EDITED = Sort(("slack.message_changed",), edited_texts, contained)
DELETED = Sort(("slack.message_deleted",), edited_texts, contained)
LINKS = Sort((LINK,), link_domains)
ENTITIES = Sort((ENTITY,), entity_names)
ACTION = Sort(("slack.block_actions",), action_ids)
VIEW = Sort(("slack.view_submission",), view_ids)
VIEW_CLOSED = Sort(("slack.view_closed",), view_ids)
SHORTCUT = Sort(("slack.shortcut", "slack.message_action"), callback_ids)
OPTIONS = Sort(("slack.block_suggestion",), option_ids)


def event_kinds(types: Iterable[Wanted]) -> Iterator[str]:
    """Yield the kinds of event types. A pattern stands for the documented types in which it is found.

    Raises:
        ValueError: a pattern is in no documented type.
    """
    for wanted in types:
        if isinstance(wanted, str):
            yield from MESSAGES if wanted == "message" else (f"slack.{wanted}",)
            continue
        known = sorted(name for name in EVENT_TYPES if wanted.search(name))
        if not known:
            raise ValueError(f"the pattern {wanted.pattern!r} is in no event type that Slack documents")
        yield from (f"slack.{name}" for name in known)


def command_kinds(names: Iterable[object]) -> Iterator[str]:
    """Yield the kinds of slash commands.

    Raises:
        ValueError: a name is a pattern. Every command has a kind of its own, and a worker claims by kind.
    """
    for name in names:
        if not isinstance(name, str):
            raise ValueError(  # noqa: TRY004 - a mistake like the others
                f"name each command, such as '/deploy', instead of {name!r}: a worker claims commands by their names"
            )
        yield f"{COMMAND}{name.lstrip('/')}"[:200]


def doubt(kind: str, taken: Collection[str] | None) -> str | None:
    """Return why events of a kind can never arrive; ``None`` if they may.

    Args:
        kind: a kind that has a handler.
        taken: the event types that ingest takes; ``None`` if they are not known here.
    """
    prefix, _, name = kind.partition(".")
    if prefix != "slack" or name in INTERACTIONS or kind.startswith(COMMAND):
        return None
    if name not in EVENT_TYPES:
        near = difflib.get_close_matches(name, EVENT_TYPES | INTERACTIONS, 1)
        return f"Slack has no event type {name}" + (f"; did you mean {near[0]}?" if near else "")
    with_messages = name in EDITS and taken is not None and any(each.startswith("message") for each in taken)
    if taken is not None and name not in taken and not with_messages:
        return f"SURELANE_EVENT_TYPES leaves out {name}"
    return None


def _member(holder: object, name: str) -> Any:
    return holder.get(name) if isinstance(holder, dict) else None
