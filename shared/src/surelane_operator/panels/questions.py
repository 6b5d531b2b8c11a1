"""The questions that handlers have asked people with ``ctx.ask``, and that have no answer yet."""

import json
from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from surelane.calls import Calls
from surelane.encryption.sealing import Sealing
from surelane_operator.operations import Cursor

LONGEST_TEXT = 200


class Question(BaseModel):
    """An open question."""

    id: int = Field(description="the event that waits")
    kind: str
    item_key: str | None
    group_key: str | None
    question: str = Field(description="its name: send a signal of that name to answer it")
    text: str | None = Field(description="its first 200 characters")
    choices: list[str] | None = Field(description="null: people write an answer")
    by: list[str] | None = Field(description="the users who may answer; null: anybody, or a function decides")
    judged: bool = Field(description="whether a function decides who may answer")
    channel: str | None
    ts: str | None = Field(description="the message's timestamp")
    thread_ts: str | None
    asked_at: datetime
    until: datetime | None


class QuestionPage(BaseModel):
    """A page of open questions, newest first."""

    questions: list[Question]
    next: str | None = Field(description="the cursor of the next page; null: this is the last page")


async def list_questions(
    calls: Calls, after: Cursor | None = None, limit: int = 50, sealing: Sealing | None = None
) -> list[Question]:
    """Return a page of open questions. ``sealing`` decrypts them."""
    rows = await calls.fetch(
        "select * from agent.list_questions($1, $2, $3)",
        after.finished_at if after else None,
        after.id if after else None,
        limit,
    )
    found: list[Question] = []
    for row in rows:
        posted = json.loads(row["posted"]) if row["posted"] else {}
        if sealing is not None:
            posted = await sealing.shown(posted)
        found.append(Question.model_validate({**dict(row), **_posted(posted)}))
    return found


def _posted(posted: object) -> dict[str, Any]:
    """Return what is shown of a stored question."""
    if not isinstance(posted, dict):
        posted = {}
    said = posted.get("text")
    return {
        "text": said[:LONGEST_TEXT] if isinstance(said, str) else None,
        "choices": posted.get("choices"),
        "by": posted.get("by"),
        "judged": bool(posted.get("judged")),
        "channel": posted.get("channel"),
        "ts": posted.get("ts"),
        "thread_ts": posted.get("thread_ts"),
    }
