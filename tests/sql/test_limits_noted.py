"""Each function that moves a parked event notes it for claims.

No trigger does that: it would slow down all claims. What a function does, the fixture's trigger ``parked_is_noted``
checks in each transaction of these tests. This file checks that no function escapes for want of a test.
"""

import re
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from surelane.calls import Connection
from tests.sql.queue_steps import enqueue

MOVES = re.compile(r"update agent\.event\b(?: as e)?\s+set\b((?:(?!\breturning\b|;).)*)", re.DOTALL)
MOVED = re.compile(r"\b(vt|lane|claimed_by|head) = (?!false)")
CLAIMS = {"claim_event", "claim_events"}
"""They record the keys that they look at, in ``agent.hold_key``."""
MEMBERS = {"fence_groups"}
"""Its events are members, or become members: no claim looks at them before they become heads."""


async def test_each_function_that_moves_events_notes_parked_ones(queue: Connection) -> None:
    rows = await queue.fetch("select proname, prosrc from pg_proc where pronamespace = 'agent'::regnamespace")
    moving = {
        row["proname"]: row["prosrc"]
        for row in rows
        if any(MOVED.search(update) for update in MOVES.findall(row["prosrc"]))
    }
    assert {"promote", "move_event", "return_events", "end_claims", "extend_leases"} < set(moving)
    forgets = {name for name, source in moving.items() if "agent.note_parked(" not in source}
    assert forgets == CLAIMS | MEMBERS


async def test_the_queues_tests_fail_where_a_parked_event_is_not_noted(queue: Connection) -> None:
    await queue.execute("insert into agent.kind_limit (kind, concurrency) values ('job', 1)")
    await enqueue(queue, run_at=datetime.now(UTC) + timedelta(hours=1))
    with pytest.raises(asyncpg.RaiseError, match="no note finds the parked event"):
        await queue.execute("update agent.event set vt = now()")
