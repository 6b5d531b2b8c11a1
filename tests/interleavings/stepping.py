"""Step sessions statement by statement, and compare what becomes of the queue with what serial orders make of it."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from itertools import permutations
from typing import Any, NamedTuple, cast

import asyncpg

from surelane.calls import Connection
from tests.databases import Server
from tests.interleavings.calls import CALLS, IDLE, Oracle, Recorder
from tests.sql.conftest import NOTED
from tests.sql.test_model import CLOCK

TABLES = (
    *("event", "event_hist", "kind", "band", "kind_limit", "limit_state", "limit_note"),
    *("step", "signal", "worker", "request", "event_hist_outlier", "test_clock"),
)
SAVE = "create schema saved;" + "".join(f"create table saved.{t} as table agent.{t};" for t in TABLES)
RESTORE = """
select 'create function saved.restore() returns int8 language plpgsql set session_replication_role = replica'
    || ' as $$ begin ' || string_agg(format('delete from agent.%1$s;'
    'insert into agent.%1$s (%2$s) overriding system value select %2$s from saved.%1$s;', t.name, c.columns), '')
    || 'return setval(''agent.event_id_seq'', 10000); end $$'
from unnest($1::text[]) as t (name) cross join lateral (
    select string_agg(quote_ident(column_name), ', ') as columns from information_schema.columns
    where table_schema = 'agent' and table_name = t.name and is_generated = 'NEVER') as c
"""
"""Makes the function that fills the tables again, without their triggers."""
NAME = "regexp_replace(coalesce(item_key, kind || coalesce(enqueued_by, '')), ':rerun:\\d+|(?<=^two)\\d', '')"
ROW = (
    f"{NAME}, kind, group_key, head, date_trunc('minute', vt), attempts, array_upper(claimed, 1), claimed_by"
    ", date_trunc('minute', heartbeat_at), retrying"
    ", cancelled_by, jsonb_array_length(errors), lane < 0, waits_for, notes, event"
)
OUTCOME = f"""
with every as (select id, {NAME} as name from agent.event union all select id, {NAME} from agent.event_hist)
select jsonb_build_array('live', {ROW})::text from agent.event
union all select jsonb_build_array('ended', {ROW}, outcome, reason, result)::text from agent.event_hist
union all select jsonb_build_array('step', e.name, s.name, nth, sort, finished_at is null, date_trunc('minute', due_at)
    , case when s.sort = 'step' then s.result end)::text
    from agent.step as s join every as e on e.id = s.event_id
union all select jsonb_build_array('signal', e.name, s.name, taken_by)::text
    from agent.signal as s join every as e on e.id = s.event_id
union all select jsonb_build_array('paused', kind)::text from agent.kind where paused
union all select jsonb_build_array('limit', kind, concurrency, set_concurrency)::text from agent.kind_limit
union all select jsonb_build_array('worker', name, kinds, coalesce(session, 0) > 0, died_at is null)::text
    from agent.worker
union all select jsonb_build_array('runs', l.kind, l.limit_key, e.name)::text
    from agent.limit_state as l join agent.event as live on live.id = any(running) and live.claimed_by is not null
    join every as e on e.id = live.id
order by 1
"""
"""What the tables say, by names instead of ids, which the order of calls changes, and by the minute.

Events of the limited kind are alike: a claim takes any of them.
"""

EVERY = CALLS | IDLE

Outcome = tuple[str, ...]
Script = list[tuple[str, tuple[Any, ...]]]


class Plan(NamedTuple):
    """An order of the steps of sessions: each number is a session's next step, its call or its end."""

    order: tuple[int, ...]
    commits: tuple[bool, ...]


def plans(names: tuple[str, ...]) -> Iterator[Plan]:
    """Return all orders in which transactions overlap. At most one of them rolls back: one that has seen the others.

    Of calls that are alike, one order stands for those in which they have changed places.
    """
    sessions = range(len(names))
    for order in sorted(set(permutations([*sessions, *sessions]))):
        first = [order.index(nth) for nth in sessions]
        if any(
            names[i] == names[j] and first[i] > first[j] for i in sessions for j in range(i + 1, len(names))
        ):
            continue
        if any(order[nth] != order[nth + 1] for nth in range(0, len(order), 2)):
            yield Plan(order, tuple(True for _ in sessions))
            if order[-1] != order[0]:
                yield Plan(order, tuple(nth != order[0] for nth in sessions))


class Stand:
    """A queue to which calls are done in any order, from the same state each time."""

    def __init__(self, run: Callable[[Coroutine[Any, Any, Any]], Any], connections: list[Connection]) -> None:
        self.run, (self.admin, owner, self.observer, *self.sessions) = run, connections
        self.recorder = Recorder(owner)
        self.oracle = Oracle(cast("Any", self.recorder), self.observer, run)
        self.oracle.build()
        self.run(self.admin.execute(SAVE))
        self.restored = 0
        self.run(self.admin.execute(self.run(self.admin.fetchval(RESTORE, TABLES))))
        self.model, self.claims = self.oracle.model, self.oracle.claims
        self.scripts = {name: self.recorded(name) for name in EVERY}
        self.ends: dict[tuple[tuple[str, ...], tuple[str, ...]], Outcome] = {}

    def restore(self, *, modelled: bool = True) -> None:
        self.run(self.admin.fetchval("select saved.restore()"))
        self.restored += 1
        if self.restored % 100 == 0:
            self.run(self.admin.execute(f"vacuum {', '.join(f'agent.{table}' for table in TABLES)}"))
        self.oracle.model.now = self.model.now
        if modelled:
            self.oracle.model, self.oracle.claims = deepcopy(self.model), list(self.claims)

    def recorded(self, name: str) -> Script:
        """Return the statements of a call, without those by which the model reads the queue."""
        self.restore()
        self.recorder.sent.clear()
        EVERY[name].do(self.oracle)
        self.clean()
        return [sent for sent in self.recorder.sent if " from agent.event" not in sent[0]]

    def outcome(self) -> Outcome:
        rows: list[tuple[str]] = self.run(self.recorder.connection.fetch(OUTCOME))
        return tuple(row[0] for row in rows)

    def serial(self, names: tuple[str, ...], again: tuple[str, ...]) -> Outcome:
        """Do calls one after another: also to the model, which must say the same, if it knows all of them."""
        if (names, again) not in self.ends:
            modelled = all(EVERY[name].modelled for name in (*names, *again))
            self.restore(modelled=modelled)
            for name in (*names, "later", *again):
                if name == "later":
                    self.oracle.let_time_pass(1)
                elif modelled:
                    EVERY[name].do(self.oracle)
                else:
                    self.run(self.call(self.recorder.connection, self.scripts[name]))
            self.ends[names, again] = self.outcome()
            if modelled:
                self.oracle.both_are_the_same()
            self.clean()
        return self.ends[names, again]

    def clean(self) -> None:
        """End the sessions that a call has opened on these connections."""
        for connection in (self.recorder.connection, *self.sessions):
            self.run(
                connection.execute(
                    "select pg_advisory_unlock_all(), set_config('surelane.session', '', false)"
                )
            )

    def overlapping(self, names: tuple[str, ...], plan: Plan, again: tuple[str, ...]) -> Outcome | str:
        """Do calls in overlapping transactions. Return the outcome, or an error that no caller expects."""
        self.restore(modelled=False)
        told: list[str] = self.run(self.steps(names, plan))
        errors = [each for each in told if each not in ("done", "busy")]
        if errors:
            return errors[0]
        for nth, name in enumerate(names):
            if told[nth] == "busy" and plan.commits[nth]:
                self.run(self.send_again(name))
        self.oracle.let_time_pass(1)
        for name in again:
            self.run(self.send_again(name))
        if "open_session" in names:
            self.clean()
        return self.outcome()

    async def send_again(self, name: str) -> None:
        """Send a call that was busy, or that comes again by itself, until it is done."""
        for _ in range(3):
            if await self.call(self.recorder.connection, self.scripts[name]) == "done":
                return

    async def call(self, connection: Connection, script: Script) -> str:
        """Return ``done``, ``busy``, or what is wrong."""
        try:
            answers = [
                value
                for statement, arguments in script
                for row in await connection.fetch(statement, *arguments)
                for value in row.values()
            ]
        except asyncpg.LockNotAvailableError:
            return "busy"
        except asyncpg.PostgresError as error:
            return f"{type(error).__name__}: {error}"
        return "busy" if "busy" in answers or answers == [False] else "done"

    async def steps(self, names: tuple[str, ...], plan: Plan) -> list[str]:
        """Take the steps in the plan's order. A session that waits for a lock takes its next step afterwards."""
        told = [""] * len(names)
        tasks: list[asyncio.Task[None] | None] = [None] * len(names)

        async def step(nth: int, before: asyncio.Task[None] | None) -> None:
            if before is not None:
                await before
            connection = self.sessions[nth]
            if not told[nth]:
                await connection.execute("begin")
                told[nth] = await self.call(connection, self.scripts[names[nth]])
                return
            try:
                await connection.execute("commit" if plan.commits[nth] else "rollback")
            except asyncpg.PostgresError as error:
                told[nth] = f"{type(error).__name__}: {error}"

        async with asyncio.timeout(60):
            for nth in plan.order:
                tasks[nth] = asyncio.create_task(step(nth, tasks[nth]))
                await self.ends_or_waits(tasks[nth], self.sessions[nth])
            await asyncio.gather(*(task for task in tasks if task is not None))
        return told

    async def ends_or_waits(self, task: asyncio.Task[None] | None, session: Connection) -> None:
        """Wait until a step has ended, or another session blocks it."""
        assert task is not None
        blocked = "select cardinality(pg_blocking_pids($1)) > 0"
        while not task.done():
            if await self.observer.fetchval(blocked, session.get_server_pid()):
                return

    def wrong(self, names: tuple[str, ...]) -> list[str]:
        """Try all orders of some calls. Return what no serial order explains."""
        again = tuple(name for name in dict.fromkeys(names) if EVERY[name].again)
        if again:
            again = (*again, "sweep_events")
        found = []
        for plan in plans(names):
            kept = [name for name, commits in zip(names, plan.commits, strict=True) if commits]
            # What rolled back and comes again may come before the others.
            every = [name for name in names if name in kept or EVERY[name].again]
            orders = {*permutations(kept), *permutations(every)}
            serial = [self.serial(order, again) for order in sorted(orders)]
            got = self.overlapping(names, plan, again)
            if got not in serial:
                found.append(f"{names} {plan}: {explained(got, serial)}")
        return found


def explained(got: Outcome | str, serial: Iterable[Outcome]) -> str:
    """Say how an outcome differs from the nearest serial one."""
    if isinstance(got, str):
        return got
    nearest = min(serial, key=lambda each: len(set(each) ^ set(got)))
    lines = [f"only so: {row}" for row in sorted(set(got) - set(nearest))]
    return "\n  ".join(["", *lines, *(f"only serial: {row}" for row in sorted(set(nearest) - set(got)))])


@contextmanager
def stand(server: Server, database: str, sessions: int = 2) -> Iterator[Stand]:
    """Fill a database, and connect to it: as a superuser, who restores it, and as its owner."""
    name = database.partition("?")[0].rpartition("/")[2]
    with asyncio.Runner() as runner:
        admin = runner.run(asyncpg.connect(server.admin, database=name))
        runner.run(admin.execute(f"alter database {name} set deadlock_timeout = '100ms'"))
        connections = [admin, *(runner.run(asyncpg.connect(database)) for _ in range(2 + sessions))]
        try:
            runner.run(connections[1].execute(CLOCK + NOTED))
            yield Stand(runner.run, connections)
        finally:
            for connection in connections:
                runner.run(connection.close())
