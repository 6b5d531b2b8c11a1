"""``surelane verify``: look in a live database for what the queue's rules exclude.

Each check is one bounded statement that reads one snapshot. A finding counts if a second look has it, too: sessions and
clocks are in no snapshot.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from surelane.calls import Connection, translating
from surelane.errors import Conflict, DatabaseUnavailable
from surelane_operator.doctor.finding import Finding, Level, ok

ROWS = 10_000
"""Rows that a check looks at, at most, unless told otherwise."""
QUICK = 1_000
"""The same for the doctor, which looks every minute."""
BOUNDS = "set local statement_timeout = '10s'; set local lock_timeout = '1s'; set local jit = off"
AGAIN = 1.0
"""Seconds between the two looks."""
NAMED = 5
"""The most rows that a finding names."""


@dataclass(frozen=True, slots=True)
class Check:
    """A rule. ``wrong`` selects the names of the rows that break it, among those that ``looked`` selects.

    A name is the same in both looks. A ``quick`` check is one of the doctor's, too.
    """

    name: str
    looked: str
    wrong: str
    means: str
    advice: str
    quick: bool = False


_SWEEPS = (
    "a worker's next sweep mends this; if it stays, no worker sweeps, or a transaction has the rows locked"
)
_BY_HAND = "find what changed these rows other than by the functions, or which backup was restored on top"
_CLAIMS = """select id, kind, vt, claimed, claimed_by, heartbeat_at, lane, head, changes #>> '{0,limit_key}' as key
    from agent.event where attempts > 0 and vt > agent.clock() and claimed_by is not null order by vt"""
CHECKS = (
    Check(
        "group heads",
        """select key from (with recursive walk (key) as (
            (select group_key from agent.event where not head order by group_key limit 1) union all
            select (select group_key from agent.event where not head and group_key > key order by group_key limit 1)
            from walk where key is not null) select key from walk where key is not null) as groups""",
        """select 'group ' || key from looked left join agent.event as h on h.group_key = key and h.head
        where h.id is null or exists (select from agent.event as m where m.group_key = key and not m.head and (
            m.claimed_by is not null and (h.claimed_by is null or m.vt > agent.clock() and m.claimed_by <> h.claimed_by)
            or h.claimed_by is null and not h.retrying and m.kind = h.kind
            and (m.retrying or m.vt < agent.clock() - interval '5 s' and h.vt > agent.clock() + interval '5 s')))""",
        "groups without a head, with two hands, or whose head is not the first that may run",
        f"{_SWEEPS}: select agent.free_groups()",
        quick=True,
    ),
    Check(
        "claims",
        _CLAIMS,
        """select format('event %s, claim %s of %s', e.id, array_upper(e.claimed, 1), e.claimed_by)
        from looked as e left join agent.list_workers() as w on w.name = e.claimed_by
        where e.heartbeat_at < agent.clock() - interval '7 min'
        or w.state = 'died' and w.died_at < agent.clock() - interval '30 s'
        or w.state = 'lost' and w.seen_at < agent.clock() - interval '90 s'""",
        "claims of workers that are gone",
        "start a worker, which ends them; if one runs, end the transaction that has these rows locked",
        quick=True,
    ),
    Check(
        "limit slots",
        _CLAIMS,
        # A run from before a change of the limit goes on to its end.
        """select 'event ' || e.id from looked as e join agent.list_limits() as l on l.kind = e.kind
        where e.lane < 0 and e.head and l.concurrency is not null and e.claimed[array_upper(e.claimed, 1)] > coalesce(
            greatest(l.set_at, (select max(started_at) from agent.worker where e.kind = any(kinds))), '-infinity')
        and (select e.id = any(s.running) from agent.limit_state as s where s.kind = e.kind and s.limit_key = e.key
            order by s.at desc limit 1) is not true""",
        "running events that their limit does not count, so that more may run than it allows",
        f"the limit holds again once they have ended; {_BY_HAND}",
        quick=True,
    ),
    Check(
        "reachable",
        """select id, kind, lane, vt, claimed_by, cancelled_by, attempts, max_attempts, waits_for
        , changes #>> '{0,limit_key}' as key from agent.event where head order by id""",
        """select 'event ' || e.id from looked as e left join agent.kind as k on k.kind = e.kind
        where k.kind is null or e.waits_for > (select count(*) from agent.event as c where c.continuation_id = e.id)
        or e.lane < 0 and e.claimed_by is null and e.cancelled_by is null and not k.paused
        and e.vt < agent.clock() - interval '5 min' and e.attempts < coalesce(e.max_attempts, k.max_attempts, 3)
        and not exists (select from agent.limit_note as n where n.kind = e.kind and n.limit_key in (e.key, ''))""",
        "events that no claim finds: their kind or their limit's note is missing, or their children are gone",
        _SWEEPS,
    ),
    Check(
        "cancelled",
        "select id, attempts, claimed_by, cancelled_by from agent.event order by id",
        # With an attempt, sweeps end it.
        """select 'event ' || e.id from looked as e
        where e.cancelled_by is not null and e.claimed_by is null and e.attempts = 0""",
        "events that were asked to end as they ran, and now do not run: their threads wait behind them",
        "cancel them again: surelane events cancel ID",
    ),
    Check(
        "one row a key",
        """select * from (
            (select id, item_key, event_ts, changes, true as live from agent.event order by id desc limit ($1 + 1) / 2)
            union all
            (select id, item_key, event_ts, changes, false from agent.event_hist order by id desc limit ($1 + 1) / 2)
            ) as e""",
        # A program may use a key again, and a run that continues as a new one keeps it, with its children's.
        """select distinct 'event ' || e.id from looked as e
        where exists (select from agent.event_hist as h where h.id = e.id and (e.live or h.event_ts <> e.event_ts))
        or e.item_key like 'Ev%' and e.item_key not like '%:%'
        and not jsonb_path_exists(e.changes, '$[*] ? (@.action starts with "continu")')
        and exists (select from agent.event_hist as h where h.item_key = e.item_key and h.id <> e.id
            and h.event_ts between e.event_ts - interval '1 day' and e.event_ts + interval '1 day')""",
        "events that are live and ended, or ended twice",
        f"cancel what is live and done; {_BY_HAND}",
    ),
    Check(
        "open messages",
        "select id, item_key, notes, finished_at from agent.event_hist order by id desc",
        """select 'event ' || e.id from looked as e
        where jsonb_path_exists(e.notes, '$.streams.* ? (@.stopped == false && exists (@.channel))') and not exists (
            select from agent.job as c where c.kind = 'surelane.close'
            and c.enqueued_by = coalesce(e.item_key, e.id::text)
            and coalesce(c.finished_at, 'infinity') >= e.finished_at)""",
        "ended events that left a streamed message open in Slack, which no job closes",
        "a trigger of agent.event_hist is missing or off: alter table agent.event_hist enable trigger all",
    ),
    Check(
        "steps",
        "select event_id, event_ts from agent.step order by event_ts desc",
        """select distinct 'event ' || s.event_id from looked as s
        where s.event_ts > agent.clock() - coalesce((select older_than from agent.retention), interval '100 years')
        and not exists (select from agent.event as e where e.id = s.event_id)
        and not exists (select from agent.event_hist as h where h.id = s.event_id)""",
        "steps and waits of events that are gone",
        f"they stay until they are deleted from agent.step; {_BY_HAND}",
    ),
    Check(
        "partitions",
        "select from pg_extension where extname = 'timescaledb'",
        """select 'agent.event_hist' from looked where exists (select from agent.event_hist)
        and not exists (select from pg_inherits where inhparent = 'agent.event_hist'::regclass)""",
        "history is no hypertable, although TimescaleDB is there",
        "run: python -m surelane_migrations apply --again",
    ),
)


async def look(connection: Connection, check: Check, rows: int) -> Sequence[Finding]:
    """Look once, and again at what is wrong. ``rows`` bounds how many it looks at."""
    try:
        looked, wrong = await _looked(connection, check, rows)
        if wrong:
            await asyncio.sleep(AGAIN)
            again = (await _looked(connection, check, rows))[1]
            wrong = sorted(set(wrong).intersection(again))
    except (Conflict, DatabaseUnavailable) as error:  # a lock, or time ran out
        if connection.is_closed():
            raise
        found = f"it was given up: {error}"
        return [Finding(check.name, Level.UNKNOWN, found, "run it again, or with fewer --rows")]
    among = f"the first {looked:,}" if looked == rows else f"{looked:,}"
    if not wrong:
        return [ok(check.name, f"{among} looked at")]
    named = "; ".join(wrong[:NAMED]) + ("; …" if len(wrong) > NAMED else "")
    found = f"{len(wrong):,} of {among}: {check.means}: {named}"
    return [Finding(check.name, Level.PROBLEM, found, check.advice)]


async def _looked(connection: Connection, check: Check, rows: int) -> tuple[int, list[str]]:
    """Return how many rows a check has looked at, and the names of those that are wrong."""
    with translating():
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            await connection.execute(BOUNDS)
            (row,) = await connection.fetch(
                f"with looked as materialized ({check.looked} limit $1)"  # noqa: S608 - constants
                f" select (select count(*) from looked) as looked, array({check.wrong}) as wrong",
                rows,
            )
    return row["looked"], row["wrong"]
