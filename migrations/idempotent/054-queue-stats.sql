-- How many events of each kind are in each state, and since when the oldest of them is visible.
create or replace function agent.queue_stats()
returns table (kind text, paused boolean, pending int8, scheduled int8, running int8, oldest_pending timestamptz)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set jit = off
as $$
#variable_conflict use_column
declare
    _now timestamptz := agent.clock();
begin
    return query
    select k.kind, k.paused, count(e.id) filter (where e.vt <= _now), count(e.id) filter (where e.vt > _now and e.claimed_by is null)
    , count(e.id) filter (where e.vt > _now and e.claimed_by is not null), min(e.vt) filter (where e.vt <= _now)
    from agent.kind as k left join agent.event as e on e.kind = k.kind group by k.kind order by k.kind;
end
$$;
