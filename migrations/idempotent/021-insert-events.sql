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
    _given record;
begin
    -- New kinds in order, before anything else: inserted as they come up, two batches could wait for each other's.
    insert into agent.kind (kind) select distinct agent.event_kind(event) from unnest(_events) as event
    where not exists (select from agent.kind where kind = agent.event_kind(event)) order by 1 on conflict do nothing;
    for _given in
        select g.event, g.nth, _item_keys[g.nth] as item_key from unnest(_events) with ordinality as g (event, nth)
        order by agent.event_group_key(g.event), coalesce(_item_keys[g.nth], agent.event_item_key(g.event)), g.nth
    loop
        ordinal := _given.nth;
        select stored.id, stored.duplicate into id, duplicate
        from agent.store_event(_given.event, _traceparents[_given.nth], _given.item_key) as stored;
        return next;
    end loop;
end
$$;
