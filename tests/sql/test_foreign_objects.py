"""What others added to the queue's table may refuse rows. It is named, and no call spins."""

import asyncpg
import pytest

from surelane.calls import Connection

NOTHING = "create function public.nothing() returns trigger language plpgsql as $$ begin return null; end $$"
TRIGGER = "create trigger theirs before {} execute function public.nothing()"
MEMBER = "select agent.enqueue('job', _group_key => 'g');"
AT_ONCE = "set constraints all immediate"
REFUSING = [
    (
        "create unique index their_kind on agent.event (kind)",
        "select agent.enqueue('job'), agent.enqueue('job', _item_key => 'a')",
    ),
    (
        TRIGGER.format("insert on agent.event for each row"),
        """select agent.insert_events(array['{"type": "app_mention"}'::jsonb])""",
    ),
    # The next head of a group: a member's row changes.
    (
        TRIGGER.format("update on agent.event for each row when (new.head)"),
        f"{MEMBER} {MEMBER} delete from agent.event where head",
    ),
    # A member without a head, as the transaction commits.
    (
        "create unique index their_head on agent.event ((1)) where head",
        f"{MEMBER} {MEMBER} update agent.event set head = false; select agent.enqueue('job'); {AT_ONCE}",
    ),
]


@pytest.mark.parametrize(("added", "calls"), REFUSING, ids=["index", "insert", "update", "commit"])
async def test_what_others_added_is_named_no_call_spins(queue: Connection, added: str, calls: str) -> None:
    transaction = queue.transaction()
    await transaction.start()
    try:
        await queue.execute(f"set local statement_timeout = '30s'; {NOTHING}; {added}")
        with pytest.raises(asyncpg.UniqueViolationError, match="their"):
            await queue.execute(calls)
    finally:
        await transaction.rollback()
