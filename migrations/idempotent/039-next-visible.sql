-- When the next event of some kinds that is not visible yet will be; null when there is none.
create or replace function agent.next_visible(_kinds text[]) returns timestamptz
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
    _now timestamptz := agent.clock();
begin
    return (
        select min(next.vt) filter (where isfinite(next.vt)) from generate_series(0, 15) as lane cross join unnest(_kinds) as k (kind)
        cross join lateral (
            select vt from agent.event where head and event.lane = lane.lane and event.kind = k.kind and vt > _now order by vt limit 1
        ) as next
        where not exists (select from agent.kind where kind.kind = k.kind and paused));
end
$$;
