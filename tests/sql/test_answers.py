"""Requests that wait for an answer, and the fence around answers, in SQL."""

import json
from datetime import timedelta
from typing import Any

import pytest

from surelane.calls import Connection
from surelane_service.engine import Engine
from surelane_service.intake import Intake
from surelane_service.subscriptions import INTERACTIONS
from surelane_worker.handling.routes import is_interactive
from tests.sql.conftest import Connect
from tests.sql.queue_steps import advance, event_of, only_row

CHANNEL = "agent_request_test"
WAIT = timedelta(minutes=1)
ANSWERED = ["slack.block_actions", "slack.block_suggestion"]


@pytest.fixture(autouse=True)
async def listed(queue: Connection) -> None:
    """Put a worker on the list that handles clicks and menus."""
    assert await Engine(queue).introduce_worker("w", "1.0.0", ANSWERED, [])


def click(number: int = 1, **fields: Any) -> str:
    payload = {"type": "block_actions", "trigger_id": str(number), "message": {"ts": "1.1"}}
    return json.dumps(payload | {"team": {"id": "T1"}, "channel": {"id": "C1"}} | fields)


async def ask(connection: Connection, event: str, channel: str = CHANNEL) -> tuple[int, bool]:
    """Store an event whose request waits. Return its id, and whether it can be answered."""
    ((inserted, waits),) = await Intake(connection).insert_requests(
        [event], traceparents=[None], item_keys=[None], waits=[WAIT], channel=channel
    )
    return inserted.id, waits


async def claim(connection: Connection, kind: str = "slack.block_actions") -> int:
    (event,) = await Engine(connection).claim_events([kind], 1, worker="w")
    return event.claim


async def test_database_and_worker_know_the_same_interactive_kinds(queue: Connection) -> None:
    others = "command.deploy agent_session_stopped message_changed message_deleted link_shared command"
    others += " entity_details_requested app_mention message.im"
    kinds = [f"slack.{name}" for name in (*INTERACTIONS, *others.split())]
    kinds += ["surelane.answer", "block_actions"]
    known = await queue.fetch("select kind, agent.is_interactive(kind) from unnest($1::text[]) kind", kinds)
    assert dict(map(tuple, known)) == {kind: is_interactive(kind) for kind in kinds}


@pytest.mark.parametrize(
    "gone",
    [
        "ordered = null",
        "died_at = agent.clock()",
        "seen_at = agent.clock() - interval '2 minutes'",
        "kinds = '{slack.view_submission}'",
    ],
)
async def test_nothing_waits_where_no_live_worker_could_answer(queue: Connection, gone: str) -> None:
    """A worker of the previous release does not say which kinds it keeps in order."""
    await queue.execute(f"update agent.worker set {gone}")
    _, waits = await ask(queue, click())
    assert not waits
    assert await queue.fetchval("select count(*) from agent.request") == 0


async def test_requests_wait_for_the_successor_of_a_worker_that_has_just_retired(queue: Connection) -> None:
    why = "select reason from agent.why_waiting($1)"
    await queue.execute("select agent.register_kinds($1)", ANSWERED)
    identity, _ = await ask(queue, click(3))
    assert await queue.fetchval(why, identity) == "due"
    await Engine(queue).retire_worker("w")
    assert await queue.fetchval(why, identity) == "no_worker"
    assert (await ask(queue, click(1)))[1]
    await advance(queue, timedelta(minutes=2))
    assert not (await ask(queue, click(2)))[1]


async def test_only_the_claim_that_stands_answers_and_once(queue: Connection, connect: Connect) -> None:
    identity, waits = await ask(queue, click())
    assert waits
    engine, intake = Engine(queue), Intake(queue)
    assert await engine.answer_requests([(identity, 1, '"too early"')]) == set()
    await claim(queue)
    await queue.execute("update agent.event set vt = agent.clock()")  # its lease lapses
    assert await claim(queue) == 2
    assert await engine.answer_requests([(identity, 1, '"stale"')]) == set()
    assert await engine.answer_requests([(identity, 1, "null")]) == set()
    assert await engine.answer_requests([(identity, 2, '"first"')]) == {identity}
    assert await engine.answer_requests([(identity, 2, '"second"')]) == set()
    assert await intake.take_answers("another", [identity], [identity]) == {}
    assert await intake.take_answers(CHANNEL, [identity], []) == {identity: '"first"'}
    assert await intake.take_answers(CHANNEL, [identity], [identity]) == {}
    identity, _ = await ask(queue, click(2))
    await claim(queue)
    other = await connect("surelane_ingest")
    async with other.transaction():
        assert await Intake(other).take_answers(CHANNEL, [], [identity]) == {identity: None}
        assert await Engine(queue).answer_requests([(identity, 1, '"late"')]) == set()


async def test_request_that_gave_up_or_whose_time_is_up_takes_no_answer(queue: Connection) -> None:
    engine, intake = Engine(queue), Intake(queue)
    first, _ = await ask(queue, click(1))
    await claim(queue)
    assert await intake.take_answers(CHANNEL, [first], []) == {}
    assert await intake.take_answers(CHANNEL, [first], [first]) == {first: None}
    assert await engine.answer_requests([(first, 1, '"late"')]) == set()
    second, _ = await ask(queue, click(2))
    await claim(queue)
    await queue.execute("update agent.request set waits_until = agent.clock() - interval '2 minutes'")
    assert await engine.answer_requests([(second, 1, '"late"')]) == set()
    await engine.sweep_events()
    assert await queue.fetchval("select count(*) from agent.request") == 0
    third, _ = await ask(queue, click(3))
    await engine.settle([(third, await claim(queue), "complete", None)])
    assert await engine.answer_requests([(third, 1, '"late"')]) == set()
    assert await engine.answer_requests([(third, 1, "null")]) == {third}, "an ended event's empty answer"


async def test_repeated_request_waits_beside_the_first_until_the_event_has_ended(queue: Connection) -> None:
    engine = Engine(queue)
    identity, _ = await ask(queue, click())
    assert await ask(queue, click(), "another") == (identity, True)
    assert await ask(queue, click(), "another") == (identity, True)
    assert await engine.answer_requests([(identity, await claim(queue), '"both"')]) == {identity}
    rows = await queue.fetch("select channel, answer from agent.request order by channel")
    assert [tuple(row) for row in rows] == [(CHANNEL, '"both"'), ("another", '"both"')]
    await engine.settle([(identity, 1, "complete", None)])
    assert await ask(queue, click(), "third") == (identity, False)


async def test_question_of_a_menu_has_one_attempt_and_a_deadline(queue: Connection) -> None:
    identity, _ = await ask(queue, json.dumps({"type": "block_suggestion", "action_id": "a"}))
    row = await only_row(queue, "select max_attempts, deadline - enqueued_at as lives from agent.event")
    assert row["max_attempts"] == 1
    assert abs(row["lives"] - WAIT) < timedelta(seconds=10)
    await queue.execute("update agent.event set deadline = agent.clock() - interval '1 s'")
    await Engine(queue).sweep_events()
    assert await queue.fetchval("select outcome from agent.event_hist where id = $1", identity) == "expired"


@pytest.mark.parametrize("batch", [False, True])
async def test_interactions_have_no_group_unless_a_kind_is_ordered(queue: Connection, batch: bool) -> None:
    async def stored(number: int) -> str | None:
        if batch:
            await Intake(queue).insert_events([click(number)])
        else:
            await queue.execute("select agent.insert_event($1)", click(number))
        key: str | None = await queue.fetchval("select group_key from agent.event order by id desc limit 1")
        return key

    engine, kinds = Engine(queue), ["slack.block_actions"]
    assert await stored(1) is None
    await engine.announce_worker("old", kinds, "0")
    await engine.order_kinds("old", kinds)
    assert await stored(2) == "T1:C1:1.1"
    await engine.announce_worker("new", kinds, "0")
    await engine.order_kinds("new", [])
    await engine.order_kinds("old", kinds)
    assert await stored(3) is None, "the worker that started last decides"


async def test_interactions_alone_wake_interactive_slots(queue: Connection, service: Connection) -> None:
    heard: list[str] = []
    await service.add_listener("agent_event", lambda *notice: heard.append(notice[3]))
    await queue.execute("select agent.insert_event($1)", json.dumps({"type": "app_mention", "ts": "1.1"}))
    await service.fetchval("select 1")
    assert heard == [""]
    await queue.execute("select agent.insert_event($1)", click(1))
    await Intake(queue).insert_events([click(2)])
    await service.fetchval("select 1")
    assert sorted(heard) == ["", "", "", "interactive", "interactive"]


@pytest.mark.parametrize(
    ("event", "refused"),
    [({"command": "/nobody"}, True), ({"type": "view_submission"}, True), ({"type": "shortcut"}, False)],
)
async def test_what_no_worker_handles_is_refused(queue: Connection, event: Any, refused: bool) -> None:
    """Where none lives, one may start in a moment: the event waits for it."""
    for trigger, dies in (("1", False), ("2", True)):
        if dies:
            await queue.execute("update agent.worker set died_at = agent.clock()")
        identity, waits = await ask(queue, json.dumps({"trigger_id": trigger, "team_id": "T1"} | event))
        expected = refused and not dies
        assert waits is expected
        taken = {identity: "false"} if expected else {}
        assert await Intake(queue).take_answers(CHANNEL, [identity], []) == taken
        assert ((await event_of(queue, identity))["deadline"] is not None) is expected
