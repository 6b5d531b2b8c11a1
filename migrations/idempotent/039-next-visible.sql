-- When the next event of some kinds that is not visible yet will be; null when none will be _within that time. Looking no further
-- than needed spares the dead entries of leases, which end far ahead.
create or replace function agent.next_visible(_kinds text[], _within interval default '1 day') returns timestamptz
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
    _now timestamptz := agent.clock();
begin
    return (
        select min(next.vt) from generate_series(0, 15) as lane cross join unnest(_kinds) as k (kind)
        cross join lateral (
            select vt from agent.event where head and event.lane = lane.lane and event.kind = k.kind and vt > _now and vt <= _now + _within
            order by vt limit 1
        ) as next
        where not exists (select from agent.kind where kind.kind = k.kind and paused));
end
$$;
