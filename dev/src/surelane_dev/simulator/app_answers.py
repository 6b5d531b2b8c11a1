"""Read what an app answers, over HTTP, to a command, a submitted modal, or a menu that asks for its options.

What Slack cannot use, or does not get within three seconds, it reports to the person in words of its own.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from surelane_dev.simulator.posting.delivery import DeliveryAttempt
from surelane_dev.simulator.views import DEEPEST, View, Views
from surelane_dev.simulator.webapi.call import ApiError, Arguments
from surelane_dev.simulator.webapi.chat import content_of
from surelane_dev.simulator.webapi.view_content import checked, placed
from surelane_dev.simulator.workspace.model import JSON, SLACKBOT, Channel, Message, User
from surelane_dev.simulator.workspace.workspace import Workspace

TROUBLE = "We had some trouble connecting. Try again?"
MOST_OPTIONS = 100


class UnusableError(Exception):
    """The app's answer is not one that Slack takes."""


def show_command_answer(
    workspace: Workspace, attempt: DeliveryAttempt, *, command: str, channel: Channel, user: User
) -> Message | None:
    """Post the answer to a command, if it is not empty: for its user alone, or for all if it says ``in_channel``.

    If there is none that can be used, Slackbot says so to the user.
    """
    try:
        content = _command_content(attempt)
    except UnusableError as error:
        text = f'{command} failed with the error "{error}"'
        return workspace.post(channel, SLACKBOT, text, username="Slackbot", visible_to=user.id)
    if content is None:
        return None
    visible_to = None if content.pop("response_type") == "in_channel" else user.id
    return workspace.speak(channel, **content, visible_to=visible_to)


def _command_content(attempt: DeliveryAttempt) -> JSON | None:
    if attempt.problem is not None:
        raise UnusableError("operation_timeout" if attempt.problem == "http_timeout" else "dispatch_failed")
    try:
        answer = json.loads(attempt.answer) if attempt.answer.strip() else {}
    except ValueError:
        answer = {"text": attempt.answer.decode(errors="replace")}
    if not isinstance(answer, dict):
        raise UnusableError("dispatch_failed")
    if not (answer.get("text") or answer.get("blocks") or answer.get("attachments")):
        return None
    try:
        return content_of(Arguments(answer)) | {"response_type": answer.get("response_type")}
    except ApiError:
        raise UnusableError("dispatch_failed") from None


@dataclass(frozen=True, slots=True)
class Submitted:
    """The result of a submitted modal: errors by ``block_id``, or a message about the whole, or neither."""

    errors: dict[str, str] = field(default_factory=dict)
    message: str | None = None


def settle_submission(workspace: Workspace, views: Views, view: View, attempt: DeliveryAttempt) -> Submitted:
    """Close, replace or cover a submitted modal, as the app's answer says."""
    try:
        errors = _act(workspace, views, view, _object(attempt))
    except UnusableError:
        return Submitted(message=TROUBLE)
    return Submitted(errors)


def _act(workspace: Workspace, views: Views, view: View, answer: JSON) -> dict[str, str]:
    match answer.get("response_action"):
        case None if not answer:
            views.close(view.id)
        case "clear":
            views.clear(view.user)
        case "errors":
            return _errors(answer, view)
        case "update":
            views.replace(view, placed(workspace, _view(answer), old=view))
        case "push":
            _push(workspace, views, view, _view(answer))
        case action:
            raise UnusableError(f"no such response_action: {action}")
    return {}


def _errors(answer: JSON, view: View) -> dict[str, str]:
    errors = answer.get("errors")
    inputs = {block["block_id"] for block in view.content["blocks"] if block["type"] == "input"}
    if not isinstance(errors, dict) or not errors or not errors.keys() <= inputs:
        raise UnusableError("errors must name blocks with inputs")
    if not all(isinstance(error, str) for error in errors.values()):
        raise UnusableError("an error must be a text")
    return errors


def _view(answer: JSON) -> JSON:
    view = answer.get("view")
    if not isinstance(view, dict):
        raise UnusableError("no view")
    try:
        return checked(view, "modal")
    except ApiError as error:
        raise UnusableError(str(error)) from None


def _push(workspace: Workspace, views: Views, below: View, content: JSON) -> None:
    if len(views.stack(below.user)) >= DEEPEST:
        raise UnusableError("push_limit_reached")
    views.push(View(below.user, placed(workspace, content, below=below)))


def options_in(attempt: DeliveryAttempt) -> JSON:
    """Return ``options`` or ``option_groups`` from the answer to a menu. Raises UnusableError: there are none."""
    answer = _object(attempt)
    for name in ("options", "option_groups"):
        if isinstance(answer.get(name), list):
            found = {name: answer[name]}
            if sum(1 for _ in each_option(found)) > MOST_OPTIONS:
                raise UnusableError("more than 100 options")
            return found
    raise UnusableError("neither options nor option_groups")


def each_option(answer: JSON) -> Iterator[JSON]:
    """Yield the options in the answer to a menu. Raises UnusableError: an option has no text or value."""
    groups = answer.get("option_groups") or [{"options": answer.get("options") or []}]
    for group in groups:
        options = group.get("options") if isinstance(group, dict) else None
        if not isinstance(options, list):
            raise UnusableError("a group has no options")
        for option in options:
            text = option.get("text") if isinstance(option, dict) else None
            if not isinstance(text, dict) or not isinstance(text.get("text"), str) or "value" not in option:
                raise UnusableError("an option needs a text and a value")
            yield option


def _object(attempt: DeliveryAttempt) -> JSON:
    if attempt.problem is not None:
        raise UnusableError(attempt.problem)
    if not attempt.answer.strip():
        return {}
    try:
        answer = json.loads(attempt.answer)
    except ValueError:
        raise UnusableError("the answer is no JSON") from None
    if not isinstance(answer, dict):
        raise UnusableError("the answer is no object")
    return answer
