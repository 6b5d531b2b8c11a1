"""The ingest service's client of the queue: store requests and take answers. Each method is one SQL call."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from surelane.calls import Calls, Connection, Pool
from surelane.events import Inserted
from surelane_service.figures import Measured


@dataclass(frozen=True, slots=True)
class Dropped:
    """A delivery that became no event: why not, and how it may be asked for. What it does not name is ``None``."""

    key: str | None
    kind: str
    reason: str
    workspace: str | None = None
    channel: str | None = None
    ts: str | None = None


@dataclass(frozen=True, slots=True)
class Sockets:
    """The app's connections of Socket Mode: those of our processes, and ``others`` when Slack last told one of them.

    ``told_ago``: since then; ``None``, as ``others``: Slack has told none yet. ``unsure``: there may be others; ask
    again in a few seconds.
    """

    ours: int
    others: int | None
    unsure: bool
    told_ago: timedelta | None


class Intake(Measured):
    """The functions of role ``agent_ingest``. Methods raise errors of :mod:`surelane.errors` alone."""

    def __init__(self, database: Pool | Connection) -> None:
        self.calls = Calls(database, cuts=True)

    async def insert_events(
        self,
        events: Sequence[str],
        *,
        traceparents: Sequence[str | None] | None = None,
        item_keys: Sequence[str | None] | None = None,
    ) -> list[Inserted]:
        """Store a batch of JSON objects in one transaction; return the answers in the order given.

        Args:
            traceparents: the span that stores each, kept on its row.
            item_keys: natural keys that override the event's own, where not ``None``.

        Raises:
            Conflict, InvalidInput: another transaction blocks one, or PostgreSQL cannot hold one: insert each alone.
        """
        statement = "select id, duplicate from agent.insert_events($1, $2, $3) order by ordinal"
        rows = await self.calls.fetch(statement, events, traceparents, item_keys)
        return [Inserted(row["id"], row["duplicate"]) for row in rows]

    async def takes_events(self) -> None:
        """Store an event and take it back. The error says why the database takes none."""
        await self.calls.call("takes_events")

    async def insert_requests(
        self,
        events: Sequence[str],
        *,
        traceparents: Sequence[str | None],
        item_keys: Sequence[str | None],
        waits: Sequence[timedelta | None],
        channel: str,
    ) -> list[tuple[Inserted, bool]]:
        """Store a batch as :meth:`insert_events` does. Return with each answer whether somebody can still answer it.

        Args:
            waits: for how long each event's request waits for an answer; ``None``: not at all.
            channel: where this process listens to answers.
        """
        statement = (
            "select id, duplicate, waits from agent.insert_requests($1, $2, $3, $4, $5) order by ordinal"
        )
        rows = await self.calls.fetch(statement, events, traceparents, item_keys, waits, channel)
        return [(Inserted(row["id"], row["duplicate"]), row["waits"]) for row in rows]

    async def take_answers(
        self, channel: str, requests: Sequence[int], ending: Sequence[int]
    ) -> dict[int, str | None]:
        """Take the answers, JSON text, to this process's requests; ``None`` for those of ``ending`` without one.

        From then on, an answer to those of ``ending`` is refused. Events name the requests.
        """
        rows = await self.calls.rows("take_answers", channel, requests, ending)
        return {row["event_id"]: row["answer"] for row in rows}

    async def fire_trigger(
        self, name: str, webhook_id: str, payload: str, traceparent: str | None = None
    ) -> Inserted:
        """Store a webhook's call (JSON text) as a ``trigger-fire`` event; a repeated delivery returns the first."""
        (row,) = await self.calls.rows("fire_trigger", name, webhook_id, payload, traceparent)
        return Inserted(row["id"], row["duplicate"])

    async def answer_dispatch(self, identity: int, agents: Sequence[str], result: str) -> str:
        """End an event that one of these agents was asked to do: ``done``, ``running`` (try again) or ``unknown``."""
        return await self.calls.call("answer_dispatch", identity, agents, result)

    async def note_dropped(self, deliveries: Sequence[tuple[float, Dropped]]) -> None:
        """Keep that deliveries became no event, each with the seconds since it came."""
        rows = [
            [round(age, 1), each.key, each.kind, each.reason, each.workspace, each.channel, each.ts]
            for age, each in deliveries
        ]
        await self.calls.call("note_dropped", json.dumps(rows))

    async def announce_sockets(
        self, name: str, app_id: str, sockets: int | None, *, of_the_app: int | None = None
    ) -> Sockets:
        """Say how many connections this process has or opens; ``None``: it ends. ``of_the_app``: as Slack just said."""
        (row,) = await self.calls.rows("announce_sockets", name, app_id, sockets, of_the_app)
        return Sockets(row["ours"], row["others"], row["unsure"], row["told_ago"])
