"""Ask people in Slack, and let them stop a handler: post messages with buttons, and read the clicks.

A click is an event of the kind ``surelane.answer``, which has slots of its own, so it does not wait behind the handler
that asked. The id of the message's block names the event and the question. The users who may answer are stored with
the event, not in the message. ``agent.kept_steps`` and ``agent.open_questions`` also know the names of a question's
steps.
"""

import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from slack_sdk.errors import SlackApiError

from surelane.events import Event
from surelane.slack import object_in, place_of
from surelane.text import escaped
from surelane_worker.handling.outcomes import Pause, duration
from surelane_worker.handling.shapes import StepCall, StepMismatchError
from surelane_worker.handling.steps import Steps
from surelane_worker.slack.chunks import LONGEST_SECTION, MOST_SECTIONS, beginning, sections, update_of
from surelane_worker.slack.client import PASSING, NowhereToReplyError, final_reason, slack_error
from surelane_worker.slack.replies import Replies
from surelane_worker.slack.tokens import owner_fields

CHOOSE, WRITE, WRITTEN, STOP = "surelane.choose", "surelane.write", "surelane.written", "surelane.stop"
"""The ids of a choice, of the button that opens a modal, of that modal, and of a Stop button."""
CONNECT = "surelane.connect"
"""The id of a button that leads to a page. Its clicks need no answer."""
MOST_CHOICES = 100
LONGEST_CHOICE = 75
LONGEST_INITIAL = 3_000
"""Characters that Slack takes as the beginning of a text in a modal."""
LONGEST_QUESTION = 100
LONGEST_ASKED = LONGEST_SECTION * MOST_SECTIONS - 2_000
"""Characters of a question: Slack takes 40,000 in a message."""
ENDED = "This has ended."
"""What a question or a Stop button says once its event has ended."""

People = str | Sequence[str] | Callable[[str], Any] | None
"""The users who may answer: an id, several ids, or a function that takes an id; ``None``: everybody."""


class AskError(StepMismatchError):
    """Slack would refuse a question as it is asked. The event fails at once: each attempt would ask the same."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to a question: the choice or the text that was written, the id of the user, and when.

    ``text``: what was written beside a choice that takes a text.
    """

    choice: str
    user: str
    at: datetime
    text: str = ""


@dataclass(frozen=True, slots=True)
class Block:
    """The event and the question to which a block of a message belongs."""

    identity: int
    question: str

    def __str__(self) -> str:
        return f"surelane:{self.identity}:{self.question}"

    @classmethod
    def read(cls, text: object) -> "Block | None":
        """Return the block that an id names; ``None`` if the id is not Surelane's."""
        prefix, _, rest = str(text).partition(":")
        identity, _, question = rest.partition(":")
        if prefix != "surelane" or not (identity.isascii() and identity.isdigit()) or not question:
            return None
        return cls(int(identity), question) if len(identity) < 19 else None


class Asks:
    """The questions and Stop buttons of one attempt."""

    def __init__(self, steps: Steps, replies: Replies) -> None:
        self._steps = steps
        self._replies = replies

    async def ask(
        self,
        event: Event,
        text: str,
        choices: Sequence[str] | None,
        timeout: Pause | None,
        by: People,
        name: str,
        *,
        written: Mapping[str, str] | None,
        blocking: bool,
        arguments: dict[str, Any],
    ) -> Answer | None:
        """See :meth:`Context.ask`."""
        _check(text, choices, name, timeout, arguments)
        _check_written(written or {}, choices or (), name)
        block, asked = self._block(name), _asked(text, choices, by)
        if written:
            asked["written"] = dict(written)
        question = block.question
        posted = await self._post(event, text, block, _elements(choices), asked, arguments)
        while True:
            left = None
            if timeout is not None:
                left = datetime.fromisoformat(posted["at"]) + duration(timeout) - datetime.now(UTC)
                left = max(left, timedelta(0))
            signal = await self._steps.signal(question, left, blocking=blocking)
            if signal is None:
                await self._close(question, posted, "No answer came in time.")
                return None
            given = signal.value
            answer = Answer(given["choice"], given["user"], signal.at, given.get("text", ""))
            if not callable(by):
                return answer
            if await self._steps.run(f"{question} may", StepCall(lambda user=answer.user: by(user))):
                await self._close(question, posted, chosen(answer.choice, answer.user, answer.text))
                return answer
            told = partial(
                tell, self._replies, event, posted, answer.user, "You may not answer this question."
            )
            await self._steps.run(f"{question} refused", StepCall(told))

    async def _post(
        self,
        event: Event,
        text: str,
        block: Block,
        elements: list[dict[str, Any]],
        asked: dict[str, Any],
        arguments: dict[str, Any],
    ) -> Mapping[str, Any]:
        """Post a message with buttons, once per event, and return it as it is stored."""

        async def post() -> dict[str, Any]:
            place = place_of(event.payload)
            channel = arguments.pop("channel", place.channel)
            if not channel:
                raise NowhereToReplyError
            arguments.setdefault("thread_ts", place.thread_ts if channel == place.channel else None)
            blocks = [*sections(text), {"type": "actions", "block_id": str(block), "elements": elements}]
            ts = await self._replies.reply(event, text, channel=channel, blocks=blocks, **arguments)
            posted = {"ts": ts, "channel": channel, "thread_ts": arguments["thread_ts"]}
            return posted | asked | owner_fields(event)

        posted: Mapping[str, Any] = await self._steps.run(asked_as(block.question), StepCall(post))
        return posted

    def _block(self, name: str) -> Block:
        key = self._steps.key(name)
        return Block(self._steps.fence.event.id, f"{key.name}:{key.nth}")

    async def _close(self, question: str, posted: Mapping[str, Any], how: str) -> None:
        await self._steps.run(closed_as(question), StepCall(partial(close, self._replies, posted, how)))

    @asynccontextmanager
    async def stoppable(self, event: Event, text: str, by: People) -> AsyncIterator[None]:
        """See :meth:`Context.stoppable`."""
        if callable(by):
            raise AskError(
                "by: name the users who may stop a handler; a function cannot run while the handler does"
            )
        block = self._block("stop button")
        stop = button("Stop", STOP, "stop") | {"style": "danger"}
        posted = await self._post(event, text, block, [stop], _asked(text, ["Stop"], by), {})
        yield

        async def remove() -> None:
            with ignoring_final_errors():
                await self._replies.client.chat_delete(channel=posted["channel"], ts=posted["ts"])

        await self._steps.run(closed_as(block.question), StepCall(remove))


def asked_as(question: str) -> str:
    """Return the name of the step that stores a question."""
    return f"{question} asked"


def closed_as(question: str) -> str:
    """Return the name of the step that takes a question's buttons away."""
    return f"{question} closed"


def may(posted: Mapping[str, Any], user: str) -> bool:
    """Return whether the stored question lets a user answer. A function of ``by`` decides later."""
    return posted["by"] is None or user in posted["by"]


def chosen(choice: str, user: str, text: str = "") -> str:
    """Return a sentence that names the choice and the user, and has the text that was written beside it."""
    return f"*{escaped(choice)}*, says <@{user}>" + (f": {escaped(text)}" if text else ".")


async def close(replies: Replies, posted: Mapping[str, Any], how: str) -> None:
    """Replace a message's buttons by a sentence, if the message still exists."""
    said = {"type": "context", "elements": [{"type": "mrkdwn", "text": beginning(how, LONGEST_SECTION)}]}
    with ignoring_final_errors():
        shown = update_of(posted["text"], {"blocks": [*sections(posted["text"]), said]})
        await replies.client.chat_update(channel=posted["channel"], ts=posted["ts"], **shown)


async def tell(replies: Replies, event: Event, posted: Mapping[str, Any], user: str, text: str) -> None:
    """Show one person a text below a question. The others do not see it. Where Slack refuses, no one sees it.

    Everybody who can read a public channel can click, and Slack shows such a text to the channel's members alone.
    """
    where = {"channel": posted["channel"], "thread_ts": posted["thread_ts"]}
    try:
        await replies.whisper(event, text, user=user, **where)
    except SlackApiError as error:
        if slack_error(error) in PASSING:
            raise


@contextmanager
def ignoring_final_errors() -> Iterator[None]:
    """Ignore Slack's final errors: somebody may have deleted the message, and another attempt would not help."""
    try:
        yield
    except SlackApiError as error:
        if final_reason(error) is None:
            raise


def modal(
    posted: Mapping[str, Any], block: Block, callback: str = WRITTEN, *, choice: str = "", initial: str = ""
) -> dict[str, Any]:
    """Return the modal in which a question is answered, or the text beside a ``choice`` is written."""
    asked = {"block": str(block), "channel": posted["channel"], "thread_ts": posted["thread_ts"]}
    asked |= {"choice": choice} if choice else {}
    text: dict[str, Any] = {"type": "plain_text_input", "action_id": "text", "multiline": True}
    text |= {"initial_value": initial} if initial else {}
    label = plain(choice or "Answer")
    field = {"type": "input", "block_id": "answer", "label": label, "element": text}
    return {
        "type": "modal",
        "callback_id": callback,
        "private_metadata": json.dumps(asked),
        "title": plain("Answer"),
        "submit": plain("Send"),
        "blocks": [*sections(beginning(posted["text"], LONGEST_SECTION)), field],
    }


def read_click(payload: Mapping[str, Any]) -> tuple[Block | None, str, str]:
    """Return the question, the action's id without its number, and the choice or text of the person."""
    if payload.get("type") == "view_submission":
        try:
            written = str(payload["view"]["state"]["values"]["answer"]["text"]["value"] or "")
        except (KeyError, TypeError):
            return None, "", ""
        return Block.read(_metadata(payload).get("block")), WRITTEN, written
    action = (payload.get("actions") or [{}])[0]
    name = str(action.get("action_id", ""))
    name = CHOOSE if name.startswith(CHOOSE) else name
    option = action.get("selected_option") or {}
    value = str(option.get("value", action.get("value", "")))
    if name == CHOOSE and not value.isdigit():
        return None, "", ""
    return Block.read(action.get("block_id")), name, value


def choice_in(payload: Mapping[str, Any]) -> str:
    """Return the choice beside which a modal's text is written; empty: the text answers the question itself."""
    return str(_metadata(payload).get("choice") or "")


def asked_in(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return where a click's question was asked. A modal has no channel, and says it in its metadata."""
    place = place_of(payload)
    return asdict(place) if place.channel else _metadata(payload)


def _metadata(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a modal says about its question: its id, and where it was asked."""
    try:
        return object_in(json.loads(payload["view"]["private_metadata"]))
    except (ValueError, KeyError, TypeError):
        return {}


def _asked(text: str, choices: Sequence[str] | None, by: People) -> dict[str, Any]:
    return {
        "at": datetime.now(UTC).isoformat(),
        "text": text,
        "choices": None if choices is None else list(choices),
        "by": None if by is None or callable(by) else [by] if isinstance(by, str) else list(by),
        "judged": callable(by),
    }


def _check(
    text: object, choices: object, name: object, timeout: Pause | None, arguments: Mapping[str, Any]
) -> None:
    if not isinstance(name, str) or len(name) > LONGEST_QUESTION or ":" in name:
        raise AskError(f"the name of a question has at most {LONGEST_QUESTION} characters and no colon")
    if not isinstance(text, str) or not 0 < len(text.strip()) <= len(text) <= LONGEST_ASKED:
        raise AskError(f"{name}: a question is a text of 1 to {LONGEST_ASKED:,} characters")
    if "blocks" in arguments:
        raise AskError(f"{name}: a question has blocks of its own; say all in its text")
    if timeout is not None:
        try:
            duration(timeout)
        except (TypeError, ValueError) as error:
            raise AskError(f"{name}: timeout: {error}") from None
    if choices is not None:
        _check_choices(choices, name)


def _check_choices(choices: object, name: str) -> None:
    if not isinstance(choices, Sequence) or isinstance(choices, str) or not 0 < len(choices) <= MOST_CHOICES:
        raise AskError(f"{name}: a question has a list of 1 to {MOST_CHOICES} choices")
    for each in choices:
        if not isinstance(each, str) or not 0 < len(each.strip()) <= len(each) <= LONGEST_CHOICE:
            told = f"{each!r:.{LONGEST_CHOICE}}"
            raise AskError(f"{name}: a choice is a text of 1 to {LONGEST_CHOICE} characters, not {told}")
    if len(set(choices)) < len(choices):
        raise AskError(f"{name}: the choices of a question differ")


def _check_written(written: Mapping[str, str], choices: Sequence[str], name: str) -> None:
    for choice, initial in written.items():
        if choice not in choices:
            raise AskError(f"{name}: {choice!r:.{LONGEST_CHOICE}} takes a text and is not one of the choices")
        if len(initial) > LONGEST_INITIAL:
            raise AskError(f"{name}: {choice!r} begins with a text of at most {LONGEST_INITIAL:,} characters")


def _elements(choices: Sequence[str] | None) -> list[dict[str, Any]]:
    if choices is None:
        return [button("Answer…", WRITE, "write")]
    if len(choices) <= 5:  # more are a menu
        # Two buttons of one block may not have the same id.
        return [button(each, f"{CHOOSE}.{number}", str(number)) for number, each in enumerate(choices)]
    options = [{"text": plain(each), "value": str(number)} for number, each in enumerate(choices)]
    menu = {"type": "static_select", "action_id": CHOOSE, "options": options}
    return [menu | {"placeholder": plain("Choose…")}]


def button(text: str, action_id: str, value: str) -> dict[str, Any]:
    return {"type": "button", "action_id": action_id, "value": value, "text": plain(text)}


def plain(text: str) -> dict[str, str]:
    return {"type": "plain_text", "text": text}
