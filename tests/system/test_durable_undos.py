"""Durable handlers: undos run in reverse order when an event fails for good, expires or is cancelled."""

import asyncio
import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from surelane.calls import Connection
from surelane.queue import Queue
from surelane_operator.changes import Changes
from surelane_operator.reads.timeline import story_of
from tests.processes import Service
from tests.system.test_durable import suspended
from tests.system.test_durable_failures import lives as lives_of
from tests.system.test_encryption import ON
from tests.system.worker import ended, enqueue, worker

HANDLERS = "tests.system.undo_handlers:handlers"
PARTS = ("flight", "hotel", "car")
lives = partial(lives_of, handlers=HANDLERS)


@pytest.fixture(scope="module")
async def running(shared_database: str) -> AsyncIterator[Service]:
    async with worker(shared_database, SURELANE_HANDLERS=HANDLERS, SURELANE_CONCURRENCY="8") as started:
        yield started


@pytest.fixture(scope="module")
async def connection(shared_database: str) -> AsyncIterator[Connection]:
    connected = await asyncpg.connect(shared_database)
    yield connected
    await connected.close()


@pytest.fixture
async def own(database: str) -> AsyncIterator[Connection]:
    connected = await asyncpg.connect(database)
    yield connected
    await connected.close()


def effects(log: Path) -> list[str]:
    """Return what was booked and undone, in order."""
    return [line for line in log.read_text().splitlines() if line.startswith(("booked", "undid", "paid"))]


def booked(*parts: str) -> list[str]:
    return [f"booked {part}" for part in parts]


def undid(*parts: str) -> list[str]:
    return [f"undid {part}" for part in parts]


WHOLE = booked(*PARTS) + undid("car", "hotel", "flight")


async def noted(log: Path, what: str) -> None:
    """Wait until a run has noted something."""
    async with asyncio.timeout(60):
        # Another process writes it.
        while not log.exists() or what not in log.read_text().splitlines():  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.01)


# --- Who fails, is cancelled or expires, undoes


@pytest.mark.usefixtures("running")
async def test_failed_event_undoes_in_reverse_order_and_keeps_its_end(
    connection: Connection, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    identity = await enqueue(connection, "trip", {"log": str(log), "how": "fail"})
    row = await ended(connection, identity)
    assert (row["outcome"], row["reason"], row["attempts"]) == ("failed", "attempts_exhausted", 3)
    assert [error["message"] for error in json.loads(row["errors"])] == ["no visa"] * 3
    assert effects(log) == WHOLE
    await noted(log, "hook failed")
    assert log.read_text().splitlines()[-1] == "hook failed"
    job = await Changes(connection).get(identity)
    assert job is not None
    story = [(step.what, (step.detail or "").split(":")[0]) for step in story_of(job)]
    assert [name for what, name in story if what == "step"] == [
        *PARTS,
        "undo car",
        "undo hotel",
        "undo flight",
    ]
    assert [what for what, _ in story if what == "undoing"] == ["undoing"]


@pytest.mark.usefixtures("running")
async def test_completed_event_undoes_nothing(connection: Connection, tmp_path: Path) -> None:
    log = tmp_path / "log"
    identity = await enqueue(connection, "trip", {"log": str(log)})
    assert (await ended(connection, identity))["outcome"] == "completed"
    assert effects(log) == booked(*PARTS)


@pytest.mark.usefixtures("running")
async def test_suspended_event_that_is_cancelled_undoes_before_it_ends(
    connection: Connection, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    identity = await enqueue(connection, "trip", {"log": str(log), "how": "wait"})
    await suspended(connection, identity)
    queue = Queue(connection)
    assert await queue.cancel(str(identity), by="U1", reason="no money") == "running"
    row = await ended(connection, identity)
    assert (row["outcome"], row["reason"]) == ("cancelled", "cancelled by U1: no money")
    assert effects(log) == WHOLE


@pytest.mark.usefixtures("running")
async def test_running_event_that_is_cancelled_undoes_before_it_ends(
    connection: Connection, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    identity = await enqueue(connection, "trip", {"log": str(log), "how": "hang"})
    await noted(log, "hangs")
    assert await Queue(connection).cancel(str(identity), by="U1", reason="no money") == "running"
    row = await ended(connection, identity)
    assert (row["outcome"], row["cancelled_by"]) == ("cancelled", "U1")
    assert row["reason"] == "cancelled while running by U1: no money"
    assert effects(log) == WHOLE


@pytest.mark.usefixtures("running")
async def test_many_events_that_are_cancelled_together_undo_each(
    connection: Connection, tmp_path: Path
) -> None:
    logs = [tmp_path / str(number) for number in range(5)]
    ids = [
        await enqueue(connection, "trip", {"log": str(log), "how": "wait"}, group_key=str(tmp_path))
        for log in logs
    ]
    for identity in ids:
        await suspended(connection, identity)
    plain = await enqueue(connection, "trip", {"log": str(tmp_path / "none")}, run_in=3600)
    answers = await connection.fetch("select id, answer from agent.cancel_jobs($1)", [*ids, plain])
    assert {row["id"]: row["answer"] for row in answers} == {
        **dict.fromkeys(ids, "running"),
        plain: "cancelled",
    }
    for identity, log in zip(ids, logs, strict=True):
        assert (await ended(connection, identity))["outcome"] == "cancelled"
        assert effects(log) == WHOLE


@pytest.mark.usefixtures("running")
async def test_event_past_its_deadline_undoes(connection: Connection, tmp_path: Path) -> None:
    log = tmp_path / "log"
    identity = await enqueue(connection, "trip", {"log": str(log), "how": "wait"})
    await suspended(connection, identity)
    await connection.execute(
        "update agent.event set deadline = now() - interval '1s' where id = $1", identity
    )
    await connection.fetchval("select agent.sweep_events()")
    row = await ended(connection, identity)
    assert (row["outcome"], row["reason"]) == ("expired", "deadline_passed")
    assert effects(log) == WHOLE


@pytest.mark.usefixtures("running")
async def test_parent_and_child_that_are_cancelled_undo_both(connection: Connection, tmp_path: Path) -> None:
    log = tmp_path / "log"
    identity = await enqueue(connection, "parent", {"log": str(log), "how": "wait"})
    await suspended(connection, identity)
    child = None
    async with asyncio.timeout(60):
        while child is None:
            child = await connection.fetchval(
                "select id from agent.event where continuation_id = $1", identity
            )
            await asyncio.sleep(0.01)
    await suspended(connection, child)
    await Queue(connection).cancel(str(identity))
    assert (await ended(connection, identity))["outcome"] == "cancelled"
    assert (await ended(connection, child))["outcome"] == "cancelled"
    assert sorted(effects(log)) == sorted([*WHOLE, "undid parent"])


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize("kind", ["trip-in-thread", "at-once"])
async def test_every_form_of_handler_undoes(connection: Connection, tmp_path: Path, kind: str) -> None:
    log = tmp_path / "log"
    identity = await enqueue(connection, kind, {"log": str(log)})
    if kind == "at-once":
        await suspended(connection, identity)
        await Queue(connection).cancel(str(identity))
    await ended(connection, identity)
    assert effects(log)[3:] == undid("car", "hotel", "flight")


# --- Undos that fail


@pytest.mark.usefixtures("running")
async def test_undo_that_fails_is_tried_again_before_earlier_ones(
    connection: Connection, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    identity = await enqueue(connection, "trip-once", {"log": str(log), "how": "fail", "fails": {"hotel": 2}})
    row = await ended(connection, identity)
    assert effects(log) == WHOLE
    assert (row["outcome"], row["attempts"], row["max_attempts"]) == ("failed", 1, None)
    types = [error["type"] for error in json.loads(row["errors"])]
    assert types == ["RuntimeError", "LookupError", "LookupError"]


@pytest.mark.usefixtures("running")
async def test_undo_that_fails_for_good_is_named_and_earlier_ones_run(
    connection: Connection, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    identity = await enqueue(connection, "trip", {"log": str(log), "how": "fail", "fails": {"hotel": 99}})
    row = await ended(connection, identity)
    assert effects(log) == booked(*PARTS) + undid("car", "flight")
    last = json.loads(row["errors"])[-1]
    assert (row["outcome"], last["type"], last["message"]) == (
        "failed",
        "UndoError",
        "not undone: undo hotel",
    )


@pytest.mark.usefixtures("running")
async def test_undo_with_long_pauses_is_suspended_between_its_tries(
    connection: Connection, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    bounds = {"retries": 1, "backoff": "2.5s"}
    payload = {"log": str(log), "how": "fail", "fails": {"car": 1}, "bounds": bounds}
    identity = await enqueue(connection, "trip-once", payload)
    await suspended(connection, identity)
    assert await Queue(connection).cancel(str(identity)) == "running"
    row = await ended(connection, identity)
    assert (row["outcome"], len(json.loads(row["errors"]))) == ("failed", 1)
    assert effects(log) == WHOLE


@pytest.mark.usefixtures("running")
async def test_undo_that_hangs_ends_with_the_timeout_of_its_handler(
    connection: Connection, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    identity = await enqueue(connection, "trip-timed", {"log": str(log), "how": "fail", "hangs": ["flight"]})
    row = await ended(connection, identity, within=60)
    types = [error["type"] for error in json.loads(row["errors"])]
    assert types == ["RuntimeError", *["HandlerTimeoutError"] * 3, "UndoError"]
    assert effects(log) == booked(*PARTS) + undid("car", "hotel")


@pytest.mark.usefixtures("running")
async def test_undo_that_the_handler_forgot_is_named_and_the_others_run(
    connection: Connection, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    row = await ended(connection, await enqueue(connection, "changed", {"log": str(log)}))
    assert effects(log) == undid("kept")
    assert json.loads(row["errors"])[-1]["message"] == "not undone: undo forgotten"


# --- Running again


@pytest.mark.usefixtures("running")
async def test_undone_event_that_runs_again_begins_anew(connection: Connection, tmp_path: Path) -> None:
    log = tmp_path / "log"
    identity = await enqueue(connection, "trip", {"log": str(log), "how": "fail"})
    await ended(connection, identity)
    async with connection.transaction():
        assert await connection.fetchval("select agent.rerun_events($1)", [identity]) == identity
        assert not await connection.fetchval("select count(*) from agent.step where event_id = $1", identity)
    row = await ended(connection, identity)
    assert (row["outcome"], effects(log)) == ("failed", WHOLE * 2)
    rerun = await Changes(connection).rerun_as_new(identity, from_step="car")
    assert rerun.id is not None
    await ended(connection, rerun.id)
    assert effects(log) == WHOLE * 3


@pytest.mark.usefixtures("running")
async def test_completed_event_that_runs_again_from_a_step_undoes_all_if_it_fails(
    connection: Connection, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    identity = await enqueue(connection, "trip", {"log": str(log)})
    await ended(connection, identity)
    rerun = await Changes(connection).rerun_as_new(
        identity, from_step="car", payload={"log": str(log), "how": "fail"}
    )
    assert rerun.id is not None
    assert (await ended(connection, rerun.id))["outcome"] == "failed"
    assert effects(log) == [*booked(*PARTS, "car"), *undid("car", "hotel", "flight")]


async def test_undos_that_no_worker_runs_end_if_an_operator_expires_the_event(own: Connection) -> None:
    identity = await enqueue(own, "trip")
    claim = await own.fetchval("select array_upper(claimed, 1) from agent.claim_event()")
    await own.execute("select agent.open_step($1, $2, 'undo flight', 1, null)", identity, claim)
    assert await Queue(own).cancel(str(identity), by="U1") == "running"
    await own.execute("select agent.settle($1, $2, array['release'])", [identity], [claim])
    assert await Queue(own).cancel(str(identity), by="U2") == "running"
    answer = await own.fetchval("select answer from agent.expire_jobs($1, 'gone')", [identity])
    assert answer == "expired"
    row = await ended(own, identity)
    assert (row["outcome"], row["reason"]) == ("cancelled", "cancelled while running by U1")
    assert [error["message"] for error in json.loads(row["errors"])] == ["not undone: undo flight"]


# --- Killed workers

EVERYWHERE = [
    f"{where} {part}" for part in PARTS for where in ("before", "with undo", "in", "after", "in undo")
]


@pytest.mark.parametrize("how", ["fail", "wait"])
async def test_killed_at_every_boundary_each_part_is_booked_and_undone_once(
    database: str, own: Connection, tmp_path: Path, how: str
) -> None:
    log = tmp_path / "log"
    payload: dict[str, Any] = {"log": str(log), "how": how, "dies": EVERYWHERE}
    identity = await enqueue(own, "trip", payload, max_attempts=9)
    cancelling = None
    if how == "wait":
        cancelling = asyncio.create_task(_cancelled_once_suspended(database, identity))
    row, deaths = await lives(database, identity, own)
    if cancelling is not None:
        await cancelling
    assert (row["outcome"], deaths) == ("failed" if how == "fail" else "cancelled", len(EVERYWHERE))
    assert effects(log) == WHOLE


async def _cancelled_once_suspended(database: str, identity: int) -> None:
    connection = await asyncpg.connect(database)
    try:
        await suspended(connection, identity)
        await Queue(connection).cancel(str(identity))
    finally:
        await connection.close()


@pytest.mark.parametrize(
    ("dies", "did", "undone"),
    [
        ("before flight", (), ()),
        ("with undo flight", (), ("flight",)),
        ("in hotel", ("flight",), ("hotel", "flight")),
        # What comes right after the last stored step may be an undo of that step, so it is registered, too.
        ("after hotel", ("flight", "hotel"), ("car", "hotel", "flight")),
        ("after car", PARTS, ("car", "hotel", "flight")),
    ],
)
async def test_event_whose_worker_died_in_its_last_attempt_undoes_what_was_registered(
    database: str, own: Connection, tmp_path: Path, dies: str, did: tuple[str, ...], undone: tuple[str, ...]
) -> None:
    log = tmp_path / "log"
    payload = {"log": str(log), "how": "fail", "dies": [dies, "in undo flight"]}
    identity = await enqueue(own, "trip-once", payload)
    row, deaths = await lives(database, identity, own)
    assert (row["outcome"], row["reason"]) == ("expired", "attempts_exhausted")
    assert deaths == (2 if undone else 1)
    assert effects(log) == [*booked(*did), *undid(*undone)]


async def test_undo_that_kills_its_worker_each_time_ends(
    database: str, own: Connection, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    identity = await enqueue(own, "killing", {"log": str(log)})
    row, deaths = await lives(database, identity, own)
    assert (row["outcome"], deaths) == ("failed", 3)
    assert json.loads(row["errors"])[-1]["message"] == "not undone: undo deadly"


async def test_undo_after_its_step_runs_although_the_worker_died_between_them(
    database: str, own: Connection, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    row, _ = await lives(database, await enqueue(own, "after", {"log": str(log)}), own)
    assert row["outcome"] == "expired"
    assert effects(log) == [*booked("flight", "hotel"), *undid("hotel 17", "flight 17")]


async def test_encrypted_event_undoes_and_keeps_its_errors_encrypted(
    database: str, own: Connection, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    async with worker(database, SURELANE_HANDLERS=HANDLERS, **ON):
        row = await ended(
            own, await enqueue(own, "trip-once", {"log": str(log), "how": "fail", "fails": {"hotel": 99}})
        )
    errors = json.loads(row["errors"])
    assert effects(log) == booked(*PARTS) + undid("car", "flight")
    assert "no visa" not in row["errors"]
    assert "no hotel" not in row["errors"]
    assert (errors[0]["type"], errors[-1]["message"]) == ("RuntimeError", "not undone: undo hotel")


async def test_reply_that_was_not_sent_is_not_sent_by_the_undo_run(
    database: str, own: Connection, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    identity = await enqueue(own, "telling", {"log": str(log)})
    row, _ = await lives(database, identity, own)
    assert (row["outcome"], effects(log)) == ("expired", ["undid told"])
    assert "replies" not in json.loads(row["notes"])  # one is noted before it is sent
