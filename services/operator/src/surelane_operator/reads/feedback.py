"""What people think of agents' answers: counts, and ratings with what was asked and answered."""

import json
from collections.abc import AsyncIterator
from typing import Any

from surelane.calls import Row
from surelane.codec import REASON, RESULT, Location
from surelane.slack import object_in, text_in
from surelane.text import typed_in
from surelane_operator.audit import some
from surelane_operator.reads.events import Reads, parsed

PAGE = 100
Shown = dict[str, Any]
_WHICH = """f.event_id > 0 and ($1::text is null or f.owner_id = $1) and ($2::timestamptz is null or f.at >= $2)
and ($3::text is null or f.rating = case $3 when 'good' then 1 else -1 end)"""
_COUNT = f"""select kind, nullif(model, '') as model, count(*) filter (where rating > 0) as good
, count(*) filter (where rating < 0) as bad from agent.feedback as f where {_WHICH}
group by kind, model order by count(*) desc, kind, model"""  # noqa: S608 - a constant
_LIST = f"""select f.event_id as event, null as key, f.kind, f.version, f.at
, case f.rating when 1 then 'good' else 'bad' end as rating, f.reason
, nullif(f.model, '') as model, f.owner_id as workspace, f.user_id as person, f.channel, f.click
from agent.feedback as f
where {_WHICH} and ($4::timestamptz is null or (f.at, f.event_id, f.user_id) < ($4, $5::int8, $6::text))
order by f.at desc, f.event_id desc, f.user_id desc limit {PAGE}"""  # noqa: S608 - a constant
_TURN = """select item_key as key, payload, result from agent.job where id = $1
order by finished_at desc nulls first limit 1"""


async def count_feedback(reads: Reads, *which: object) -> list[Row]:
    """Count good and bad ratings by ``kind`` and ``model``. ``which``: workspace, since when, rating; or ``None``."""
    return await reads.calls.fetch(_COUNT, *which)


async def list_feedback(reads: Reads, *which: object, pages: int | None = 1) -> AsyncIterator[Shown]:
    """Yield ratings, newest first, as :func:`count_feedback` takes them. Keep that somebody looks at each page.

    ``pages``: how many; ``None``: all. What cannot be decrypted is ``None``. Each turn is read by itself: a hundred may
    have some megabytes each.
    """
    place: list[Any] = [None] * 3
    while pages != 0 and (rows := await reads.calls.fetch(_LIST, *which, *place)):
        async with reads.audit.keeping("look at feedback", detail=some([row["event"] for row in rows])):
            pass
        for row in rows:
            yield await _shown(reads, row)
        place = [rows[-1][name] for name in ("at", "event", "person")]
        pages = None if pages is None else pages - 1


async def _shown(reads: Reads, row: Row) -> Shown:
    rating, where = parsed(row), Location(row["event"], RESULT)
    turn = await reads.calls.fetchrow(_TURN, row["event"])
    texts = {"key": None, "payload": None, "result": None} if turn is None else parsed(turn)
    rating["key"], payload = texts["key"], await reads.codec.show(texts["payload"])
    result = object_in(await reads.codec.show(texts["result"], where))
    reason = await reads.codec.show(
        json.loads(row["reason"] or "null"), Location(rating.pop("click"), REASON)
    )
    question = typed_in(rating["kind"], object_in(payload)) or None
    given = {name: result.get(name) for name in ("answer", "usage")}
    return rating | given | {"reason": text_in(reason), "question": question}
