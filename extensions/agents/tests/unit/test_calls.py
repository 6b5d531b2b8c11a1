"""What agents store counts once, keeps its limits, and goes with retention and with erasing."""

import asyncio
import json
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from surelane.calls import Connection
from surelane.events import Event
from surelane.queue import Queue
from surelane_agents.calls import AgentCalls, ModelUse, Spent
from surelane_agents.people.board import Board
from surelane_agents.people.rules import MEMORY, RULES
from surelane_service.engine import Engine, Settled
from tests.sql.conftest import Connect
from tests.sql.queue_steps import advance
from tests.sql.test_erase import erase, preview, traces
from tests.sql.test_queue_foreign_locks import stays_open

USED = ModelUse("m", 100, 10, Decimal("0.5"))
RUDE = -1, "rude", "m"
USERS = "model_usage", "owner_id", "user_id"
ROWS = "rule", "owner_id", "about", "set_by"
NOTHING = Spent(0, Decimal(0))


@pytest.fixture
async def agents(queue: Connection, connect: Connect) -> AgentCalls:  # noqa: ARG001 - it empties the tables
    return AgentCalls(Engine(await connect("surelane_worker")))


async def left(queue: Connection, table: str, *columns: str) -> list[str]:
    """Return these columns of a table, a string for each row."""
    found = await queue.fetch(f"select concat_ws(' ', {', '.join(columns)}) from agent.{table} order by 1")
    return [row[0] for row in found]


async def retain(queue: Connection) -> None:
    """Drop what is older than three days, step by step: a chunk that earlier tests left is a step of its own."""
    while await queue.fetchval("select next from agent.drop_history('3 days')") is not None:
        pass


async def test_response_is_counted_once_for_its_person_and_workspace(agents: AgentCalls) -> None:
    for person, response in (("U1", "a"), ("U1", "a"), ("U1", "b"), ("U2", "c"), ("", "d")):
        await agents.count_usage("T1", person, USED, response)
    await agents.count_usage("T2", "U1", USED, "e")
    assert await agents.read_usage("T1", "U1") == (Spent(440, Decimal(2)), Spent(220, Decimal(1)))
    assert await agents.read_usage("T3", "U1") == (NOTHING, NOTHING)


async def test_a_rule_that_was_changed_by_hand_is_empty_and_hides_no_other(
    queue: Connection, agents: AgentCalls
) -> None:
    said = ("fine", "no JSON", "a list", "no text")
    for nth, text in enumerate(said):
        assert await agents.set_rule("T1", (nth, "U1", text, "U1"), {})
    for nth, stored in ((1, "{"), (2, "[]"), (3, '{"text": 7}')):
        await queue.execute("update agent.rule set said = $2 where id = $1", nth, stored)
    assert [rule[2] for rule in await agents.read_rules("T1", ["U1"])] == ["fine", "", "", ""]


DEEP = f"{'[' * 1500}{']' * 1500}"


@pytest.mark.parametrize("bad", ['"surelane.sealed": "lost"', '"surelane.sealed": 7', f'"deep": {DEEP}'])
async def test_a_message_that_cannot_be_opened_or_read_hides_no_other_of_its_thread(
    queue: Connection, agents: AgentCalls, bad: str
) -> None:
    root, group, said = "1700000000.000000", "T1:C1:1700000000.000000", list[dict[str, Any]]()
    for nth in range(3):
        inner = {"type": "app_mention", "channel": "C1", "ts": f"170000000{nth}.000000", "thread_ts": root}
        said.append(inner)
        payload: dict[str, Any] = {
            "type": "event_callback",
            "team_id": "T1",
            "event_id": f"Ev{nth}",
            "event": inner,
        }
        payload["event_time"] = 1700000000 + nth
        written = json.dumps(payload)[:-1] + (f", {bad}}}" if nth == 1 else "}")
        await queue.execute("select agent.insert_event($1)", written)
    await queue.execute(
        "insert into agent.step (event_id, name, nth, sort, attempt, result, started_at, finished_at, event_ts)"
        " select min(id), 'turn', 1, 'step', 1, '[]', now(), now(), now() from agent.event"
    )
    found = await agents.thread_events([group], "C1", root, "1700000009.000000", "turn")
    found.sort(key=lambda each: each.id)
    assert [(each.turn, each.unread is None) for each in found] == [
        (True, True),
        (False, False),
        (False, True),
    ]
    assert [each.slack for each in found if each.unread is None] == [said[0], said[2]]
    first, _ = await queue.fetch("select id, event_ts from agent.event order by id limit 2")
    turn = Event(first["id"], "slack.app_mention", first["event_ts"], 1, 1, first["event_ts"], "{}")
    assert [each.slack for each in await agents.waiting_messages(turn, [group], "turn")] == [said[2]]
    since = await agents.said_since_turn(group, await queue.fetchval("select agent.clock()"), "turn")
    assert [each for each in since if each != said[1]] == [said[0], said[2]]
    live = "update agent.event set event = jsonb_set(event, '{event,ts}', to_jsonb($1::text))"
    await queue.execute(live, root)
    about = {"type": "event_callback", "team_id": "T1", "event": said[0]}
    assert len(await agents.live_messages(about)) == (2 if "deep" in bad else 3)


async def test_next_day_begins_at_nothing_and_retention_drops_old_days(
    queue: Connection, agents: AgentCalls
) -> None:
    await agents.count_usage("T1", "U1", USED, "a")
    await advance(queue, timedelta(days=1))
    assert await agents.read_usage("T1", "U1") == (NOTHING, NOTHING)
    await retain(queue)
    assert await left(queue, *USERS) == ["T1 U1"]
    await advance(queue, timedelta(days=4))
    await retain(queue)
    assert await left(queue, *USERS) == []


async def test_erasing_a_person_takes_the_persons_use_alone(queue: Connection, agents: AgentCalls) -> None:
    for workspace, person in (("T1", "U1"), ("T1", "U2"), ("T2", "U1")):
        await agents.count_usage(workspace, person, USED, "a")
    counts = await erase(queue, team="T1", user="U1")
    assert counts["model_usage"] == 1, json.dumps(counts)
    assert await left(queue, *USERS) == ["T1 U2", "T2 U1"]
    await erase(queue, user="U1")
    assert await traces(queue, "U1") == []
    await erase(queue, team="T1")
    assert await left(queue, *USERS) == []


async def turn(queue: Connection, user: str = "U1", channel: str = "C1", *, done: bool = True) -> int:
    identity = await Queue(queue).enqueue("turn", {"team": "T1", "user": user, "channel": channel})
    if done:
        await queue.execute("select agent.claim_events('{turn}')")
        await queue.execute("select agent.complete_events(array[$1::int8], array[1])", identity)
    return identity


async def ratings(queue: Connection) -> list[str]:
    rated = await left(queue, "feedback", "user_id", "rating", "reason", "event_id > 0")
    return [each.removesuffix(" t") for each in rated if each.endswith(" t")]


@pytest.mark.parametrize("done", [True, False])
async def test_later_click_counts_in_the_turns_channel(
    queue: Connection, agents: AgentCalls, done: bool
) -> None:
    identity = await turn(queue, done=done)
    mine, good = ("T1", "U1", "C1"), (1, None, "m")
    for of, who in ((identity, ("T1", "U1", "C2")), (identity + 1, mine)):
        assert not await agents.rate_turn(of, who, *good, 1)
    assert await ratings(queue) == []
    assert await agents.rate_turn(identity, mine, -1, None, "m", 2)
    assert await agents.rate_turn(identity, mine, *RUDE, 4)
    # An earlier click, the same one, and the same rating again.
    for click, rating in ((3, 1), (4, 1), (5, -1)):
        assert await agents.rate_turn(identity, mine, rating, None, "m", click)
        assert await ratings(queue) == ['U1 -1 "rude"']
    assert await agents.rate_turn(identity, ("T1", "U2", "C1"), *good, 6)
    assert await agents.rate_turn(identity, mine, *good, 7)
    assert await ratings(queue) == ["U1 1", "U2 1"]


async def test_person_is_told_three_times_unless_they_rate_also_after_retention(
    queue: Connection, agents: AgentCalls
) -> None:
    told = [await agents.remind_feedback("T1", "U1", 1) for _ in range(5)]
    assert told == [True, True, True, False, False]
    assert await agents.remind_feedback("T2", "U1", 1)
    assert await agents.rate_turn(await turn(queue), ("T2", "U1", "C1"), 1, None, "m", 1)
    assert not await agents.remind_feedback("T2", "U1", 1)
    await retain(queue)
    assert len(await ratings(queue)) == 1
    await advance(queue, timedelta(days=60))
    await retain(queue)
    assert await ratings(queue) == []
    assert not await agents.remind_feedback("T2", "U1", 1)


async def test_erasing_takes_what_a_person_said_and_others_of_the_persons_turns(
    queue: Connection, agents: AgentCalls
) -> None:
    mine, other = await turn(queue, "U1"), await turn(queue, "U2", "C2")
    for person, identity, channel in (("U2", mine, "C1"), ("U1", other, "C2"), ("U3", other, "C2")):
        await agents.rate_turn(identity, ("T1", person, channel), *RUDE, 1)
    counts = await erase(queue, user="U1")
    assert counts["feedback"] == 2, json.dumps(counts)  # the rating, and that U1 knows the thumbs
    assert await ratings(queue) == ['U3 -1 "rude"']
    assert await traces(queue, "U1") == []
    assert not await agents.rate_turn(mine, ("T1", "U2", "C1"), *RUDE, 9)
    await erase(queue, channel="C2")
    assert await ratings(queue) == []
    await erase(queue, team="T1")
    assert await queue.fetchval("select count(*) from agent.feedback") == 0
    # What was stored while its turn was erased is found by the next one.
    await agents.rate_turn(await turn(queue), ("T1", "U1", "C1"), *RUDE, 1)
    await queue.execute("update agent.feedback set event_id = 999999 where event_id > 0")
    await erase(queue, user="U9")
    assert await ratings(queue) == []


async def test_rules_come_by_scope_and_then_by_age(agents: AgentCalls) -> None:
    scopes = ("T1 U1", "T1 T1", "T1 C1", "T1 U1", "T2 T2", "T1 C2", "T1 T1")
    for number, (owner, about) in enumerate(map(str.split, scopes)):
        assert await agents.set_rule(owner, (number, about, f"rule {number}", "U1"), {})
    found = await agents.read_rules("T1", ["T1", "C1", "U1"])
    assert [(identity, text) for identity, _, text, _ in found] == [
        (nth, f"rule {nth}") for nth in (1, 6, 2, 0, 3)
    ]
    assert await agents.read_rules("T3", ["T1", "C1", "U1"]) == []


@pytest.mark.parametrize("board", [RULES, MEMORY])
async def test_a_rule_is_set_once_and_a_scope_has_no_more_than_its_limit(
    agents: AgentCalls, board: Board
) -> None:
    mine, channels, most = f"{board.prefix}U1", f"{board.prefix}C1", board.most
    for number in range(most):
        assert await agents.set_rule("T1", (number, mine, "x", "U1"), {})
    assert await agents.set_rule("T1", (0, mine, "again", "U1"), {}), (
        "corrected, or an attempt that was repeated"
    )
    assert [each[2] for each in await agents.read_rules("T1", [mine])] == ["again", *["x"] * (most - 1)]
    for owner, about in (("T1", channels), ("T2", mine)):
        assert not await agents.set_rule(owner, (0, about, "stolen", "U2"), {}), "another one's"
    assert not await agents.set_rule("T1", (most, mine, "x", "U1"), {})
    assert await agents.set_rule("T1", (most, channels, "x", "U1"), {})
    assert not await agents.drop_rule("T1", channels, 0), "of another scope"
    assert not await agents.drop_rule("T2", mine, 0), "of another workspace"
    assert await agents.drop_rule("T1", mine, 0)
    assert not await agents.drop_rule("T1", mine, 0)
    assert await agents.set_rule("T1", (most + 1, mine, "x", "U1"), {})


async def test_rules_that_are_set_at_once_keep_the_limit(queue: Connection, connect: Connect) -> None:
    callers = [AgentCalls(Engine(await connect("surelane_worker"))) for _ in range(4)]
    setting = [each.set_rule("T1", (nth, "C1", "x", "U1"), {}) for nth, each in enumerate(callers)]
    await queue.execute(
        "insert into agent.rule select 100 + n, 'T1', 'C1', '{}', 'U1', now() from generate_series(1, $1 - 1) as n",
        RULES.most,
    )
    assert sum(await asyncio.gather(*setting)) == 1


async def test_an_erasure_takes_rules_of_by_and_about_a_person(queue: Connection, agents: AgentCalls) -> None:
    rules: list[tuple[str, str, str, dict[str, Any]]] = [
        ("T1", "U1AB", "U1AB", {"text": "mine"}),
        ("T1", "C1", "U1AB", {"text": "a channel's"}),
        ("T1", "memory U1AB", "U2", {"text": "likes tea"}),
        ("T1", "T1", "U2", {"text": "never mention <@U1AB>"}),
        ("T1", "T1", "U2", {"text": "a workspace's"}),
        ("T2", "U3", "U3", {"text": "of an organization", "enterprise_id": "E1"}),
        ("T3", "C2", "U3", {"text": "another's"}),
        ("T3", "memory C2", "U3", {"text": "of a channel"}),
    ]
    for number, (owner, about, by, said) in enumerate(rules):
        await agents.set_rule(owner, (number, about, said.pop("text"), by), said)
    assert (await preview(queue, user="U1AB"))["rule"] == 4
    assert (await erase(queue, user="U1AB"))["rule"] == 4
    assert await traces(queue, "U1AB") == []
    assert await left(queue, *ROWS) == ["T1 T1 U2", "T2 U3 U3", "T3 C2 U3", "T3 memory C2 U3"]
    await erase(queue, team="T1")
    await erase(queue, team="E1")
    assert await left(queue, *ROWS) == ["T3 C2 U3", "T3 memory C2 U3"]
    await erase(queue, channel="C2")
    assert await left(queue, *ROWS) == []


async def test_a_locked_rule_stops_no_other_use(
    queue: Connection, agents: AgentCalls, other: Connection
) -> None:
    await agents.set_rule("T1", (1, "U1", "x", "U1"), {})
    async with stays_open(other, "select from agent.rule for update"):
        assert [rule[0] for rule in await agents.read_rules("T1", ["U1"])] == [1]
        assert await agents.set_rule("T1", (2, "U1", "y", "U1"), {})
    assert (await erase(queue, user="U1"))["rule"] == 2


async def test_rules_are_read_by_their_index(queue: Connection) -> None:
    await queue.execute(
        "insert into agent.rule select n, 'T' || n % 1000, 'U' || n, '{\"text\": 1}', 'U', now()"
        " from generate_series(1, 20000) as n"
    )
    await queue.execute("analyze agent.rule")
    scans = "select seq_scan from pg_stat_xact_user_tables where relname = 'rule'"
    async with queue.transaction():
        before = await queue.fetchval(scans)
        assert len(await AgentCalls(Engine(queue)).read_rules("T7", ["T7", "C1", "U7"])) == 1
        assert await queue.fetchval(scans) == before
        assert await queue.fetchval("select count(*) from agent.rule where said = ''") == 0
        assert await queue.fetchval(scans) == before + 1, "so the test can fail"


async def claimed(connection: Connection) -> tuple[int, int]:
    await Queue(connection).enqueue("k")
    (event,) = await Engine(connection).claim_events(["k"], 1, worker="w")
    return event.id, event.claim


async def said(connection: Connection, identity: int, after: int = 0) -> list[tuple[int, int, int, str]]:
    rows: list[dict[str, Any]] = json.loads(
        await connection.fetchval("select said from agent.read_said($1, $2)", identity, after)
    )
    return [(row["number"], row["part"], row["from"], row["value"]) for row in rows]


async def test_a_batch_is_stored_once_and_a_part_that_begins_anew_replaces_it(connection: Connection) -> None:
    agents, held = AgentCalls(Engine(connection)), await claimed(connection)
    for start, text in ((0, "Hel"), (3, "lo"), (3, "lo"), (5, ".")):
        assert await agents.store_said(*held, 1, start, text) == Settled.DONE
    assert await said(connection, held[0]) == [(1, 1, 0, "Hel"), (2, 1, 3, "lo"), (3, 1, 5, ".")]
    assert await said(connection, held[0], 2) == [(3, 1, 5, ".")]
    held = await claimed(connection)
    for part, text in ((1, "one"), (2, "two"), (3, "three"), (2, "")):
        assert await agents.store_said(*held, part, 0, text) == Settled.DONE
    assert await said(connection, held[0]) == [(1, 1, 0, "one"), (4, 2, 0, "")]
    assert await agents.store_said(*held, 3, 0, "") == Settled.DONE  # there is nothing to forget
    assert await agents.store_said(*held, 2, 0, "again") == Settled.DONE
    assert await agents.store_said(*held, 2, 0, "again") == Settled.DONE  # told once more
    assert await said(connection, held[0]) == [(1, 1, 0, "one"), (6, 2, 0, "again")]


async def test_a_slow_reader_gets_all_in_turn_and_a_lost_claim_says_nothing(connection: Connection) -> None:
    engine, held = Engine(connection), await claimed(connection)
    agents = AgentCalls(engine)
    for place in range(150):
        await agents.store_said(*held, 1, place, "x")
    await engine.settle([(*held, "complete", None)])
    first = await said(connection, held[0])
    assert [number for number, *_ in first] == list(range(1, 101))
    assert len(await said(connection, held[0], 100)) == 50
    assert await connection.fetchval("select ended from agent.read_said($1, 0)", held[0])
    identity, claim = await claimed(connection)
    assert await agents.store_said(identity, claim + 1, 1, 0, "late") == Settled.STALE
    assert await engine.store_tags(identity, claim, {"said": "a tag"}) == Settled.DONE
    assert await agents.store_said(identity, claim, 1, 0, "text") == Settled.DONE
    assert await said(connection, identity) == [(1, 1, 0, "text")]
    assert await engine.read_steps(identity) == []
    listed = json.loads(await connection.fetchval("select agent.list_steps($1)", identity))
    assert [each["sort"] for each in listed] == ["tag"]
