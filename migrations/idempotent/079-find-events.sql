-- The ids under a natural key, live ones first, then history from its newest; also takes an id as text.
create or replace function agent.find_events(_key text) returns setof int8
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
begin
    return query select e.id from agent.event as e where e.item_key = agent.bounded_key(_key);
    return query select h.id from agent.event_hist as h where h.item_key = agent.bounded_key(_key) order by h.event_ts desc;
    if not found and _key ~ '^\d{1,18}$' then
        return query select j.id from agent.job as j where j.id = _key::int8;
    end if;
end
$$;
