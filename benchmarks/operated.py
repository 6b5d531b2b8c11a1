"""Fill a database as a queue that was in use for 90 days: a long history, and a deep queue."""

from collections.abc import Callable

from surelane.calls import Connection

STEP = 100_000
"""Events of history per statement."""

# A number from 0 to 1 per event and purpose: always the same, and cheaper than random().
_U = "((hashint8extended(n, {0}) & 65535) / 65536.0)"
_SPREAD = f"""
    cross join lateral (
        select floor(1000 * {_U.format(1)} ^ 3)::int4, floor(40 * {_U.format(2)} ^ 2)::int4
        , floor(200 * {_U.format(3)} ^ 2)::int4
        , {_U.format(4)}, {_U.format(5)}, {_U.format(6)}
    ) as spread (workspace, channel, member, kind_at, end_at, length_at)
    cross join lateral (
        select case when kind_at < 0.35 then 'slack.app_mention' when kind_at < 0.65 then 'slack.message.im'
            when kind_at < 0.85 then 'agent-turn' when kind_at < 0.95 then 'dispatch'
            when kind_at < 0.999 then 'mail' else 'report' end
        , jsonb_build_object('type', 'event_callback', 'team_id', 'T' || workspace, 'event_id', 'Ev' || n
            , 'event', jsonb_build_object('type', 'app_mention', 'user', 'U' || workspace || 'x' || member
                , 'channel', 'C' || workspace || 'x' || channel, 'text', repeat('word ', 5 + (40 * length_at)::int4)))
    ) as drawn (kind, payload)
"""
# Few workspaces have most events, as have few channels of each. 1.4 in a hundred failed, in four ways; some waited for
# hours. Every 500th event is a continuation, and the 40 after it are its children.
_HISTORY = f"""
    insert into agent.event_hist (id, event_ts, attempts, vt, claimed, event, kind, item_key, group_key, head, lane
    , enqueued_at, enqueued_by, claimed_by, retrying, errors, outcome, reason, finished_at, finished_by, continuation_id
    , waits_for)
    select n, t, case when end_at < 0.03 then 3 else 1 end, t, array[t], payload, kind
    , 'Ev' || n, 'T' || workspace || ':C' || workspace || 'x' || channel || ':' || n / 5000, true, n % 16
    , t, 'bench', 'worker-' || n % 10, false
    , case when end_at < 0.015 then jsonb_build_array(jsonb_build_object('type', 'LookupError', 'message'
        , (array['no such order', 'the model is overloaded', 'channel_not_found', 'timeout after 30 s'])[1 + n % 4]
        || ' ' || n)) else '[]' end
    , case when end_at < 0.014 then 'failed' when end_at < 0.018 then 'cancelled'
        when end_at < 0.02 then 'expired' else 'completed' end
    , case when end_at between 0.014 and 0.02 then 'said so by ada' end
    , t + interval '1 second' * (0.2 + 20 * length_at ^ 4)
        + case when n % 1000 = 7 then interval '9 hours' else interval '0' end
    , 'worker-' || n % 10
    , case when n % 500 between 1 and 40 then n / 500 * 500 end, case when n % 500 = 0 then 0 end
    from generate_series($1::int8, $2::int8) as n
    cross join lateral (select now() - $4 * interval '1 day' * (1 - n / $3::float8)) as moment (t)
    {_SPREAD}
"""
_STEPS = """
    insert into agent.step (event_id, name, nth, sort, event_ts, result, attempt, started_at, finished_at)
    select n, 'look up', 1, 'step', now(), '"found"', 1, now(), now() from generate_series(1, $1::int8, 20) as n
"""
# Of a hundred events 83 are pending, 5 wait behind one thread, 10 are children, 2 are scheduled.
_LIVE = f"""
    insert into agent.event (id, event_ts, vt, event, kind, item_key, group_key, head, lane, continuation_id
    , enqueued_at)
    select n, t, case when n % 100 > 97 then t + interval '1 day' else t end, payload, kind, 'Ev' || n
    , case when n % 100 < 5 then 'T1:C1:crowd' end, n % 100 >= 5 or n = $1, n % 16
    , case when n % 100 between 50 and 59 then $1 + $2 + n / 5000 end, t
    from generate_series($1::int8, $1::int8 + $2 - 1) as n
    cross join lateral (select now() - interval '1 millisecond' * ($1 + $2 - n)) as moment (t)
    {_SPREAD}
"""
_JOINS = """
    insert into agent.event (id, event_ts, vt, event, kind, head, lane, waits_for)
    select distinct continuation_id, now(), timestamptz 'infinity', jsonb '{}', 'join', true, 0, 500
    from agent.event where continuation_id is not null
"""
_RUNNING = """
    update agent.event set attempts = 1, claimed = array[now()], claimed_by = 'worker-' || id % 10, heartbeat_at = now()
    , vt = now() + interval '1 hour' where id in (select id from agent.event where group_key is null limit 200)
"""
_QUESTIONS = """
    with asking as (
        update agent.event set vt = now() + interval '1 day'
        where id in (select id from agent.event where group_key is null and claimed_by is null limit 500) returning id
    ), asked as (
        insert into agent.step (event_id, name, nth, sort, event_ts, result, attempt, started_at, finished_at)
        select id, 'ask:1 asked', 1, 'step', now(), '{"text": "Shall I?", "choices": ["Yes", "No"], "by": null}', 1
        , now(), now()
        from asking
    )
    insert into agent.step (event_id, name, nth, sort, event_ts, attempt, started_at)
    select id, 'ask:1', 1, 'wait', now(), 1, now() from asking
"""
_INDEXES = (
    "select indexname, indexdef from pg_indexes where schemaname = 'agent' and tablename = 'event_hist'"
)


async def operate(
    admin: Connection, history: int, live: int, say: Callable[[str], None], days: int = 90
) -> None:
    """Fill a migrated database. The indexes of history are made after its rows, which takes a third of the time.

    Args:
        admin: a superuser's connection.
        history: events that ended, in the last ``days``.
        live: events of the queue.
        say: takes a line about the progress.
        days: how far history goes back.
    """
    # Without the triggers: their speed is not measured here.
    await admin.execute("set session_replication_role = replica; set synchronous_commit = off; set jit = off")
    await admin.execute(
        "insert into agent.kind (kind) select unnest(array['slack.app_mention', 'slack.message.im', 'agent-turn'"
        ", 'dispatch', 'mail', 'report', 'join'])"
    )
    indexes = await admin.fetch(_INDEXES)
    for name, _ in indexes:
        await admin.execute(f"drop index agent.{name}")
    for first in range(1, history + 1, STEP):
        await admin.execute(_HISTORY, first, min(first + STEP - 1, history), history, days)
        if (first + STEP - 1) % 1_000_000 == 0:
            say(f"{first + STEP - 1:,} events of history")
    await admin.execute("set maintenance_work_mem = '256MB'")
    for name, definition in indexes:
        await admin.execute(definition)
        say(f"index {name}")
    await admin.execute(_STEPS, history)
    await admin.execute(_LIVE, history + 1, live)
    await admin.execute(_JOINS)
    await admin.execute(_RUNNING)
    await admin.execute(_QUESTIONS)
    await admin.execute("select setval('agent.event_id_seq', $1)", 2 * (history + live))
    for number in range(10):
        await admin.execute(
            "select agent.announce_worker($1, (select array_agg(kind) from agent.kind), '1.0.0', interval '0', 3)",
            f"worker-{number}",
        )
    await admin.execute("reset session_replication_role")
    say(f"filled with {history:,} events of history and {live:,} live ones")
