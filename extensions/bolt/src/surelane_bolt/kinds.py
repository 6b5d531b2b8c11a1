"""Read from a Bolt app's listeners which kinds of events they take."""

import re
from collections.abc import Iterable, Iterator

from slack_bolt import App
from slack_bolt.async_app import AsyncApp

from surelane_bolt.internals import RegisteredListener, assistants, registered
from surelane_service.subscriptions import COMMAND
from surelane_worker.handling.handler import HandlersError
from surelane_worker.handling.routes import command_kinds, equal, event_kinds

SETTING = "SURELANE_BOLT_KINDS"

_DIALOGS = ("dialog_submission", "dialog_cancellation")
INTERACTIONS: dict[str, tuple[str, ...]] = {
    "shortcut": ("shortcut", "message_action"),
    "global_shortcut": ("shortcut",),
    "message_shortcut": ("message_action",),
    "action": ("block_actions", "interactive_message", *_DIALOGS, "workflow_step_edit"),
    "block_action": ("block_actions",),
    "attachment_action": ("interactive_message",),
    "workflow_step_save": ("view_submission",),
    "options": ("block_suggestion", "dialog_suggestion"),
    **{same: (same,) for same in (*_DIALOGS, "workflow_step_edit", "view_submission", "view_closed")},
    **{same: (same,) for same in ("block_suggestion", "dialog_suggestion")},
}
"""The interactions that each sort of listener takes."""

TAKEN_SUBTYPES = ("", "file_share", "thread_broadcast", "me_message", "bot_message", "slackbot_response")
"""The subtypes of the messages that ingest takes, some of them by a setting; the empty one stands for none."""
RETIRED = ("workflow_step_execute", "workflow_step_edit", "workflow_step_save")
"""The sorts of listeners for steps from apps."""

ASSISTANT = ("assistant_thread_started", "assistant_thread_context_changed", "message.im")


def kinds_of(app: App | AsyncApp, further: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the kinds that the app's listeners take, each once.

    ``further``: kinds to add. If there are any, listeners whose kinds cannot be read are left out. Otherwise these,
    and an app without listeners, are a :class:`HandlersError`.
    """
    kinds = dict.fromkeys(further)
    lenient = bool(kinds)
    for listener in registered(app):
        try:
            kinds |= dict.fromkeys(_kinds_of(listener))
        except ValueError as error:
            if not lenient:
                raise HandlersError(
                    f"the listener {listener.name} of the Bolt app: {error}; name its kinds in {SETTING}, "
                    "such as slack.command.deploy,slack.app_mention"
                ) from None
    if assistants(app):
        kinds |= dict.fromkeys(event_kinds(ASSISTANT))
    if not kinds:
        raise HandlersError("the Bolt app has no listeners")
    return tuple(kinds)


def idle_listeners(app: App | AsyncApp, further: Iterable[str] = ()) -> Iterator[tuple[str, str]]:
    """Yield the listeners that can never run: each one's name, and why. ``further``: as in :func:`kinds_of`."""
    commands = ["/" + kind.removeprefix(COMMAND) for kind in further if kind.startswith(COMMAND)]
    for listener in registered(app):
        constraints, command = listener.wanted.get("constraints"), listener.wanted.get("command")
        if listener.sort in RETIRED:
            yield listener.name, "Slack has retired steps from apps"
        elif isinstance(command, re.Pattern) and not any(map(command.search, commands)):
            yield listener.name, f"{SETTING} has no command that it takes"
        elif isinstance(constraints, dict) and constraints.get("type") == "message":
            subtypes = constraints.get("subtype", "")
            wanted = [subtypes] if subtypes is None or isinstance(subtypes, str | re.Pattern) else subtypes
            if not any(equal(each or "", subtype) for each in wanted for subtype in TAKEN_SUBTYPES):
                yield listener.name, f"ingest takes no messages of subtype {subtypes}"


def _kinds_of(listener: RegisteredListener) -> Iterator[str]:
    """Yield a listener's kinds. Raise ``ValueError`` if they cannot be read."""
    wanted = listener.wanted
    match listener.sort:
        case "event" | "message_event":
            constraints = wanted.get("constraints")
            constraints = constraints if isinstance(constraints, dict) else {}
            name = wanted.get("event_type", constraints.get("type"))
            if not isinstance(name, str | re.Pattern):
                raise ValueError("its event type is not known")  # noqa: TRY004 - a mistake like the others
            yield from event_kinds([name])
        case "function_executed" | "workflow_step_execute" as name:
            yield f"slack.{name}"
        case "command":
            name = wanted.get("command")
            if not isinstance(name, str):
                raise ValueError(  # noqa: TRY004 - a mistake like the others
                    "it takes commands by a pattern, and a worker claims commands by their names"
                )
            yield from command_kinds([name])
        case sort if sort in INTERACTIONS:
            yield from (f"slack.{name}" for name in INTERACTIONS[sort])
        case sort:
            raise ValueError(f"its sort is not known ({sort or 'no name'})")
