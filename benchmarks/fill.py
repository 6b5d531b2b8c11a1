"""Fill queues with events, as if a thousand per second had arrived until now."""

from surelane.calls import Connection

PAYLOAD_BYTES = 400
KIND = "bench"

# The first event of each group is its head. This inserts without the insert functions (and, as a superuser, without
# the triggers), because their speed is not measured here.
_FILL = """
    insert into agent.event (event_ts, vt, event, kind, item_key, group_key, head, lane)
    select t, t, jsonb_build_object('number', i, 'text', repeat('x', $2), 'team_id', $6::text), $3, $4 || i
    , g, g is null or i % $5 = 0, agent.lane_in(0, g)
    from generate_series(0, $1 - 1) as i
    cross join lateral (
        select clock_timestamp() - make_interval(secs => ($1 - i) / 1000.0), 'group ' || i / $5) as event (t, g)
"""

# Each event is stored by a transaction of its own, in a lane that its kind's limit decides.
_STORE = """
    do $do$ begin
        for i in 0 .. {count} - 1 loop
            insert into agent.event (event_ts, vt, event, kind, head, lane)
            select t, t, jsonb_build_object('number', i, 'text', repeat('x', {text}), 'team_id', 'T' || i %{workspaces})
            , '{kind}', true, agent.lane_for('{kind}', 1::int2, null, '{{}}')
            from (values (clock_timestamp() - make_interval(secs => ({count} - i) / 1000.0))) as event (t);
            commit;
        end loop;
    end $do$
"""


async def fill(
    connection: Connection,
    count: int,
    *,
    group_size: int | None = None,
    item_key: str | None = None,
    workspace: str = "",
) -> None:
    """Add ``count`` events.

    Args:
        connection: an administrator's connection.
        count: the number of events.
        group_size: events per group; ``None`` for events without a group.
        item_key: the prefix of the events' natural keys; ``None`` for events without one.
        workspace: the workspace of the events.
    """
    await connection.execute("insert into agent.kind (kind) values ($1) on conflict do nothing", KIND)
    await connection.execute(_FILL, count, PAYLOAD_BYTES - 46, KIND, item_key, group_size, workspace)


async def store_singly(connection: Connection, count: int, *, workspaces: int) -> None:
    """Add ``count`` events of several workspaces, each in a transaction of its own, as ingest stores rare events."""
    await connection.execute("insert into agent.kind (kind) values ($1) on conflict do nothing", KIND)
    await connection.execute("set synchronous_commit = off")
    await connection.execute(
        _STORE.format(count=count, text=PAYLOAD_BYTES - 46, workspaces=workspaces, kind=KIND)
    )


async def clear(connection: Connection) -> None:
    """Empty the queue and history, and remove their dead rows."""
    await connection.execute("truncate agent.event, agent.event_hist")
