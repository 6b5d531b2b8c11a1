"""The questions that handlers have asked people with ``ctx.ask``, and that have no answer yet."""

import json
from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from surelane.encryption.places import step_place
from surelane_operator.reads.events import Reads
from surelane_operator.reads.filters import Cursor, keyset

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


async def list_questions(reads: Reads, after: Cursor | None = None, limit: int = 50) -> QuestionPage:
    """Return a page of open questions."""
    rows = await reads.calls.rows("list_questions", *keyset(after), limit)
    found: list[Question] = []
    for row in rows:
        posted = json.loads(row["posted"]) if row["posted"] else {}
        posted = await reads.sealing.shown(posted, step_place(row["id"], f"{row['question']} asked", 1))
        found.append(Question.model_validate(dict(row) | _posted(posted)))
    following = Cursor(found[-1].id, found[-1].asked_at).text() if len(found) == limit else None
    return QuestionPage(questions=found, next=following)


def _posted(posted: object) -> dict[str, Any]:
    """Return what is shown of a stored question."""
    given = posted if isinstance(posted, dict) else {}
    shown = {name: given.get(name) for name in ("choices", "by", "channel", "ts", "thread_ts")}
    said = given.get("text")
    text = said[:LONGEST_TEXT] if isinstance(said, str) else None
    return shown | {"text": text, "judged": bool(given.get("judged"))}
