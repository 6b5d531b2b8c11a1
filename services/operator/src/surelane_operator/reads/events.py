"""What an operator may look at: events, why each waits, threads, counts, workers, limits."""

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Any

from surelane.calls import Calls, Connection, Pool, Row
from surelane.codec import (
    ERROR,
    PLAIN,
    PROGRESS,
    RESULT,
    SAID,
    SEALED,
    Codec,
    Location,
    SealedError,
    at_step,
    at_tag,
    is_sealed,
)
from surelane.errors import NotMeasured
from surelane.json_text import read_json
from surelane_operator.audit import Audit, some
from surelane_operator.reads.filters import (
    ENDED,
    LIVE,
    STATUSES,
    Cursor,
    Filter,
    MessagePlace,
    keyset,
    natural_key,
    read_message,
)
from surelane_operator.reads.trends import Trends
from surelane_service.common.durations import rate_text
from surelane_service.figures import Figures, Measured
from surelane_service.history import LISTED

LATEST = "jsonb_path_query_array(errors, '$[last]') as errors"
"""The column with the record of the latest error alone."""

LONGEST_LISTED = 1000
"""Characters of an error's message in a list."""

_TEXTS = ("message", "traceback")
"""The fields of an error's record that may quote what people wrote."""

LOOKS_AT = 1000
"""Events that one statement narrows down at most, so that a rare match costs no more than a common one."""


def words_of(text: str) -> list[str]:
    """Return what to search for: the words; of a link to a message in Slack the channel and the message's time."""
    words: list[str] = []
    for word in text.split():
        message = read_message(word) if "://" in word else None
        words += (message.channel, message.ts) if message else (word,)
    return words


def parsed(row: Row) -> dict[str, Any]:
    """Return a row as a dictionary, with its JSON parsed."""
    parsed = {"payload", "errors", "result", "changes"}
    event = {
        name: read_json(value) if name in parsed and isinstance(value, str) else value
        for name, value in row.items()
    }
    # What somebody wrote by hand may have another shape: that must not hide the event.
    shapes: dict[str, type] = {"errors": dict, "changes": dict, "claimed": datetime}
    for name in event.keys() & shapes:
        given = event[name] if isinstance(event[name], list) else []
        event[name] = [each for each in given if isinstance(each, shapes[name])]
    return event


@dataclass(frozen=True, slots=True)
class Found:
    """A page of events, the cursor of the next one, and how many events were looked at."""

    events: list[dict[str, Any]]
    next: Cursor | None
    looked: int


class Reads(Measured):
    """The operator's reads, on connections of the role ``agent_operator``."""

    def __init__(self, database: Pool | Connection, codec: Codec = PLAIN) -> None:
        """Use a connection or a pool. ``codec`` opens and seals what people wrote."""
        self.calls = Calls(database)
        self.codec = codec
        self.audit = Audit(database)
        """What was done, by whom."""
        self.trends = Trends(self.calls)

    async def measured(self) -> Figures | None:
        """Return the queue's figures; ``None``: they are being measured for the first time."""
        with suppress(NotMeasured):
            return await self.figures()
        return None

    async def list_events(
        self, which: Filter, limit: int = 20, after: Cursor | None = None, *, texts: bool = False
    ) -> list[dict[str, Any]]:
        """List a page of events, newest first: live ones, then ended ones, without what may be large.

        The field ``error`` is the type of the latest error. With ``texts`` it is its message, and the look is kept.
        """
        columns = f"{LISTED}, {LATEST}" if texts else LISTED
        rows = await self.calls.fetch(
            f"select {columns} from agent.list_jobs($1, $2, $3, $4, $5, $6, $7, $8, $9)",  # noqa: S608 - constants
            *(*which.indexed, *keyset(after), limit, await self._tags(which)),
        )
        events = [parsed(row) for row in rows]
        if texts:
            for event in events:
                latest = await self._errors(event.pop("errors"), Location(event["id"], ERROR), texts=True)
                said = (latest[0].get("message") or latest[0].get("type")) if latest else None
                event["error"] = None if said is None else str(said)[:LONGEST_LISTED]
            if told := [event["id"] for event in events if event["error"]]:
                async with self.audit.keeping("look at errors", detail=some(told)):
                    pass
        return events

    async def find_events(self, which: Filter, limit: int, after: Cursor | None = None) -> Found:
        """Return a page of the events that match. Where a filter narrows, a page may be short and not the last."""
        most = LOOKS_AT if which.narrows else limit
        rows = await self.calls.fetch(
            f"select nth, matches, {LISTED} from (select m.nth, m.matches, (m.job).* from agent.narrow_jobs("  # noqa: S608 - a constant
            "$1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14) as m) as found order by nth",
            *(*which.indexed, *keyset(after), most, *which.narrowing, await self._tags(which)),
        )
        matching = [row for row in rows if row["matches"]][:limit]
        is_cut = len(matching) == limit
        # The last row is the last event that was looked at.
        last = matching[-1] if is_cut else rows[-1] if rows else None
        looked = last["nth"] if last else 0
        following = Cursor(last["id"], last["finished_at"]) if last and (is_cut or looked == most) else None
        return Found([parsed(row) for row in matching], following, looked)

    async def search(self, text: str, which: Filter, limit: int = 20) -> list[dict[str, Any]]:
        """List events in which people saw all words of a text, newest first, among the newest 1,000.

        A link to a message in Slack stands for its channel and time. Of the filter kinds, ``since`` and tags count.
        """
        rows = await self.calls.fetch(
            f"select {LISTED} from agent.search_jobs($1, $2, $3, $4, $5)",  # noqa: S608 - a constant
            *(words_of(text), which.kinds, which.since, limit, await self._tags(which)),
        )
        return [parsed(row) for row in rows]

    async def recent(self, which: Filter, since: datetime, limit: int) -> list[dict[str, Any]]:
        """List the newest live events, and those that ended at or after ``since``, up to ``limit`` of each."""
        wanted = which.statuses or STATUSES
        live, ended = [[status for status in states if status in wanted] for states in (LIVE, ENDED)]
        rows = await self.calls.fetch(
            f"select {LISTED} from agent.list_jobs($1, $3, $4, null, null, null, null, $6)"  # noqa: S608 - a constant
            f" union all select {LISTED} from agent.list_jobs($2, $3, $4, $5, null, null, null, $6)",
            *(live, ended, which.kinds, which.key, since, limit),
        )
        return [parsed(row) for row in rows]

    async def list_ids(self, ids: Sequence[int]) -> list[dict[str, Any]]:
        """List events by their ids, each once, newest first. Rows are those of :meth:`list_events`."""
        rows = await self.calls.fetch(
            f"select distinct on (id) {LISTED} from agent.job where id = any($1)"  # noqa: S608 - a constant
            " order by id desc, finished_at desc nulls first",
            list(ids),
        )
        return [parsed(row) for row in rows]

    async def find(self, key: str) -> list[int]:
        """Return the ids of the events with a natural key, or with an id as text; live ones come first."""
        return [row[0] for row in await self.calls.rows("find_events", natural_key(key))]

    async def look(self, identity: int) -> dict[str, Any] | None:
        """Return one event with what people wrote in it, and keep that somebody looked; ``None``: there is none."""
        if (found := await self.get(identity, texts=True)) is not None:
            async with self.audit.keeping("look at payload", f"event {identity}"):
                pass
        return found

    async def get(self, identity: int, *, texts: bool = False) -> dict[str, Any] | None:
        """Return one event: its live or else its latest row. Without ``texts`` it has no result and no errors' texts.

        ``claims`` is the number of claims; ``claimed`` has the moments of the last 100. ``steps`` are a durable
        handler's, with its sleeps, waits and signals. ``rerun_of`` and ``rerun_as`` are ids of other events.
        """
        row = await self.calls.fetchrow(
            # An array's lower bound is lost on the way to Python, so the number of claims comes beside it.
            "select *, coalesce(array_upper(claimed, 1), 0) as claims from agent.job where id = $1"
            " order by finished_at desc nulls first limit 1",
            identity,
        )
        if row is None:
            return None
        steps = read_json(await self.calls.call("list_steps", identity))
        event = parsed(row)
        rerun_of = [change["id"] for change in event["changes"] if change.get("action") == "replay of"]
        rerun_as = [change["id"] for change in event["changes"] if change.get("action") == "replayed as"]
        replies = await self.calls.rows("list_replies", identity, row["event_ts"])
        errors = await self._errors(event["errors"], Location(identity, ERROR), texts=texts)
        chain: Collection[int] = ()
        if texts and rerun_of:
            chain = await self.calls.call("rerun_chain", identity)
        kept = [step for step in steps if step["sort"] not in ("tag", "progress")]
        return event | {
            "payload": await self.codec.show(event["payload"]),
            "result": await self.codec.show(event["result"], Location(identity, RESULT)) if texts else None,
            "errors": errors,
            "error": errors[-1].get("message" if texts else "type") if errors else None,
            "steps": [await self._step(step, identity, chain, texts=texts) for step in kept],
            **await self._tags_and_progress(identity, steps),
            "replies": [dict(reply) for reply in replies],
            "rerun_of": rerun_of[0] if rerun_of else None,
            "rerun_as": rerun_as,
        }

    async def tags_and_progress(self, ids: Sequence[int]) -> dict[int, dict[str, Any]]:
        """Return the ``tags`` of events, and their ``progress``: what their handlers said last of it."""
        rows = await self.calls.fetch(
            "select id, agent.list_steps(id) as steps from unnest($1::int8[]) id", ids
        )
        return {row["id"]: await self._tags_and_progress(row["id"], read_json(row["steps"])) for row in rows}

    async def _tags_and_progress(self, identity: int, steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        of = {sort: [step for step in steps if step["sort"] == sort] for sort in ("progress", "tag")}
        told = [await self._text(step, at_step(identity, *PROGRESS)) for step in of["progress"]]
        tags = {step["name"]: await self._text(step, at_tag(identity, step["name"])) for step in of["tag"]}
        return {"tags": dict(sorted(tags.items())), "progress": " ".join(told) or None}

    async def read_said(self, identity: int, after: int) -> tuple[bool, list[dict[str, Any]]]:
        """Return whether an event has ended, and up to 100 batches of what its agent said after one's number."""
        (row,) = await self.calls.rows("read_said", identity, after)
        batches = read_json(row["said"])
        for batch in batches:
            batch["begins"] = batch.pop("from") == 0
            batch["text"] = await self._text(batch, Location(identity, SAID))
            del batch["value"]
        return row["ended"], batches

    async def _errors(
        self, errors: Sequence[Mapping[str, Any]], at: Location, *, texts: bool
    ) -> list[dict[str, Any]]:
        if texts:
            return [await self.codec.show(error, at) for error in errors]
        return [{name: value for name, value in error.items() if name not in _TEXTS} for error in errors]

    async def _text(self, step: Mapping[str, Any], at: Location) -> str:
        """Return a text for people, or why it cannot be decrypted."""
        shown = await self.codec.show(step["value"], at)
        return str(shown[SEALED] if is_sealed(shown) else shown)

    async def _step(
        self, step: dict[str, Any], identity: int, chain: Collection[int], *, texts: bool
    ) -> dict[str, Any]:
        if not step.get("errors"):
            return step
        at = replace(at_step(identity, step["name"], step["nth"], ERROR), rerun_of=chain)
        return {**step, "errors": await self._errors(step["errors"], at, texts=texts)}

    async def group_events(self, key: str, limit: int) -> list[dict[str, Any]]:
        """Return the events of a group, in the order in which they happened."""
        rows = await self.calls.fetch(f"select {LISTED} from agent.group_jobs($1, $2)", key, limit)  # noqa: S608 - a constant
        return sorted((parsed(row) for row in rows), key=lambda event: (event["event_ts"], event["id"]))

    async def message_events(self, message: MessagePlace, teams: Sequence[str]) -> list[int]:
        """Return the ids of a message's events, from the first of the workspaces that has one."""
        tried = [*([message.team] if message.team else teams), None]  # last as in a channel that is shared
        place = message.channel, Decimal(message.ts), message.thread
        rows = await self.calls.rows("message_jobs", tried, *place)
        return [row[0] for row in rows]

    async def longest_waiting(self, limit: int) -> list[Mapping[str, Any]]:
        """Return the events that have waited the longest, with the reason why."""
        return [dict(row) for row in await self.calls.rows("longest_waiting", limit)]

    async def recent_figures(self, minutes: int) -> list[Mapping[str, Any]]:
        """Return what ended in the last minutes, by kind and outcome: its rate, and its latencies in seconds."""
        return [dict(row) for row in await self.calls.rows("recent_figures", minutes, 300)]

    async def why(self, identity: int) -> tuple[str, str] | None:
        """Return why an event is not running, as a word and a sentence; ``None`` when there is no such event."""
        row = await self.calls.row("why_waiting", identity)
        return None if row is None or row["reason"] is None else (row["reason"], row["detail"])

    async def kinds(self) -> list[str]:
        """Return the kinds of events that were ever seen."""
        return [row["kind"] for row in await self.calls.fetch("select kind from agent.kind order by kind")]

    async def count(self, which: Filter, most: int) -> int:
        """Count the events that match, up to ``most``."""
        return await self.calls.call("count_jobs", *which.indexed, most, await self._tags(which))

    async def _tags(self, which: Filter) -> str | None:
        """Return the tags of a filter as ``agent.list_jobs`` takes them: each with the values by which it is found."""
        if not which.tags:
            return None
        sought = {name: list(values) for name, values in which.tags.items()}
        with suppress(SealedError):  # without the keys, only what is stored in the clear is found
            for name, values in which.tags.items():
                sought[name] += [await self.codec.tag_key(name, value) for value in values]
        return json.dumps(sought)

    async def stats(self) -> list[dict[str, Any]]:
        """Count events by kind and state, with the time since when the oldest pending one is visible."""
        return [dict(row) for row in await self.calls.rows("queue_stats")]

    async def workers(self) -> list[dict[str, Any]]:
        """List the workers with their state: see :class:`~surelane_operator.reads.queue.WorkerState`."""
        return [dict(row) for row in await self.calls.rows("list_workers")]

    async def list_limits(self) -> list[dict[str, Any]]:
        """List the kinds that have a limit, or whose limit an operator lifted."""
        return [_limit(row) for row in await self.calls.rows("list_limits")]

    async def clock(self) -> datetime:
        return await self.calls.call("clock")

    async def list_cron(self) -> list[dict[str, Any]]:
        """List the named schedules, their payloads decrypted."""
        rows = [parsed(row) for row in await self.calls.rows("read_cron")]
        return [row | {"payload": await self.codec.show(row["payload"])} for row in rows]


def _limit(row: Row) -> dict[str, Any]:
    """Return a limit with its rates as text."""
    limit = {name: value for name, value in row.items() if name not in ("grouped", "parks")}
    for prefix in ("", "declared_"):
        period = limit.pop(f"{prefix}period")
        if (count := limit[f"{prefix}rate"]) is not None:
            limit[f"{prefix}rate"] = rate_text(count, period)
    return limit
