"""What people think of agents' answers: counts, and pages of ratings with what was asked and answered."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from surelane.calls import Row
from surelane.encryption.keys import SealedError
from surelane.encryption.places import RESULT, Place
from surelane.slack import inner_event, object_in
from surelane_operator.reads.events import Reads
from surelane_service.feedback import GOOD, WHAT

PAGE = 100
_WHICH = """f.event_id > 0 and ($1::text is null or f.owner_id = $1) and ($2::timestamptz is null or f.at >= $2)
and ($3::int4 is null or f.rating = $3)"""


@dataclass(frozen=True, slots=True)
class Which:
    """The ratings that are wanted: of a workspace, since a time, good or bad ones. ``None``: all."""

    workspace: str | None = None
    since: datetime | None = None
    rating: int | None = None

    @property
    def arguments(self) -> tuple[object, ...]:
        """Return the arguments of the statements."""
        return self.workspace, self.since, self.rating


async def count_feedback(reads: Reads, which: Which) -> list[Row]:
    """Count good and bad ratings by the turn's ``kind`` and ``model``."""
    return await reads.calls.fetch(
        "select f.kind, nullif(f.model, '') as model, count(*) filter (where f.rating > 0) as good"  # noqa: S608 - constants
        f", count(*) filter (where f.rating < 0) as bad from agent.feedback as f where {_WHICH}"
        " group by f.kind, f.model order by count(*) desc, f.kind, f.model",
        *which.arguments,
    )


async def list_feedback(reads: Reads, which: Which, most: int | None = None) -> AsyncIterator[dict[str, Any]]:
    """Yield ratings, newest first. What cannot be decrypted is ``None``. Keep that somebody looks at texts.

    ``most``: the newest ones alone, without what was asked and answered.
    """
    async with reads.audit.keeping("look at feedback", detail={"workspace": which.workspace}):
        pass
    after: tuple[object, ...] = (None, None, None)
    while True:
        rows = await reads.calls.fetch(
            "select f.*, j.item_key, j.payload, j.result from agent.feedback as f left join lateral ("  # noqa: S608 - a constant
            " select item_key, payload, result, finished_at from agent.job where $8 and id = f.event_id"
            f" order by finished_at desc nulls first limit 1) as j on true where {_WHICH}"
            " and ($4::timestamptz is null or (f.at, f.event_id, f.user_id) < ($4, $5::int8, $6::text))"
            " order by f.at desc, f.event_id desc, f.user_id desc limit $7",
            *(*which.arguments, *after, most or PAGE, most is None),
        )
        for row in rows:
            yield await _shown(reads, row)
        if most is not None or len(rows) < PAGE:
            return
        after = rows[-1]["at"], rows[-1]["event_id"], rows[-1]["user_id"]


async def _shown(reads: Reads, row: Row) -> dict[str, Any]:
    payload = await _opened(reads, row["payload"], None)
    result = object_in(await _opened(reads, row["result"], Place(row["event_id"], RESULT)))
    return {
        "event": row["event_id"],
        "key": row["item_key"],
        "kind": row["kind"],
        "version": row["version"],
        "at": row["at"],
        "rating": "good" if row["rating"] == GOOD else "bad",
        "reason": await _opened(reads, row["reason"], Place(row["click"], WHAT)),
        "question": inner_event(payload).get("text"),
        "answer": result.get("answer"),
        "model": row["model"] or result.get("model"),
        "usage": result.get("usage"),
        "workspace": row["owner_id"],
        "person": row["user_id"],
        "channel": row["channel"],
    }


async def _opened(reads: Reads, stored: str | None, place: Place | None) -> Any:  # noqa: ANN401 - any JSON
    try:
        return None if stored is None else await reads.sealing.opened(json.loads(stored), place)
    except SealedError:
        return None
