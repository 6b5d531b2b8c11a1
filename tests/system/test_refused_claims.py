"""A row that refuses to be claimed stops no other: it is passed over, logged, and shown with the reason."""

import json

import pytest

from surelane.calls import Connection
from surelane_worker import Handlers
from surelane_worker.handling.bounds import Limit
from tests.databases import as_role
from tests.processes import until
from tests.sql.test_one_bad_item import ON, REFUSED
from tests.system import worker_handlers
from tests.system.test_cli import Command
from tests.system.worker import ended, enqueue, live, worker

TEXT = "event::text ~ '\\mbad\\M'"
QUIET = f"""create function public.refuse() returns trigger language plpgsql as $$ begin
if new.{TEXT} then return null; end if; return new; end $$"""
SLOWLY = """create constraint trigger theirs after update on agent.event deferrable initially deferred
for each row execute function public.refuse()"""
REFUSING = {
    "a trigger": (("23514", "public.refuse"), (REFUSED, ON.format("update on agent.event"))),
    "a trigger that is silent": (("23505", "agent.event"), (QUIET, ON.format("update on agent.event"))),
    "a deferred trigger": (("23514", "public.refuse"), (REFUSED, SLOWLY)),
    "damage": (
        ("XX001", "public.refuse"),
        (REFUSED.replace("check_violation", "data_corrupted"), ON.format("update on agent.event")),
    ),
    "a constraint": (
        ("23514", "agent.event.theirs"),
        (f"alter table agent.event add constraint theirs check (not {TEXT}) not valid",),
    ),
    "under a limit": (
        ("23514", "public.refuse"),
        (
            *("select agent.set_limit('echo', 3, null, null, null), agent.park_events('echo', 100)", REFUSED),
            ON.format("update on agent.event"),
        ),
    ),
}


@pytest.mark.parametrize("case", REFUSING)
async def test_the_others_are_claimed_and_the_refused_one_is_named(
    database: str, connection: Connection, case: str
) -> None:
    (sqlstate, about), statements = REFUSING[case]
    bad = await enqueue(connection, "echo", "bad")
    good = [await enqueue(connection, "echo", number, group_key=f"g{number % 3}") for number in range(9)]
    for statement in ("update agent.event set vt = now() - interval '1 hour'", *statements):
        await connection.execute(statement)
    async with worker(database, SURELANE_CONCURRENCY="4") as running:
        for identity in good:
            await ended(connection, identity)

        def named() -> list[object]:
            lines = [json.loads(line) for line in running.output if "refuse to be claimed" in line]
            return [(line["events"], line["sqlstate"], line["object"]) for line in lines]

        await until(named)
        assert named()[0] == ([bad], sqlstate, about)
        surelane = Command(as_role(database, "surelane_operator"))
        why, doctor = await surelane.each(f"events why {bad}", "doctor")
        assert why.out.strip() == f"refused: SQLSTATE {sqlstate}, {about}"
        assert f"event {bad} refuses to be claimed" in doctor.out


handlers = Handlers()
for each in ("good", "bad"):
    handlers.on(each, limit=Limit(concurrency=1))(worker_handlers.echo)
handlers.on("other", max_attempts=5)(worker_handlers.echo)


async def test_a_refused_limit_keeps_its_kind_alone_from_being_claimed(
    database: str, connection: Connection
) -> None:
    bad, *others = [await enqueue(connection, kind) for kind in ("bad", "good", "other")]
    for statement in (REFUSED, ON.format("insert on agent.kind_limit")):
        await connection.execute(statement)
    async with worker(database, SURELANE_HANDLERS=f"{__name__}:handlers") as running:
        for identity in others:
            await ended(connection, identity)
        assert any("a limit is refused" in line and '"kind": "bad"' in line for line in running.output)
        assert (await live(connection, bad))["attempts"] == 0


async def test_a_member_that_refuses_lets_its_head_end(database: str, connection: Connection) -> None:
    good, bad = [await enqueue(connection, "echo", word, group_key="g") for word in ("good", "bad")]
    for statement in (REFUSED, ON.format("update on agent.event")):
        await connection.execute(statement)
    async with worker(database):
        assert (await ended(connection, good))["attempts"] == 1
        assert (await live(connection, bad))["attempts"] == 0
