"""Answer commands, modals and menus in the HTTP response to Slack's request, and a modal also later.

:func:`answer_text` makes the body that a kind takes, and refuses parts that Slack would not understand. If the request
of a modal no longer waits, ingest has let the modal say that its input has arrived, and :func:`answer_modal` replaces
that. Slack takes ``errors`` in the response alone. So the modal is then shown again with what the person entered, and
with the errors below the inputs.
"""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, TypedDict

from slack_sdk.errors import SlackApiError
from slack_sdk.models import JsonObject

from surelane.errors import SurelaneError, described
from surelane.events import Event
from surelane.slack import object_in
from surelane_service.engine import EMPTY, Engine
from surelane_service.logs import get_logger
from surelane_service.modals import replaced, said
from surelane_service.subscriptions import COMMAND
from surelane_worker.slack.chunks import LONGEST_SECTION
from surelane_worker.slack.client import final_reason
from surelane_worker.slack.notes import Notebook
from surelane_worker.slack.replies import Replies

ResponseType = Literal["ephemeral", "in_channel"]
ResponseAction = Literal["errors", "update", "push", "clear"]
Body = str | Mapping[str, Any] | Literal[False]

MOST_OPTIONS = 100
"""Slack's bound for the options, and for the groups of options, of one answer."""
LARGEST = 1_000_000
"""The most characters of an answer. Slack's largest view has 250,000 bytes."""

REFUSED: Literal[False] = False
"""The answer to a command or a modal that nothing handles. Slack tells the person that it failed."""
SUBMISSION = "slack.view_submission"
TAKES = {
    COMMAND: ("text", "blocks", "response_type"),
    SUBMISSION: ("response_action", "errors", "view"),
    "slack.block_suggestion": ("options", "option_groups"),
}
WAIT = timedelta(seconds=10)
"""No request waits for so long: it has 2.5 seconds. The rest allows for clocks that differ."""
ACKNOWLEDGED = "ack"
"""The note that an attempt has answered a modal. A later attempt leaves the modal alone."""
ACCEPTED = "Your input was accepted. You may close this window."
UNHANDLED = "Nothing took your input. Please tell the people who run this app."
ERROR = "surelane.error:"
"""How the id of a block with an error begins. The block's own id follows."""

log = get_logger("surelane_worker.handling.answers")


class Parts(TypedDict, total=False):
    """The parts of an answer; see :meth:`Context.ack`."""

    text: str | None
    blocks: Sequence[Any] | None
    response_type: ResponseType | None
    response_action: ResponseAction | None
    errors: Mapping[str, str] | None
    view: Any
    options: Sequence[Any] | None
    option_groups: Sequence[Any] | None


class AnswerError(ValueError):
    """The event's kind does not take this answer."""


def answer_text(kind: str, body: Body | None, parts: Mapping[str, Any]) -> str:
    """Return an answer as JSON text: an object, a string, or ``null`` for an empty one.

    Args:
        kind: the event's kind, which says what Slack takes.
        body: the answer as a whole, instead of ``parts``. :data:`REFUSED`: there is none.
        parts: the parts of the answer by their names in Slack's documentation; ``None`` leaves a part out.

    Raises:
        AnswerError: Slack would not take it for this kind.
    """
    given = {name: part for name, part in parts.items() if part is not None}
    if body is not None and given:
        raise AnswerError(f"ack takes a body or {', '.join(given)}, not both")
    if given:
        _check(kind, given)
    if body is REFUSED and not (kind == SUBMISSION or kind.startswith(COMMAND)):
        raise AnswerError("only commands and submitted modals can be refused")
    text = json.dumps(given or body, default=_plain)
    if len(text) > LARGEST:
        raise AnswerError(f"the answer has {len(text)} characters; at most {LARGEST} can be sent")
    return text


def _check(kind: str, given: dict[str, Any]) -> None:
    sort = COMMAND if kind.startswith(COMMAND) else kind
    takes = TAKES.get(sort, ())
    wrong = [name for name in given if name not in takes]
    if wrong:
        wanted = f"only {', '.join(takes)}" if takes else "nothing: call ack() without arguments"
        raise AnswerError(f"the answer to {kind} cannot hold {', '.join(wrong)}; it takes {wanted}")
    if sort == COMMAND:
        _check_command(given)
    elif "option_groups" in given or "options" in given:
        _check_options(given)
    else:
        _check_view(given)


def _check_command(given: Mapping[str, Any]) -> None:
    if given.get("response_type") not in (None, "ephemeral", "in_channel"):
        raise AnswerError(f"response_type is 'ephemeral' or 'in_channel', not {given['response_type']!r}")
    if not given.keys() & {"text", "blocks"}:
        raise AnswerError("response_type needs text or blocks")


def _check_options(given: Mapping[str, Any]) -> None:
    if len(given) > 1:
        raise AnswerError("a menu takes options or option_groups, not both")
    for name, some in given.items():
        if not isinstance(some, Sequence) or isinstance(some, str):
            raise AnswerError(f"{name} must be a list, not {type(some).__name__}")
        if len(some) > MOST_OPTIONS:
            raise AnswerError(f"Slack takes {MOST_OPTIONS} {name}, not {len(some)}")


def _check_view(given: dict[str, Any]) -> None:
    action = given.setdefault("response_action", "errors" if "errors" in given else None)
    if action not in ("errors", "update", "push", "clear"):
        raise AnswerError(f"response_action is 'errors', 'update', 'push' or 'clear', not {action!r}")
    needs = {"errors": "errors", "update": "view", "push": "view"}.get(action)
    if needs is not None and not given.get(needs):
        raise AnswerError(f"response_action={action!r} needs {needs}")
    for name in ("errors", "view"):
        if name in given and name != needs:
            raise AnswerError(f"response_action={action!r} cannot hold {name}")
    if needs == "errors" and not isinstance(given["errors"], Mapping):
        raise AnswerError("errors maps the block_id of each wrong input to a message")


def _plain(value: object) -> object:
    """Return one of slack-sdk's blocks, views or options as JSON."""
    if isinstance(value, JsonObject):
        return value.to_dict()
    if isinstance(value, Mapping):
        return dict(value)
    raise AnswerError(f"an answer cannot hold a {type(value).__name__}")


class AnswerSender:
    """Send answers to the ingest processes that wait. Answers that come during a call share the next one."""

    def __init__(self, engine: Engine, lease: timedelta) -> None:
        """``lease``: how long claims stand; it tells when an event was claimed."""
        self._engine = engine
        self._lease = lease
        self._waiting: list[tuple[Event, str, asyncio.Future[bool]]] = []
        self._sending: asyncio.Task[None] | None = None

    def acknowledge(self, event: Event) -> None:
        """Answer Slack's request with an empty answer, if it may still wait. Return at once."""
        if event.vt - self._lease - event.event_ts < WAIT:
            self.answer(event, EMPTY)

    def answer(self, event: Event, text: str) -> asyncio.Future[bool]:
        """Answer Slack's request with ``text``, from :func:`answer_text`. The future says whether it was taken."""
        taken: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((event, text, taken))
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send_all())
        return taken

    async def _send_all(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            taken: set[int] = set()
            asked = [(event.id, event.claim, text) for event, text, _ in batch]
            try:
                async with asyncio.timeout(2.5):
                    taken = await self._engine.answer_requests(asked)
            except (SurelaneError, TimeoutError, OSError) as error:
                log.warning("could not answer Slack's requests", count=len(batch), **described(error))
            for event, _, answer in batch:
                if not answer.done():  # its handler may be cancelled
                    answer.set_result(event.id in taken)
                taken.discard(event.id)  # of two answers in one call, one was taken


async def answer_modal(
    replies: Replies, notebook: Notebook, event: Event, answer: str, *, taken: bool
) -> bool:
    """Show an answer (JSON) that Slack's request has not ``taken``, once. Return whether the person sees it."""
    if not taken:
        if notebook.call(ACKNOWLEDGED):
            return False
        try:
            await replies.update_view(event, late_view(event.payload["view"], json.loads(answer)))
        except SlackApiError as error:
            if final_reason(error) is None:
                raise
            return False
    await notebook.note_call(ACKNOWLEDGED, "yes")
    return True


def late_view(view: Mapping[str, Any], answer: object) -> dict[str, Any]:
    if answer is False:
        return said(view, UNHANDLED)
    given = object_in(answer)
    match given.get("response_action"):
        case "errors":
            return replaced(view, blocks=list(_with_errors(view, given["errors"])))
        case "update" | "push":
            shown: dict[str, Any] = given["view"]
            return shown
    return said(view, ACCEPTED)


def _with_errors(view: Mapping[str, Any], errors: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    values = object_in(object_in(view.get("state")).get("values"))
    for block in view["blocks"]:
        name = block.get("block_id", "")
        if name.startswith(ERROR):
            continue
        yield _filled(block, object_in(values.get(name)))
        if name in errors:
            told = f":warning: {errors[name]}"[:LONGEST_SECTION]
            text = {"type": "plain_text", "text": told, "emoji": True}
            yield {"type": "context", "block_id": f"{ERROR}{name}"[:255], "elements": [text]}


def _filled(block: dict[str, Any], entered: Mapping[str, Any]) -> dict[str, Any]:
    """Return an input with what was entered as its initial value."""
    element = object_in(block.get("element"))
    if block["type"] != "input" or not element:
        return block
    given = object_in(entered.get(element.get("action_id", "")))
    bare = {name: part for name, part in element.items() if not name.startswith("initial_")}
    initial = {_initial(name): value for name, value in given.items() if value and _initial(name)}
    return block | {"element": bare | initial}


def _initial(name: str) -> str:
    """Return the name of an element's initial value by the name of its value in a view's state."""
    if name.startswith("selected_"):
        return name.replace("selected", "initial", 1)
    return "initial_value" if name in ("value", "rich_text_value") else ""
