"""One bad item stops no others, and is named; what makes no sense is refused, and no payload is quoted."""

import json
from collections.abc import Sequence
from datetime import timedelta

import asyncpg
import pytest

from surelane.calls import Connection, Row
from surelane_operator.reads.events import Reads
from surelane_operator.reads.feedback import list_feedback
from surelane_service.engine import Engine
from tests.sql.conftest import Connect

REFUSED = r"""
create function public.refuse() returns trigger language plpgsql as $$ begin
if coalesce(old, new)::text ~ '\mbad\M' then raise check_violation using message = 'theirs'; end if;
return coalesce(new, old); end $$;
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
NOW = "set constraints all immediate"
JOINS = "insert into agent.event (event_ts, kind, event, group_key)"
SWEEP = "select agent.sweep_events()"
BOTH = "from unnest(array['bad', 'good']) as kind"
GONE = "select array_agg('good'::text) from agent.{} having array_agg({}) = array['bad']"
KINDS = "select array_agg(kind) from agent."
MEMBER = "insert into agent.event (event_ts, kind, event, head, lane, group_key)"
SWEPT: dict[str, tuple[str, str, str]] = {
    "insert on agent.kind": (f"{TWO}; delete from agent.kind", f"{KINDS}kind", "kind bad "),
    "insert on agent.band": (f"{TWO}; update agent.event set lane = 20", f"{KINDS}band", "band (bad,2"),
    "insert on agent.kind_limit": (
        f"{TWO}; update agent.event set lane = -1",
        f"{KINDS}kind_limit",
        "kind bad ",
    ),
    "insert on agent.limit_note": (
        *(f"insert into agent.kind_limit (kind, concurrency) select kind, 1 {BOTH}", f"{KINDS}limit_note"),
        "kind bad ",
    ),
    "delete on agent.kind_limit": (
        *(f"insert into agent.kind_limit (kind) select kind {BOTH}", GONE.format("kind_limit", "kind")),
        "kind_limit (",
    ),
    "delete on agent.limit_state": (
        f"insert into agent.limit_state (kind, limit_key, at) select kind, 'kind', '2020-01-01' {BOTH}",
        *(GONE.format("limit_state", "kind"), "limit_state ("),
    ),
    "delete on agent.band": (
        f"insert into agent.band (kind, band) select kind, 1 {BOTH}, generate_series(1, 2)",
        f"{KINDS}band as b where not exists (select from agent.band where kind = b.kind and ctid <> b.ctid)",
        "band (",
    ),
    "delete or update on agent.band": (
        f"insert into agent.band (kind, band, workspace) select kind, 0, 'T1' {BOTH}",
        *(GONE.format("band", "kind"), "kind bad "),
    ),
    "delete on agent.request": (
        f"insert into agent.request select 1, kind, '2020-01-01' {BOTH}",
        *(GONE.format("request", "channel"), "request ("),
    ),
    "update on agent.event": (
        f"{MEMBER} select now(), kind, '{{}}', false, 1, kind {BOTH}",
        *(f"{KINDS}event where head", "event 1 "),
    ),
}
"""What a sweep does to two rows; before it: the rows, what shows that the good one is done, what names the other."""
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
    **{
        f"sweep: {deed}": ((before, ON.format(deed)), SWEEP, good, named)
        for deed, (before, good, named) in SWEPT.items()
    },
    "newcomers": (
        (
            *("select agent.enqueue('bad', _group_key => 'g')", NOW, "set constraints all deferred"),
            ON.format("update on agent.event"),
        ),
        f"{JOINS} values ('2020-01-01', 'good', '{{}}', 'g'); {NOW}",
        *(f"{LIVE} where kind = 'good'", "group of event "),
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


DEEP = """
with turn as (
    insert into agent.event_hist (id, event_ts, attempts, vt, claimed, event, kind, item_key, head, lane, enqueued_at
    , enqueued_by, retrying, errors, result, outcome, finished_at)
    select n, now(), 1, now(), '{}', case n when 1 then '{"deep": ' || repeat('[', 1500) || repeat(']', 1500) || '}'
        else json_build_object('text', repeat('x', 100000))::text end::jsonb, 'mail', 'key ' || n, true, 0, now(), 'x'
    , false, '[]', '{"answer": "yes"}', 'completed', now() from generate_series(1, 3) as n returning id)
insert into agent.feedback (event_id, owner_id, user_id, channel, kind, version, model, rating, click, at)
select id, 'T1', 'U1', 'C1', 'mail', '1', 'm', 1, 0, now() from turn
"""


async def test_a_payload_that_python_cannot_read_hides_no_rating_and_turns_are_read_alone(
    queue: Connection, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queue.execute(DEEP)
    reads, sizes = Reads(await connect("surelane_operator")), list[int]()
    fetch = reads.calls.fetch

    async def measured(query: str, *arguments: object) -> list[Row]:
        rows = await fetch(query, *arguments)
        sizes.append(len(str([tuple(row) for row in rows])))
        return rows

    monkeypatch.setattr(reads.calls, "fetch", measured)
    found = [each async for each in list_feedback(reads, None, None, None)]
    assert [(each["key"], each["answer"]) for each in found] == [(f"key {n}", "yes") for n in (3, 2, 1)]
    assert max(sizes) < 150_000
    event = await reads.look(1)
    assert event is not None
    assert event["payload"].startswith('{"deep": [[')


SECRET = "'{\"secret\": 1}'"
NO_IDS: tuple[dict[str, str], ...] = ({}, {"user": ""}, {"user": "U%"}, {"user": "U''"}, {"user": "x" * 51})
ERASURES = (("preview", ")"), ("begin", ", null)"))
NO_TIMESTAMPS = {
    "text": (
        *("", " ", "abc", "1469470591.75.1", "1e9", "0x10", "NaN", "Infinity", "٣", "1469470591,5", "-" * 50),
        "1469470591759709",
    ),
    "numeric": ("NaN", "Infinity", "-Infinity", "1469470591759", "-300000000000", "1469470591759709"),
}
SENSELESS = {
    "has 1 to 200 characters": (
        *("enqueue('')", f"enqueue('{'x' * 201}')", "enqueue(null)"),
        f"set_cron('', 'tick', '* * * * *', now(), {SECRET})",
        f"set_cron('n', '', '* * * * *', now(), {SECRET})",
    ),
    "a job cannot run at infinity": ["enqueue('job', _run_at => 'infinity')"],
    "before the year 10000": ["enqueue('job', _run_at => '294000-01-01')"],
    "between the years 1 and 10000": [
        f"enqueue('job', _deadline => '{each}')" for each in ("294000-01-01", "4000-01-01 BC")
    ],
    "cannot be rescheduled to": [
        f"reschedule_event('1', '{each}')" for each in ("294000-01-01", "infinity", "-infinity")
    ],
    "max_attempts is at least 1": (
        "enqueue('job', _run_at => '-infinity', _max_attempts => 0)",
        f"enqueue('job', {SECRET}, _max_attempts => -1)",
    ),
    "skip, replace or earliest": ["enqueue('job', _on_duplicate => 'explode')"],
    "none, one, all or a number": [f"set_cron('n', 'a', '* * * * *', now(), {SECRET}, _catch_up => 'never')"],
    "a schedule has fields": [f"set_cron('n', 'tick', null, now(), {SECRET})"],
    "name a user|an id to erase has": [
        f"{call}_erasure('{json.dumps(names)}'{more}" for call, more in ERASURES for names in NO_IDS
    ],
    "every claim has an outcome: complete": ["settle(array[1::int8], array[1], '{}')"],
    "JSON object": [f"set_cron('c', 'k', '* * * * *', now(), '{each}')" for each in ("[]", "1", "null")],
    "an event is a JSON object": (
        *("insert_event('[]')", "insert_event('\"text\"')", "insert_event('1')", "insert_event('null')"),
        "insert_event(null)",
        *(f"insert_events(array['{{}}', {each}]::jsonb[])" for each in ("'[]'", "'1'", "null")),
    ),
    "^concurrency ": [f"set_limit('job', {each}, null, null, null)" for each in (-1, 10001)],
    "^rate ": [
        f"set_limit('job', null, {each})"
        for each in ("5, null, null", "1000001, '1s', null", "5, '2 days', null", "null, '1m', null")
    ],
    "^per ": ["set_limit('job', null, null, null, 'team')"],
    "priority is 0, 1, 2 or 3": (
        *(
            f"""enqueue_jobs('[{{"kind": "a"}}, {{"kind": "a", "priority": {each}}}]')"""
            for each in ("-1", "4", "1.5", '"high"', "true", "[1]")
        ),
        "set_cron('n', 'k', '* * * * *', now(), '{}', 'UTC', 'one', false, 4)",
    ),
    "at least 3 days": [f"drop_history({age})" for age in ("null", "'-1 days'", "'1 day'")],
    "not a Unix timestamp in seconds": [
        f"to_timestamptz('{each}'::{type_})" for type_, texts in NO_TIMESTAMPS.items() for each in texts
    ],
    "has no Unix timestamp": ["from_timestamptz('infinity')"],
}


@pytest.mark.parametrize(
    ("match", "call"), [(match, call) for match in SENSELESS for call in SENSELESS[match]]
)
async def test_a_call_that_makes_no_sense_is_refused(queue: Connection, match: str, call: str) -> None:
    with pytest.raises(asyncpg.InvalidParameterValueError, match=match) as error:
        await queue.execute(f"select agent.{call}")
    assert "secret" not in f"{error.value} {error.value.detail} {error.value.hint}"
    assert await queue.fetchval("select count(*) from agent.event") == 0
