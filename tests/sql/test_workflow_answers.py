"""An answer ends an awaiting event once, before its deadline, if it comes from the asked agent."""

from datetime import timedelta

from surelane.calls import Connection
from surelane.jobs import Continuation, Job
from surelane.queue import Queue
from surelane_service.intake import Intake
from tests.sql.conftest import Connect
from tests.sql.queue_steps import advance, await_answer, claim, ending, history_of, pair, sweep


async def test_an_answer_of_the_asked_ends_what_awaits_it_once_in_time(queue: Connection) -> None:
    client = Queue(queue)
    identity = await Queue(queue).fan_out([Job("ask"), Job("ask")], Continuation("then"))
    first, second = await claim(queue, "ask")
    deadline = await queue.fetchval("select agent.clock() + interval '5 minutes'")
    assert await client.answer_event(first["id"], "1") == "running"
    for row in (first, second):
        assert await await_answer(queue, pair(row), deadline) == "done"
        assert await await_answer(queue, pair(row), deadline) == "stale"
    assert (await queue.fetchval("select reason from agent.why_waiting($1)", first["id"])) == "awaits_answer"
    assert await claim(queue, "ask") == []
    assert [await client.answer_event(first["id"], f'{{"n": {n}}}') for n in (1, 2)] == ["done", "unknown"]
    assert await client.answer_event(identity, "1") == "unknown", "a continuation awaits no answer"
    assert await client.answer_event(999_999_999, "1") == "unknown"

    await advance(queue, timedelta(minutes=6))
    assert await client.answer_event(second["id"], "1") == "unknown", "too late"
    await sweep(queue)
    assert await ending(queue, second["id"]) == ("expired", "deadline_passed")
    assert [child.result for child in await client.children(identity)] == [{"n": 1}, None]
    assert len(await claim(queue, "then")) == 1
    await client.enqueue("dispatch-execute", {"agent": "scribe"})
    await client.enqueue("ask", {"agent": "scribe"})
    deadline = await queue.fetchval("select agent.clock() + interval '5 minutes'")
    dispatched, asked = sorted(await claim(queue, "dispatch-execute", "ask"), key=lambda row: row["id"])
    for row in (dispatched, asked):
        await await_answer(queue, pair(row), deadline)
    assert await Intake(queue).answer_dispatch(dispatched["id"], ["critic"], "1") == "unknown"
    assert await Intake(queue).answer_dispatch(asked["id"], ["scribe"], "1") == "unknown"
    assert await Intake(queue).answer_dispatch(dispatched["id"], ["critic", "scribe"], "1") == "done"
    answered = await history_of(queue, dispatched["id"])
    assert answered["result"] == "1"


async def test_a_handler_may_answer_what_was_not_cancelled(queue: Connection, connect: Connect) -> None:
    """One event's handler ends another event, as for an approval by a button."""
    client = Queue(await connect("surelane_worker"))
    deadline = await queue.fetchval("select agent.clock() + interval '5 minutes'")
    first, second = [await client.enqueue("approval", item_key=key) for key in "ab"]
    rows = {row["id"]: pair(row) for row in await claim(queue, "approval")}
    assert await client.cancel("b") == "running"
    assert [await await_answer(queue, each, deadline) for each in rows.values()] == ["done", "done"]
    assert await client.answer_event(first, '"approved"') == "done"
    assert await ending(queue, second) == ("cancelled", "cancelled while running")
