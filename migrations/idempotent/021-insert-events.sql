-- Stores those of a batch that are plainly new, in one statement, and returns their ids, of _ids. Rows go in one after the other, in the
-- order of their groups and keys, each once its group has been entered. Left out: what has a twin, in the queue, in history or earlier
-- in the batch, and the first event of a group that another transaction is just giving a head.
create or replace function agent.store_new_events(_ids int8[], _events jsonb[], _traceparents text[], _item_keys text[]) returns int8[]
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
declare
    _now timestamptz := agent.clock();
    _stored int8[];
    _stored_keys text[];
    _first timestamptz;
    _last timestamptz;
    _known_keys text[];
begin
    with new as (
        select distinct on (read.item_key) id, event, event_ts, kind, read.item_key, group_key, traceparent
        from unnest(_ids, _events, _traceparents, _item_keys) with ordinality as given (id, event, traceparent, item_key, nth)
        cross join lateral agent.event_time(event, _now)
        cross join lateral (values (agent.event_kind(event), agent.event_group_key(event)
            , agent.stored_item_key(given.item_key, event))) as read (kind, group_key, item_key)
        where jsonb_typeof(event) = 'object'
        order by read.item_key, nth
    ), stored as (
        insert into agent.event (id, event_ts, vt, event, kind, item_key, group_key, head, lane, enqueued_at, traceparent)
        select id, event_ts, agent.clock(), event, kind, item_key, group_key, group_key is null or not agent.enter_group(group_key, kind, _now)
        , agent.lane(group_key), agent.clock(), traceparent
        from new order by group_key, item_key
        on conflict do nothing returning id, item_key, event_ts
    )
    select coalesce(array_agg(id), '{}'), array_agg(item_key), min(event_ts), max(event_ts) into _stored, _stored_keys, _first, _last from stored;
    -- In a new statement, after the insert: a twin that was moving to history meanwhile is seen here. First whether there may be any.
    _known_keys := array(
        select item_key from agent.event_hist where item_key = any(_stored_keys)
        and event_ts between _first - interval '3 days' and _last + interval '1 hour');
    if _known_keys <> '{}' then
        with known as (
            delete from agent.event where id = any(_stored) and item_key = any(_known_keys)
            and agent.find_in_history(item_key, event_ts, event_ts <> _now) is not null
            returning id
        )
        select array(select unnest(_stored) except select id from known) into _stored;
    end if;
    return _stored;
end
$$;

-- Inserts a batch in one transaction, each with its own answer. Gives up after 500 ms on a lock (55P03): the caller
-- then inserts singly, so that one blocked event does not delay the others. Sorted, so that batches never deadlock.
create or replace function agent.insert_events(_events jsonb[], _traceparents text[] default null, _item_keys text[] default null)
returns table (ordinal int4, id int8, duplicate boolean)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '500ms'
as $$
#variable_conflict use_column
declare
    _ids int8[] := array(select nextval('agent.event_id_seq') from generate_series(1, cardinality(_events)));
    _stored int8[];
    _given record;
begin
    perform agent.require_read_committed();
    -- At once, not at commit: waiting for a head is bounded here.
    set constraints agent.member_joins immediate;
    perform agent.register_kinds(array(select agent.event_kind(event) from unnest(_events) as event));
    _stored := agent.store_new_events(_ids, _events, _traceparents, _item_keys);
    return query select nth::int4, given.id, false from unnest(_ids) with ordinality as given (id, nth) where given.id = any(_stored);
    if cardinality(_stored) = cardinality(_ids) then
        return;
    end if;
    -- The rest, which is rarely anything but repeated deliveries, one by one.
    for _given in
        select g.event, g.traceparent, g.item_key, g.nth
        from unnest(_ids, _events, _traceparents, _item_keys) with ordinality as g (id, event, traceparent, item_key, nth)
        where g.nth <= cardinality(_ids) and g.id <> all(_stored)
        order by agent.event_group_key(g.event), agent.stored_item_key(g.item_key, g.event), g.nth
    loop
        ordinal := _given.nth;
        select stored.id, stored.duplicate into id, duplicate
        from agent.store_event(_given.event, _given.traceparent, _given.item_key) as stored;
        return next;
    end loop;
end
$$;
