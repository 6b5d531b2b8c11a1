"""``surelane workspaces move``: move a workspace to another installation.

Its live events move with their steps. So does what ended within the last hour, because by it an event that comes again
is recognized. First, a schema of its own in the target gets copies. Then one transaction publishes them there, and
another one deletes the rows here. The second commits first, and notes the move. If the move is interrupted, its
repetition reads the note: it publishes the copies if the rows are gone here, and drops them otherwise. So an event can
never be claimed in both installations.
"""

import asyncio
import json
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable
from tempfile import TemporaryFile

from surelane.calls import Connection
from surelane.errors import Conflict, DatabaseRefused, Forbidden, InvalidInput
from surelane_operator.audit import current_actor

BLOCK = 1_000_000_000_000
"""Each installation numbers its events from a multiple of this on, so that no number means two events."""
_PAUSE = 1.0
"""Seconds between looks at events that run."""
_SOON = 0.1
"""Seconds until locked events are freed."""
_WITHIN = 600.0
"""Seconds for a statement that takes all rows."""
_LIVE = """with recursive own as (
    select id from agent.event where agent.event_workspace(event) = $1
    union select child.id from own join agent.event as child on child.continuation_id = own.id
) select id from own"""
_HEADS = """select id from agent.event where head and claimed_by is null
and (id = any($1) or group_key in (select group_key from agent.event where id = any($1)))
order by id for update skip locked"""
_LOCK = """select id from agent.event where id = any($1) and claimed_by is null
and (head or group_key in (select group_key from agent.event where id = any($2))) order by id for update skip locked"""
_KEEP_TOKENS = "select from agent.installation where owner_id = '{}' and not enterprise_wide for update"
_REFRESHING = """select exists (select from agent.installation
where owner_id = $1 and not enterprise_wide and refreshing_until > agent.clock())"""
_PARENT = """select min(parent.id) from agent.event as child
join agent.event as parent on parent.id = child.continuation_id
where child.id = any($1) and parent.id <> all($1)"""
_RECENT = """select id from agent.event_hist where outcome in ('completed', 'failed', 'expired', 'cancelled')
and finished_at > agent.clock() - interval '1 hour' and agent.event_workspace(event) = $1"""
_LIVE_AND_CHILDREN = (
    "select unnest($2::int8[]) union select id from agent.event_hist where continuation_id = any($2)"
)
_USED = """select min(id) from unnest($1::int8[]) as given (id) cross join agent.event_id_seq as last
where (id > last_value or not is_called) and id / $2 = last_value / $2
or exists (select from agent.event as e where e.id = given.id)
or exists (select from agent.event_hist as h where h.id = given.id)"""
_LACKING = """with here as (
    select substr(sealed, 2, 8) as id from agent.installation union select substr(sealed, 2, 8) from agent.data_key
), came as (
    select substr(sealed, 2, 8) as id from {0}.installation union select substr(sealed, 2, 8) from {0}.data_key
) select encode(id, 'hex') from came where exists (select from here) and id not in (select id from here) limit 1"""
_IDENTITY = "select current_database() || ' of server ' || system_identifier from pg_control_system()"
_ROWS = "select * from agent.{} where {}"
_CHECKSUM = "select count(*), coalesce(sum(hashtextextended(moved::text, 0)), 0)::text from {} as moved"
_TAKEN = """select came.id, there.id as there, coalesce(case when there.item_key = came.item_key then came.item_key end
, came.dedupe_key) as key from {0}.event as came join agent.event as there on there.item_key = came.item_key
or there.dedupe_key = came.dedupe_key and came.claimed = '{{}}' and there.claimed = '{{}}'
where came.kind !~ '^(slack[.]|trigger-fire$)' or came.claimed <> '{{}}' and there.claimed <> '{{}}' limit 1"""

Told = Callable[[str], None]
"""Is told what a move waits for."""


async def move(source: Connection, target: Connection, team: str, told: Told) -> Counter[str]:
    """Move a workspace. Return how many rows of each table went. Both connections are owners' of their installations.

    The target holds the workspace's events meanwhile, also those that the router already passes there. What runs ends
    first. What a move that was interrupted has left is finished, in either direction, and what came meanwhile follows.

    Raises:
        Conflict: another move is under way, or an event's number or key exists in the target. Nothing was moved.
        Forbidden: a connection is not the owner's.
        InvalidInput: the installations do not fit together.
    """
    if not team.isalnum():
        raise InvalidInput("a workspace's id has letters and digits alone, such as T012AB3CD")
    for connection in (source, target):
        await connection.execute("set timezone = 'UTC'; set datestyle = 'ISO'")
        if not await connection.fetchval(
            "select pg_has_role(relowner, 'usage') from pg_class where oid = 'agent.event'::regclass"
        ):
            raise Forbidden("a workspace is moved by the owners of both schemas")
        if not await connection.fetchval("select pg_try_advisory_lock(hashtextextended('agent.move', 0))"):
            raise Conflict("another move is under way, or both are one database")
    versions = [await each.fetchval("select version from agent.version") for each in (source, target)]
    if versions[0] != versions[1]:
        raise InvalidInput(f"this schema is of release {versions[0]}, the target's of {versions[1]}")
    tables = await source.fetch("select name, condition from agent.moving_tables($1)", team)
    conditions = {row["name"]: row["condition"] for row in tables}
    await _Move(target, source, team, told, conditions).finish_earlier()  # the workspace goes back
    moving = _Move(source, target, team, told, conditions)
    await hold(target, team, told)
    await moving.finish_earlier()
    while await moving.has_rows():
        await moving.once()
    for each in (target, source):  # a move that was given up has held it here
        while await each.fetchval("select agent.free_workspace($1)", team):  # noqa: ASYNC110 - rows
            await asyncio.sleep(_SOON)
    return moving.moved


async def hold(target: Connection, team: str, told: Told) -> None:
    """Hold what a workspace has in an installation, and what comes, until a move to it has ended."""
    while running := await target.fetchval("select agent.hold_workspace($1)", team):
        told(f"waiting for {running} events that run there")
        await asyncio.sleep(_PAUSE)


class _Move:
    def __init__(
        self, source: Connection, target: Connection, team: str, told: Told, tables: dict[str, str]
    ) -> None:
        """``tables``: what moves, in the order of publishing: a condition for the rows of each."""
        self.source, self.target, self.team, self.told, self.tables = source, target, team, told, tables
        self.moved = Counter[str]()
        self.schema = f"move_{team}"
        self.copies = f'"{self.schema}"'

    async def finish_earlier(self) -> None:
        """Publish or drop the copies of a move that was interrupted."""
        left = await self.target.fetchval(
            "select obj_description(oid, 'pg_namespace') from pg_namespace where nspname = $1",
            self.schema,
        )
        if left is None:
            return
        noted = json.loads(left)
        if noted["from"] != (here := await self._identity()):
            raise InvalidInput(
                f"a move from {noted['from']} is unfinished, and this is {here}: repeat that one first"
            )
        if await self.source.fetchval(
            "select exists (select from agent.operator_action where action = 'move' and detail ->> 'move' = $1)",
            noted["move"],
        ):
            async with self.target.transaction():
                await self._publish()
            self.moved.update(noted["rows"])
        else:
            await self.target.execute(f"drop schema {self.copies} cascade")

    async def has_rows(self) -> bool:
        """Return whether the workspace still has rows here that a move takes."""
        owned = (_ROWS.format(*each) for each in self.tables.items() if "owner_id" in each[1])
        here = " or ".join(f"exists ({rows})" for rows in (_LIVE, _RECENT, *owned))
        return bool(await self.source.fetchval(f"select {here}", self.team))

    async def once(self) -> None:
        """Move what is here now."""
        commit = await self._hold()
        async with self.target.transaction():
            await self.target.execute(f"create schema {self.copies}")
            rows = {table: await self._copy(table) for table in self.tables}
            noted = {"move": secrets.token_hex(16), "from": await self._identity(), "rows": rows}
            if lacking := await self.target.fetchval(_LACKING.format(self.copies)):
                raise InvalidInput(
                    f"no row there is encrypted with the key {lacking}: give both the same SURELANE_ENCRYPTION_KEYS"
                )
            await self.target.execute(f"comment on schema {self.copies} is $json${json.dumps(noted)}$json$")
        async with self.target.transaction():
            await self._publish()
            given = self.team, current_actor().name, json.dumps(noted), json.dumps(rows)
            await self.source.execute("select agent.delete_moved($1, $2, $3, $4)", *given, timeout=_WITHIN)
            await commit()
        self.moved.update(rows)

    async def _publish(self) -> None:
        if taken := await self.target.fetchrow(_TAKEN.format(self.copies)):
            raise Conflict(
                f"event {taken['id']} has the key {taken['key']}, which event {taken['there']} there has:"
                f" let that one end, or cancel it there, and repeat the command"
            )
        await self.target.execute("select agent.publish_copies($1)", self.schema, timeout=_WITHIN)

    async def _hold(self) -> Callable[[], Awaitable[None]]:
        """Lock in a transaction what is live, and wait for what runs. Return what commits it.

        No worker claims what is locked. A group is locked by its head first: while that runs, its end needs the others.
        """
        transaction = self.source.transaction()
        await transaction.start()
        while True:
            live = [row["id"] for row in await self.source.fetch(_LIVE, self.team)]
            heads = [row["id"] for row in await self.source.fetch(_HEADS, live)]
            busy = len(live) - len(await self.source.fetch(_LOCK, live, heads))
            refreshing = await self.source.fetchval(_REFRESHING, self.team)
            if not busy and not refreshing:
                break
            tokens = " Its tokens are being refreshed." if refreshing else ""
            self.told(
                f"waiting for {busy} events: they run, stand behind one that runs, or are locked.{tokens}"
            )
            await asyncio.sleep(_PAUSE)
        await self.source.execute(_KEEP_TOKENS.format(self.team))
        if await self.source.fetchval(_REFRESHING, self.team):
            raise Conflict("its tokens are being refreshed: repeat the command")
        if parent := await self.source.fetchval(_PARENT, live):
            raise InvalidInput(
                f"event {parent} waits for this workspace's, and names no workspace: cancel it"
            )
        await self.source.execute("create temporary table moving (id int8 primary key) on commit drop")
        await self.source.execute(
            f"insert into pg_temp.moving {_RECENT} union {_LIVE_AND_CHILDREN}", self.team, live
        )
        ids = [row["id"] for row in await self.source.fetch("select id from pg_temp.moving")]
        if used := await self.target.fetchval(_USED, ids, BLOCK):
            raise Conflict(f"event {used} may be another one there: set the installations' numbers apart")
        return transaction.commit

    async def _copy(self, table: str) -> int:
        """Copy a table's rows, compare them, and return how many there are."""
        copied = f"{self.copies}.{table}"
        rows = _ROWS.format(table, self.tables[table])
        await self.target.execute(f"create table {copied} (like agent.{table})")
        with TemporaryFile() as file:
            await self.source.copy_from_query(rows, output=file, format="binary", timeout=_WITHIN)
            file.seek(0)
            await self.target.copy_to_table(
                table, schema_name=self.schema, source=file, format="binary", timeout=_WITHIN
            )
        (here,) = await self.source.fetch(_CHECKSUM.format(f"({rows})"))
        (there,) = await self.target.fetch(_CHECKSUM.format(copied))
        if here != there:
            raise DatabaseRefused(f"the copy of {table} differs: {list(there)} instead of {list(here)}")
        return int(here[0])

    async def _identity(self) -> str:
        return str(await self.source.fetchval(_IDENTITY))
