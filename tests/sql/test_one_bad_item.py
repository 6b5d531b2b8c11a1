"""One bad item among good ones: the good ones go on, and the bad one is named."""

from collections.abc import Sequence
from datetime import timedelta

import pytest

from surelane.calls import Connection
from surelane_service.engine import Engine

REFUSED = """
create function public.refuse() returns trigger language plpgsql as $$ begin
if old.kind = 'bad' then raise check_violation using message = 'theirs'; end if; return coalesce(new, old); end $$;
"""
ON = "create trigger theirs before {} for each row execute function public.refuse()"
TWO = "select agent.enqueue('bad'), agent.enqueue('good')"
HELD = (TWO, "select agent.claim_events(array['good', 'bad'])")
SILENT = (*HELD, "update agent.event set heartbeat_at = now() - interval '1 hour'")
ENDED = (TWO, "select agent.delete_event(id) from agent.event")
RESCUE = "select agent.rescue_events()"
FREED = "select array_agg(kind) from agent.event where vt <= agent.clock()"
LIVE = "select array_agg(kind) from agent.event"
LIMITED = (
    "select agent.set_limit(kind, 1, 5, '1s', null) from unnest(array['good', 'bad']) as kind",
    "alter table agent.kind_limit disable trigger limit_sound",
    "update agent.kind_limit set set_period = '0' where kind = 'bad'",
    *(TWO, "update agent.kind_limit set set_rate = 500"),
)
ROW = "insert into agent.event (event_ts, kind, event, head, lane) values (now(), {}, '{{}}', true, 1)"
WAITING = 'select agent.fan_out(\'[{{"kind": "part"}}]\', \'{{"kind": "{}", "fails_with_children": true}}\')'
# A hundred installations whose refresh failed, and expired earlier.
TOKENS = (
    """insert into agent.installation
    (enterprise_wide, owner_id, user_id, app_id, details, sealed, expires_at, installed_at)
    select false, case n when 0 then 'good' else 'bad' || n end, '', '', '{}', '', now() - n * interval '1 day', now()
    from generate_series(0, 100) as n""",
    "update agent.installation set expires_at = '-infinity' where owner_id = 'bad7'",
    """select agent.begin_refresh(false, i.owner_id, '', i.version, '0') from agent.installation as i
    where i.owner_id <> 'good'""",
)
ITEMS: dict[str, tuple[Sequence[str], str, str, str]] = {
    "rescue: changes by hand": (
        (*SILENT, "update agent.event set changes = '{}' where kind = 'bad'"),
        *(RESCUE, f"{FREED} and kind = 'good'", ""),
    ),
    "rescue: a row that refuses": ((*SILENT, ON.format("update on agent.event")), RESCUE, FREED, "event 1 "),
    "retention": (
        (*ENDED, ON.format("delete on agent.event_hist"), "update agent.event_hist set event_ts = '2020-01-01'"),
        "select agent.drop_history('3 days')",
        "select array_agg('good'::text) from agent.event_hist having array_agg(kind) = array['bad']",
        "event 1 ",
    ),
    "reruns": (
        (*ENDED, "create unique index theirs on agent.event ((1)) where kind = 'bad'", ROW.format("'bad'")),
        "select agent.rerun_events(array(select id from agent.event_hist))",
        f"{LIVE} where kind = 'good'",
        "event 1 ",
    ),
    "kinds": ((TWO, ROW.format("repeat('x', 300)")), "select agent.sweep_events()", f"{LIVE} where kind = 'good'", ""),
    "continuations": (
        (
            *(WAITING.format("bad"), WAITING.format("good"), "delete from agent.event where kind = 'part'"),
            ON.format("update on agent.event"),
        ),
        "select agent.sweep_events()",
        "select array_agg(kind) from agent.event_hist where reason = 'child_cancelled'",
        "continuation ",
    ),
    "limits": (
        *(LIMITED, "select agent.claim_events(array['bad', 'good'])", f"{LIVE} where claimed_by <> ''", "kind bad "),
    ),
    "tokens": (
        TOKENS,
        "select",
        "select array_agg(owner_id) from (select * from agent.expiring_installations('1h', 1)) as first",
        "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("item", ITEMS)
async def test_the_good_ones_go_on_and_the_bad_one_is_named(queue: Connection, item: str) -> None:
    before, call, good, named = ITEMS[item]
    if item == "retention" and await queue.fetchval("select agent.history_is_hypertable()"):
        pytest.skip("a hypertable drops whole chunks")
    said: list[str] = []

    def keep(_: object, message: object) -> None:
        said.append(f"{message} ")

    queue.add_log_listener(keep)
    transaction = queue.transaction()
    await transaction.start()
    try:
        for statement in ("alter sequence agent.event_id_seq restart", REFUSED, *before):
            await queue.execute(statement)
        await queue.execute(call)
        assert await queue.fetchval(good) == ["good"]
    finally:
        await transaction.rollback()
        queue.remove_log_listener(keep)
    assert any(named in each for each in said) == bool(named), said


@pytest.mark.parametrize(
    "change",
    [f"vt = '{each}'" for each in ("-infinity", "4000-01-01 BC")]
    + ["event_ts = '294000-01-01'", "event_ts = '4000-01-01 BC'", "enqueued_at = 'infinity'"],
)
async def test_a_time_beyond_pythons_stops_no_claim(queue: Connection, change: str) -> None:
    await queue.execute(
        "select agent.enqueue('mail', _item_key => 'bad'), agent.enqueue('mail', _item_key => 'good')"
    )
    await queue.execute(f"update agent.event set {change} where item_key = 'bad'")
    engine = Engine(queue)
    peek = await engine.peek_events(["mail"], timedelta(0))
    claimed = await engine.claim_events(["mail"], 2, worker="w1")
    assert {event.item_key for event in claimed} == {"bad", "good"}
    times = [vt for vt in peek.vts if vt is not None]
    for event in claimed:
        times += [event.vt, event.prior_vt or event.vt, event.event_ts, event.enqueued_at or event.vt]
    assert all(time.tzinfo for time in times)
