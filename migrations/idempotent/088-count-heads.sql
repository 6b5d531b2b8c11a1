-- How many heads of a kind are visible and how many will be later, and since when the oldest is: by index alone. Counts lane by lane until there are
-- 10,000 and takes the other lanes to be like those, as events fall into lanes at random: exact below, within about two percent above.
create or replace function agent.count_heads(_kind text, _now timestamptz, out pending int8, out later int8, out oldest timestamptz)
language plpgsql stable
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
declare
    _lanes int4 := 0;
    _lane record;
begin
    pending := 0;
    later := 0;
    while _lanes < 16 and pending + later < 10000 loop
        select count(*) filter (where vt <= _now) as pending, count(*) filter (where vt > _now) as later, min(vt) filter (where vt <= _now) as oldest
        into _lane from agent.event where head and lane = _lanes and kind = _kind;
        pending := pending + _lane.pending;
        later := later + _lane.later;
        oldest := least(oldest, _lane.oldest);
        _lanes := _lanes + 1;
    end loop;
    pending := round(pending * 16.0 / _lanes);
    later := round(later * 16.0 / _lanes);
end
$$;
