"""The operator's client: find events, explain why one waits, requeue, cancel, pause, schedules, figures."""

import json
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import asyncpg

from surelane.calls import Connection, Pool
from surelane.encryption.data_keys import DataKeys
from surelane.encryption.sealing import Sealing
from surelane_operator.changes import Changes, Replay
from surelane_operator.filters import ENDED, LIVE, STATUSES, Cursor, Filter
from surelane_operator.rows import LISTED, parsed
from surelane_service.figures import Measured
from surelane_service.rates import rate_text

__all__ = ["LISTED", "Cursor", "Filter", "Operations", "Replay", "no_step", "parsed"]

_LINK = re.compile(r"https?://[^/]+/archives/([A-Z0-9]+)/p(\d+)(\d{6})")


def words_of(text: str) -> list[str]:
    """Return what to search for: the words; of a link to a message in Slack the channel and the message's time."""
    words: list[str] = []
    for word in text.split():
        link = _LINK.match(word)
        words += (link[1], f"{link[2]}.{link[3]}") if link else (word,)
    return words


def no_step(name: str | None, replay: Replay) -> str:
    """Say that an event has no such step, and which it has."""
    there = (
        f"its steps are: {', '.join(replay.steps)}"
        if replay.steps
        else "it has none; replay it without a step"
    )
    return f"the event has no stored step {name}; {there}"


class Operations(Changes, Measured):
    """The operator's calls, one SQL function each, on connections of the role ``agent_operator``."""

    def __init__(self, database: Pool | Connection, sealing: Sealing | None = None) -> None:
        """Use a connection or a pool.

        Args:
            database: the connection or pool.
            sealing: decrypts what is shown; by default nothing, as no keys are set.
        """
        super().__init__(
            database, Sealing(DataKeys(database, None), on=False) if sealing is None else sealing
        )

    async def list_jobs(
        self, which: Filter, limit: int = 20, after: Cursor | None = None
    ) -> list[dict[str, Any]]:
        """List a page of events, newest first: live ones, then ended ones.

        Rows have no payload, result, errors or changes, because these may be large. :meth:`get` has them.
        """
        rows = await self._database.fetch(
            f"select {LISTED} from agent.list_jobs($1, $2, $3, $4, $5, $6, $7, $8)",  # noqa: S608 - a constant
            which.statuses,
            which.kinds,
            which.key,
            which.since,
            which.until,
            after.finished_at if after else None,
            after.id if after else None,
            limit,
        )
        return [parsed(row) for row in rows]

    async def search(self, text: str, which: Filter, limit: int = 20) -> list[dict[str, Any]]:
        """List events in which people saw all words of a text, newest first. It looks at the newest 1,000 events.

        A link to a message in Slack stands for the message's channel and time. Rows are those of :meth:`list_jobs`. Of
        the filter only the kinds and ``since`` count.
        """
        rows = await self._database.fetch(
            f"select {LISTED} from agent.search_jobs($1, $2, $3, $4)",  # noqa: S608 - a constant
            words_of(text),
            which.kinds,
            which.since,
            limit,
        )
        return [parsed(row) for row in rows]

    async def recent(self, which: Filter, since: datetime, limit: int) -> list[dict[str, Any]]:
        """List the newest live events, and those that ended at or after ``since``: ``limit`` of each, at most.

        Rows are those of :meth:`list_jobs`, in one statement. The filter's times do not count.
        """
        wanted = which.statuses or STATUSES
        live, ended = [[status for status in states if status in wanted] for states in (LIVE, ENDED)]
        rows = await self._database.fetch(
            f"select {LISTED} from agent.list_jobs($1, $3, $4, null, null, null, null, $6)"  # noqa: S608 - a constant
            f" union all select {LISTED} from agent.list_jobs($2, $3, $4, $5, null, null, null, $6)",
            live,
            ended,
            which.kinds,
            which.key,
            since,
            limit,
        )
        return [parsed(row) for row in rows]

    async def list_ids(self, ids: Sequence[int]) -> list[dict[str, Any]]:
        """List events by their ids, each once, newest first. Rows are those of :meth:`list_jobs`."""
        rows = await self._database.fetch(
            f"select distinct on (id) {LISTED} from agent.job where id = any($1)"  # noqa: S608 - a constant
            " order by id desc, finished_at desc nulls first",
            list(ids),
        )
        return [parsed(row) for row in rows]

    async def find(self, key: str) -> list[int]:
        """Return the ids of the events with a natural key, or with an id as text; live ones come first."""
        return [row[0] for row in await self._database.fetch("select agent.find_events($1)", key)]

    async def get(self, identity: int) -> dict[str, Any] | None:
        """Return one event. An id may have ended more than once: the answer is the live or else the latest row.

        ``claims`` is the number of claims. ``claimed`` has the moments of the last 100 only. ``steps`` are those of a
        durable handler, with its sleeps, waits and signals. ``replies`` are its messages in Slack. ``replay_of`` is the
        id of the event that this one runs again, ``replayed_as`` the ids of those that run this one again.
        """
        row = await self._database.fetchrow(
            # An array's lower bound is lost on the way to Python, so the number of claims comes beside it.
            "select *, coalesce(array_upper(claimed, 1), 0) as claims from agent.job where id = $1"
            " order by finished_at desc nulls first limit 1",
            identity,
        )
        if row is None:
            return None
        steps = await self._database.fetchval("select agent.list_steps($1)", identity)
        job = parsed(row)
        replay_of = [change["id"] for change in job["changes"] if change.get("action") == "replay of"]
        replayed_as = [change["id"] for change in job["changes"] if change.get("action") == "replayed as"]
        replies = await self._database.fetch(
            "select * from agent.list_replies($1, $2)", identity, row["event_ts"]
        )
        return job | {
            "payload": await self.sealing.shown(job["payload"]),
            "result": await self.sealing.shown(job["result"]),
            "errors": await self.sealing.shown_errors(job["errors"]),
            "error": (await self.sealing.shown_errors(job["errors"][-1:]) or [{}])[0].get("message"),
            "steps": [await self._step(step) for step in json.loads(steps)],
            "replies": [dict(reply) for reply in replies],
            "replay_of": replay_of[0] if replay_of else None,
            "replayed_as": replayed_as,
        }

    async def _step(self, step: dict[str, Any]) -> dict[str, Any]:
        return (
            {**step, "errors": await self.sealing.shown_errors(step["errors"])}
            if step.get("errors")
            else step
        )

    async def why(self, identity: int) -> tuple[str, str] | None:
        """Return why an event is not running, as a word and a sentence; ``None`` when there is no such event."""
        row = await self._database.fetchrow("select * from agent.why_waiting($1)", identity)
        return None if row is None or row["reason"] is None else (row["reason"], row["detail"])

    async def kinds(self) -> list[str]:
        """Return the kinds of events that were ever seen."""
        return [
            row["kind"] for row in await self._database.fetch("select kind from agent.kind order by kind")
        ]

    async def count(self, which: Filter, most: int) -> int:
        """Count the events that match, up to ``most``."""
        counted: int = await self._database.fetchval(
            "select agent.count_jobs($1, $2, $3, $4, $5, $6)",
            which.statuses,
            which.kinds,
            which.key,
            which.since,
            which.until,
            most,
        )
        return counted

    async def stats(self) -> list[dict[str, Any]]:
        """Count events by kind and state, with the time since when the oldest pending one is visible."""
        return [dict(row) for row in await self._database.fetch("select * from agent.queue_stats()")]

    async def workers(self) -> list[dict[str, Any]]:
        """List the workers with their state: ``alive``, ``lost``, ``died`` or ``silent``.

        A worker without a session is lost, and may come back. One that did not died. One that announces itself no
        longer is silent.
        """
        return [dict(row) for row in await self._database.fetch("select * from agent.list_workers()")]

    async def list_limits(self) -> list[dict[str, Any]]:
        """List the kinds that have a limit, or whose limit an operator lifted."""
        return [_limit(row) for row in await self._database.fetch("select * from agent.list_limits()")]

    async def clock(self) -> datetime:
        """Return the database's time."""
        now: datetime = await self._database.fetchval("select agent.clock()")
        return now

    async def list_cron(self) -> list[dict[str, Any]]:
        """List the named schedules, their payloads decrypted."""
        rows = [parsed(row) for row in await self._database.fetch("select * from agent.read_cron()")]
        return [row | {"payload": await self.sealing.shown(row["payload"])} for row in rows]


def _limit(row: asyncpg.Record) -> dict[str, Any]:
    """Return a limit with its rates as text."""

    def rate(name: str, period: str) -> str | None:
        return None if row[name] is None else rate_text(row[name], row[period])

    return {
        "kind": row["kind"],
        "per": row["per"],
        "concurrency": row["concurrency"],
        "rate": rate("rate", "period"),
        "declared_concurrency": row["declared_concurrency"],
        "declared_rate": rate("declared_rate", "declared_period"),
        "set_at": row["set_at"],
        "set_by": row["set_by"],
    }
