"""Random handlers that use everything do what an uninterrupted run does, although workers are killed everywhere."""

import asyncio
import json
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from surelane.calls import Connection
from surelane_dev.simulator.workspace.model import Message
from tests.databases import as_role
from tests.processes import Service
from tests.system.programs import DEATHS, OPERATIONS, SHARE, URI
from tests.system.slack_stand import Person, Stand, slack_stand
from tests.system.worker import worker

WITHIN = 200.0
"""Seconds that a program may take, with all its deaths."""
EFFECTS = """
create table public.effect (event_id int8, name text, at timestamptz default clock_timestamp());
grant all on public.effect to surelane_producer
"""
EVENTS = """
with recursive below (id) as (
    select $1::int8
    union
    select found.id from below
    cross join lateral (
        select (c ->> 'id')::int8 as id from agent.event_hist as h cross join jsonb_array_elements(h.changes) as c
        where h.id = below.id and c ->> 'action' = 'continued as'
        union all select h.id from agent.event_hist as h where h.continuation_id = below.id
    ) as found
)
select h.*, coalesce(h.event ->> 'name', 'half ' || coalesce(h.event ->> 'half', '0')) as role
from below join agent.event_hist as h using (id)
"""
"""An event that ended, its successor, and the children of both. The role of each is alike in all runs."""
WAITS = (
    "select event_id, name from agent.step where sort = 'wait' and finished_at is null and name like 'go %'"
)
TAGS = """
select event_id, name, result from agent.step
where event_id = any($1) and (nth = -1 or nth = 0 and name = 'progress')
"""
STORED_BEFORE = """
select s.name from public.effect as e join agent.step as s using (event_id, name)
where e.at > s.finished_at
"""
"""Effects of steps that were stored already."""
NOT_FINAL = "select name from agent.step where sort = 'step' and nth > 0 and finished_at is null"
"""Steps that have failed and would be tried again, although the handler went on."""
BOOKED = "select name, count(*) from public.effect where name like 'booked %' group by event_id, name"


@pytest.fixture
async def connection(database: str) -> AsyncIterator[Connection]:
    connected = await asyncpg.connect(database)
    await connected.execute(EFFECTS)
    yield connected
    await connected.close()


@dataclass(frozen=True)
class Done:
    """What a program did. Compare all of it, but for the number of deaths."""

    deaths: int
    result: Any
    outcomes: list[tuple[str, str, str | None]]
    replies: list[str]
    tags: list[tuple[str, str, str]]
    """The tags and the last progress of each event."""
    effects: Counter[tuple[str, str]]
    """How often, by an event's role and the effect's name."""


class People:
    """Who sends what a program waits for, and clicks what it asks: again, if workers died at the click."""

    def __init__(self, slack: Stand, connection: Connection, asked: Message) -> None:
        self._slack, self._connection, self._asked = slack, connection, asked
        self._ada = Person(slack, "ada")
        self._sent: set[tuple[int, str]] = set()
        self._clicks: dict[str, int] = {}

    @asynccontextmanager
    async def helping(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._help())
        try:
            yield
            assert not task.done(), task.exception()
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _help(self) -> None:
        while True:
            for event, name in await self._connection.fetch(WAITS):
                if (event, name) not in self._sent:
                    self._sent.add((event, name))
                    send = "select agent.signal_event($1, $2, to_json($2::text))"
                    await self._connection.execute(send, event, name)
            for message in messages(self._slack, self._asked):
                if (
                    message.blocks
                    and message.blocks[-1]["type"] == "actions"
                    and await self._may_click(message)
                ):
                    self._clicks[message.ts] = await self._ada.press(message)
            await asyncio.sleep(0.01)

    async def _may_click(self, message: Message) -> bool:
        live = "select exists (select from agent.event where id = $1)"
        click = self._clicks.get(message.ts)
        return click is None or not await self._connection.fetchval(live, click)


def messages(slack: Stand, asked: Message) -> list[Message]:
    said = slack.simulator.workspace.channels[asked.channel].replies(asked.ts)
    return [message for message in said if message.visible_to is None and message is not asked]


async def events_of(connection: Connection, identity: int) -> list[asyncpg.Record]:
    """Return the events of a program that has ended; until then none."""
    events: list[asyncpg.Record] = await connection.fetch(EVENTS, identity)
    halves = {row["role"]: row["outcome"] for row in events if row["kind"] == "slack.app_mention"}
    return events if "half 1" in halves or "failed" in halves.values() else []


async def until_ended(connection: Connection, identity: int, running: Service) -> None:
    while not await events_of(connection, identity):
        assert running.child.exit_code is None, running.output
        await asyncio.sleep(0.02)


async def play(database: str, slack: Stand, seed: int, deaths: Path | None = None, share: float = 1) -> Done:
    """Run a program, in as many workers as are killed: at a share of the boundaries, or without ``deaths`` at none."""
    settings = {
        "SURELANE_HANDLERS": "tests.system.programs:handlers",
        "SURELANE_WORKER_NAME": "mortal",
        "SLACK_API_URL": slack.api,
        "SLACK_BOT_TOKEN": "xoxb-any",
        URI: as_role(database, "surelane_producer"),
        **({} if deaths is None else {DEATHS: str(deaths), SHARE: str(share)}),
    }
    died = 0
    async with AsyncExitStack() as stack:
        connection, other = [await asyncpg.connect(database) for _ in range(2)]
        stack.push_async_callback(connection.close)
        stack.push_async_callback(other.close)
        identity, asked = await slack.mention(f"program {seed}")
        await stack.enter_async_context(People(slack, other, asked).helping())
        await stack.enter_async_context(asyncio.timeout(WITHIN))
        while not (events := await events_of(connection, identity)):
            async with worker(database, ready="", **settings) as running:
                if deaths is None:
                    await until_ended(connection, identity, running)
                    continue
                await running.child.wait()
                assert running.child.exit_code == -signal.SIGKILL, running.output
                died += 1
        said = sorted(message.text for message in messages(slack, asked))
        return await told(connection, events, said, died)


async def told(connection: Connection, events: list[asyncpg.Record], said: list[str], died: int) -> Done:
    roles = {row["id"]: row["role"] for row in events}
    (last,) = [row for row in events if row["role"] == "half 1"]  # or else it failed
    effects = await connection.fetch(
        "select event_id, name from public.effect where event_id = any($1)", [*roles]
    )
    tags = await connection.fetch(TAGS, [*roles])
    return Done(
        died,
        json.loads(last["result"] or "null"),
        sorted((row["role"], row["outcome"], row["reason"]) for row in events),
        said,
        sorted((roles[row["event_id"]], row["name"], row["result"]) for row in tags),
        Counter((roles[row["event_id"]], row["name"]) for row in effects),
    )


@pytest.mark.parametrize(
    ("seed", "share"),
    [(1, 0.25), *(pytest.param(seed, 1, marks=[pytest.mark.chaos]) for seed in range(2, 4))],
)
async def test_random_handler_does_the_same_although_it_is_killed_everywhere(
    database: str, connection: Connection, tmp_path: Path, seed: int, share: float
) -> None:
    """What is stored is done once, and what commits with a step exactly once. Other things happen at least once."""
    async with slack_stand(connection) as slack:
        whole = await play(database, slack, seed)
        killed = await play(database, slack, seed, tmp_path / "deaths", share)
    boundaries = (tmp_path / "deaths").read_text().splitlines()
    assert killed.deaths == len(set(boundaries)) > 4 * share * len(OPERATIONS)
    assert killed.result == whole.result
    assert killed.outcomes == whole.outcomes
    assert killed.replies == whole.replies
    assert killed.tags == whole.tags
    assert killed.effects.keys() == whole.effects.keys()
    assert await connection.fetch(STORED_BEFORE) == []
    assert await connection.fetch(NOT_FINAL) == []
    assert {count for _, count in await connection.fetch(BOOKED)} == {1}
