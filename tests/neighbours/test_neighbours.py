"""On a database as others have it, an event goes its whole way, and every check says what is so."""

import json
import time
from datetime import timedelta

import pytest
from pydantic import SecretStr

from surelane.queue import Queue
from surelane_migrations import database as runner_database
from surelane_migrations.files import PACKAGED, discover
from surelane_migrations.runner import Migration
from surelane_migrations.status import expected_schema
from surelane_migrations.status import verify as verify_schema
from surelane_operator.doctor import Level, examine_at
from surelane_operator.doctor import verify as verify_queue
from surelane_operator.doctor.server import connected
from surelane_service.engine import Engine
from surelane_service.intake import Intake
from surelane_service.pool import opened_pool
from tests.databases import Server
from tests.neighbours.conftest import Neighbour, neighbour
from tests.neighbours.profiles import PROFILES, Profile
from tests.sql import queue_steps as do
from tests.system.test_cli import Command

pytestmark = pytest.mark.neighbours
TEXT = "Grüße, \\ U7X\n"
MENTION = {
    "type": "app_mention",
    "user": "U7X",
    "channel": "C1",
    "text": TEXT,
    "event_ts": f"{time.time():.6f}",
}
EVENT = json.dumps({"type": "event_callback", "team_id": "T1", "event_id": "Ev1", "event": MENTION})
WITHIN = timedelta(seconds=5)
OLD = "insert into agent.event (event_ts, kind, event) values (now() - interval '200 days', 'job', '{}') returning id"


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
async def test_an_event_goes_its_whole_way(logical_server: Server, profile: Profile) -> None:
    async with neighbour(logical_server, profile) as made:
        await install(made)
        await made.administer(profile.after)
        await events_are_stored_once_run_and_kept(made)
        await old_history_goes(made)
        await a_person_is_erased(made)
        await checks_say_what_is_so(made, profile)
        if not profile.finds or profile.finds == ("timeline",):
            await install(made, again=True)


async def install(made: Neighbour, *, again: bool = False) -> None:
    """Apply the migrations; the schema is what they make, also over other settings."""
    await Migration(discover(PACKAGED), again=again).apply(made.uri())
    async with runner_database.connected(made.uri()) as owner:
        assert await verify_schema(owner, discover(PACKAGED), expected_schema()) == []


async def events_are_stored_once_run_and_kept(made: Neighbour) -> None:
    ingest, worker = SecretStr(made.uri("surelane_ingest")), SecretStr(made.uri("surelane_worker"))
    async with (
        opened_pool(ingest, service="test", max_size=1, statement_timeout=WITHIN) as storing,
        opened_pool(worker, service="test", max_size=1, statement_timeout=WITHIN, worker="w1") as working,
    ):
        intake, engine = Intake(storing), Engine(working)
        (first,) = await intake.insert_events([EVENT])
        (again,) = await intake.insert_events([EVENT])
        assert (first.id, first.duplicate, again.duplicate) == (again.id, False, True)
        job = await Queue(working).enqueue("job", {"user": "U7X"}, item_key="a:1")
        await engine.announce_worker("w1", ["job", "slack.app_mention"], "1", None, 3)
        async with made.claiming() as session:
            claimed = await do.claim(session, "job", "slack.app_mention")
            assert {row["id"] for row in claimed} == {first.id, job}
            await do.settled(do.complete, session, *map(do.pair, claimed))
        (after,) = await intake.insert_events([EVENT])
        assert (after.id, after.duplicate) == (first.id, True), "found in history, too"


async def old_history_goes(made: Neighbour) -> None:
    async with made.opened() as owner:
        identity = await owner.fetchval(OLD)
        await owner.execute("select agent.delete_event($1)", identity)
    async with made.claiming() as session:
        removed, _ = await do.drop_history(session)
    assert removed == 1


async def a_person_is_erased(made: Neighbour) -> None:
    done = await Command(made.uri("surelane_operator"))("erase", "--user", "U7X", "--yes")
    assert done.code == 0, done
    async with made.opened() as owner:
        assert await owner.fetchval("select array_agg(id) from agent.job where payload::text ~ 'U7X'") is None


async def checks_say_what_is_so(made: Neighbour, profile: Profile) -> None:
    """Nothing is said to be well that is not, and nothing else is said to be wrong."""
    operator = made.uri("surelane_operator")
    found = {
        each.check: each
        for each in await examine_at(operator)
        if each.level in (Level.PROBLEM, Level.UNKNOWN)
    }
    assert set(found) == set(profile.finds), found
    async with connected(operator) as session:
        wrong = {each.check for each in await verify_queue(session) if each.level is Level.PROBLEM}
    # Row security is also a difference from the release's objects.
    assert wrong == ({"row security", "objects"} if "row security" in profile.finds else set())
