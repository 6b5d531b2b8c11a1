"""A reply is sent only once its note is stored, and never without the claim."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import cast
from unittest.mock import AsyncMock, call, sentinel

import pytest

from surelane.errors import DatabaseUnavailable
from surelane.events import Event
from surelane_service.engine import Engine, Settled
from surelane_service.logs import get_logger
from surelane_worker.slack import notes
from surelane_worker.slack.marks import metadata_of, ordinal_of, without_marks
from surelane_worker.slack.notes import ClaimLostError, Notebook, SentReplies

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Answers:
    """Gives these answers to notes, one after another."""

    def __init__(self, answers: Iterable[Settled | Exception]) -> None:
        self._answers = iter(answers)
        self.stored: list[str] = []

    async def note_event(self, _id: int, _claim: int, text: str) -> Settled:
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        self.stored.append(text)
        return answer


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes, "AWAY", 0.0)
    monkeypatch.setattr(notes, "PAUSES", (0.0, 0.0))


EVENT = Event(1, "slack.app_mention", NOW, 1, 1, NOW, "{}")


def notebook(engine: Answers) -> Notebook:
    """Return the notebook of an event without notes."""
    return Notebook(cast("Engine", engine), EVENT, get_logger("test"))


async def test_a_reply_waits_until_the_database_has_its_note_and_needs_the_claim() -> None:
    engine = Answers([DatabaseUnavailable("away"), DatabaseUnavailable("away"), Settled.DONE])
    noted = notebook(engine)
    await noted.note_reply(0, None)
    assert engine.stored == ['{"replies": {"0": null}}']
    assert noted.has_reply(0)
    assert noted.reply(0) is None
    with pytest.raises(ClaimLostError):
        await notebook(Answers([Settled.STALE])).note_reply(0, None)


async def test_a_sent_replys_timestamp_waits_for_no_database_and_its_other_channel_costs_no_write() -> None:
    """A later attempt then looks for it in Slack, because the note says that it was being sent."""
    engine = Answers([Settled.DONE, DatabaseUnavailable("away")])
    noted = notebook(engine)
    await noted.note_reply(0, None)
    await noted.note_reply(0, "1.2")
    assert engine.stored == ['{"replies": {"0": null}}']
    engine = Answers([Settled.DONE, Settled.DONE])
    noted = notebook(engine)
    noted.place(0, "C2")
    await noted.note_reply(0, None)
    await noted.note_reply(0, "1.2")
    assert json.loads(engine.stored[-1]) == {"elsewhere": {"0": "C2"}, "replies": {"0": "1.2"}}
    assert len(engine.stored) == 2


@pytest.mark.parametrize(
    "own",
    [None, {"event_type": "order", "event_payload": {"id": 8}}, {"event_type": "order", "event_payload": {}}],
)
def test_a_handler_reads_messages_with_their_own_metadata_and_without_the_mark(own: object) -> None:
    given = {"ts": "1.2"} if own is None else {"ts": "1.2", "metadata": own}
    marked = {**given, "metadata": metadata_of(EVENT, 2, own)}
    assert ordinal_of(marked, EVENT) == 2
    assert without_marks({"messages": [marked], "event": {"message": marked}}) == {
        "messages": [given],
        "event": {"message": given},
    }


async def test_a_message_is_noted_before_it_is_sent_and_looked_for_before_it_is_sent_again() -> None:
    assert ordinal_of({"metadata": metadata_of(EVENT, 2)}, EVENT) == 2
    slack = AsyncMock()
    slack.send.side_effect = TimeoutError
    slack.find.side_effect = [None, "1.2"]
    replies = SentReplies(sentinel.client, get_logger("test"))
    assert await replies.noted_once(slack.send, slack.find, slack.note, slack.forget) == "1.2"
    sent = [call.send(), call.find()]
    assert slack.mock_calls == [call.note(None), *sent, *sent, call.note("1.2")]
