"""Scripts read kinds, workers, workflows, questions, schedules and the doctor's findings from ``/v1``."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import asyncpg
import pytest

from surelane import Queue
from surelane.calls import Connection, Pool
from surelane.jobs import Continuation, Job
from surelane_operator.api.api import OperatorApi
from surelane_operator.changes import Changes
from surelane_operator.doctor import Examinations, Finding, Level
from surelane_service.cron import Cron
from surelane_service.engine import Engine
from tests.browser.console_page import console_at


class Doctor:
    """Counts the examinations, and lets the test say when one ends."""

    def __init__(self) -> None:
        self.looks = 0
        self.began = asyncio.Event()
        self.ends = asyncio.Event()

    async def examine(self, _: str) -> list[Finding]:
        self.looks += 1
        self.began.set()
        await self.ends.wait()
        return [Finding("workers", Level.PROBLEM, "no worker is alive", "start one")]


@pytest.fixture(scope="module")
def doctor() -> Doctor:
    return Doctor()


@pytest.fixture(scope="module")
async def pool(shared_database: str) -> AsyncIterator[Pool]:
    async with asyncpg.create_pool(shared_database, min_size=0, max_size=3) as connected:
        yield connected


@pytest.fixture(scope="module")
async def url(pool: Pool, doctor: Doctor) -> AsyncIterator[str]:
    async with console_at(
        pool, routes=tuple(OperatorApi(Changes(pool), Examinations("", doctor.examine)).routes())
    ) as served:
        yield served


@pytest.fixture
async def connection(shared_database: str) -> AsyncIterator[Connection]:
    connected = await asyncpg.connect(shared_database)
    await connected.execute("truncate agent.event, agent.event_hist, agent.kind, agent.cron, agent.worker")
    yield connected
    await connected.close()


async def get(url: str, path: str) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.get(url + path) as response:
        return response.status, await response.json()


async def test_kinds_come_with_their_workers_and_in_pages(url: str, connection: Connection) -> None:
    await Engine(connection).announce_worker("w1", ["mail"], "1.0.0")
    await Queue(connection).enqueue("note")
    status, page = await get(url, "/v1/kinds?limit=1")
    assert (status, page["next"]) == (200, "mail")
    assert (page["kinds"][0]["kind"], page["kinds"][0]["workers"]) == ("mail", ["w1"])
    _, page = await get(url, "/v1/kinds?limit=1&after=mail")
    assert [kind["kind"] for kind in page["kinds"]] == ["note"]
    assert (await get(url, "/v1/kinds?kind=mail"))[0] == 400


async def test_workers_come_with_what_they_run(url: str, connection: Connection) -> None:
    await Engine(connection).announce_worker("w1", ["mail"], "1.0.0")
    identity = await Queue(connection).enqueue("mail")
    await connection.execute("select agent.claim_events('{mail}', 1, 3, '10 minutes', 'w1')")
    status, found = await get(url, "/v1/workers")
    assert (status, found["workers"][0]["running"]) == (200, 1)
    assert [each["id"] for each in found["workers"][0]["runs"]] == [identity]


async def test_a_workflow_is_read_from_any_of_its_events(url: str, connection: Connection) -> None:
    joining = await Queue(connection).fan_out([Job("part"), Job("part")], Continuation("join"))
    _, page = await get(url, "/v1/workflows")
    assert [each["id"] for each in page["workflows"]] == [joining]
    child = await connection.fetchval("select min(id) from agent.event where kind = 'part'")
    status, found = await get(url, f"/v1/workflows/{child}")
    assert (status, [each["id"] for each in found["path"]], found["tree"]["id"]) == (200, [joining], child)
    assert len((await get(url, f"/v1/workflows/{joining}"))[1]["tree"]["below"]) == 2
    assert (await get(url, "/v1/workflows/999999999"))[0] == 404


async def test_a_schedule_comes_with_its_next_firings(url: str, connection: Connection) -> None:
    await Changes(connection).set_cron("n", Cron("0 3 * * *"), kind="k", payload={"a": 1})
    _, found = await get(url, "/v1/cron")
    (schedule,) = found["schedules"]
    assert (len(schedule["following"]), schedule["last_run"], schedule["payload"]) == (5, None, {"a": 1})


async def test_no_question_is_open(url: str, connection: Connection) -> None:
    await Queue(connection).enqueue("k")
    assert await get(url, "/v1/questions") == (200, {"questions": [], "next": None})


async def test_one_examination_serves_all_who_ask(url: str, doctor: Doctor) -> None:
    asking = [asyncio.create_task(get(url, "/v1/doctor")) for _ in range(5)]
    await doctor.began.wait()
    doctor.ends.set()
    answers = [await task for task in asking]
    assert answers[0][1]["findings"][0]["found"] == "no worker is alive"
    assert all(answer == answers[0] for answer in answers)
    assert await get(url, "/v1/doctor") == answers[0]
    assert doctor.looks == 1
