"""Compare the event types that ingest takes with the kinds that workers handle."""

import difflib
from collections.abc import Collection, Iterable

from surelane.slack import EDITS

TYPES = "SURELANE_EVENT_TYPES"
DEFAULT_TYPES = frozenset({"app_mention", "message.im"})
"""The event types that ingest takes if neither ``SURELANE_EVENT_TYPES`` nor a manifest names others."""
COMMAND = "slack.command."
MESSAGES = tuple(f"slack.message{channel}" for channel in (".im", ".mpim", ".channels", ".groups", ""))
"""The kinds of messages. The last one is of channels of another type."""

AGENTS = "slack.agent_session_stopped"
"""A kind that workers with agents handle."""
IN_CHANNELS = ("slack.message.channels", "slack.message.groups", "slack.message.mpim")
"""The kinds of messages that need not be to the bot. A mention may come under them, too."""

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


def doubt(
    kind: str,
    taken: Collection[str] | None,
    subscribed: Collection[str] | None = None,
    commands: Collection[str] | None = None,
) -> str | None:
    """Return why events of a kind can never arrive; ``None`` if they may.

    ``taken``: ``SURELANE_EVENT_TYPES``; ``None``: unset. ``subscribed``, ``commands``: the manifest's event types and
    commands; ``None``: no manifest tells them. Ingest takes the first, else the second, else its default.
    """
    prefix, _, name = kind.partition(".")
    if kind.startswith(COMMAND):
        command = f"/{kind.removeprefix(COMMAND)}"
        lacks = f"the app's manifest has no command {command}; add below slash_commands: - command: {command}"
        return None if commands is None or command in commands else lacks
    if prefix != "slack" or name in INTERACTIONS:
        return None
    if name not in EVENT_TYPES:
        near = difflib.get_close_matches(name, EVENT_TYPES | INTERACTIONS, 1)
        return f"Slack has no event type {name}" + (f"; did you mean {near[0]}?" if near else "")
    if taken is not None and not _among(name, taken):
        return f"{TYPES} leaves out {name}: add it there, or unset {TYPES} where a manifest is known"
    if subscribed is not None and not _among(name, subscribed):
        return f"the app's manifest does not subscribe to {name}; add below bot_events: - {name}"
    if taken is None and subscribed is None and not _among(name, DEFAULT_TYPES):
        default = ",".join(sorted(DEFAULT_TYPES))
        return f"no manifest is known, so ingest leaves out {name}; set {TYPES}={default},{name}"
    return None


def unfollowed(
    kinds: Collection[str], taken: Collection[str] | None, subscribed: Collection[str] | None = None
) -> list[str]:
    """Return why agents do not hear channels' messages that do not name them. ``kinds``: as workers announce them."""
    heard = [kind for kind in IN_CHANNELS if AGENTS in kinds and kind in kinds]
    return [why for kind in heard if (why := doubt(kind, taken, subscribed))]


def _among(name: str, types: Collection[str]) -> bool:
    """Return whether a type is among others. Edits come with messages."""
    return name in types or (name in EDITS and any(each.startswith("message") for each in types))


def doubts(
    kinds: Iterable[str],
    taken: Collection[str] | None,
    subscribed: Collection[str] | None = None,
    commands: Collection[str] | None = None,
) -> dict[str, str]:
    """Return the kinds whose events can never arrive, and why.

    A route for all messages announces their five kinds, and an app subscribes to few of them. So none is returned if
    another one arrives.
    """
    known = set(kinds)
    found = {kind: reason for kind in sorted(known) if (reason := doubt(kind, taken, subscribed, commands))}
    arriving = not known.isdisjoint(MESSAGES) and not known.intersection(MESSAGES) <= found.keys()
    return {kind: reason for kind, reason in found.items() if not (arriving and kind in MESSAGES)}


def untaken(kinds: Collection[str], taken: Iterable[str]) -> list[str]:
    """Return the event types that ingest takes and no handler of these kinds does."""
    return sorted(name for name in taken if f"slack.{name}" not in kinds and name not in EDITS)
