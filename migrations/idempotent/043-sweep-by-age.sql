-- Moves up to _limit events that have been visible and unclaimed for longer than _max_vt_age to history, as expired;
-- returns how many. _kinds null: of every kind that is not paused. The waiting members of a head's group that are as old go
-- with it, and before it: a head that left earlier would make the next one look young.
create or replace function agent.sweep_by_age(_max_vt_age interval, _kinds text[], _limit int4) returns int4
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
    _since timestamptz := agent.clock() - _max_vt_age;
    _swept text[] := array(select kind from agent.kind where not paused and (_kinds is null or kind = any(_kinds)));
    _ids int8[] := agent.lock_for_sweep(array(
        select batch.id from generate_series(0, 15) as lane cross join unnest(_swept) as swept (kind)
        cross join lateral (
            select id, group_key from agent.event
            where head and event.lane = lane.lane and event.kind = swept.kind and vt < _since and claimed_by is null order by vt limit _limit
        ) as h
        cross join lateral (
            (select m.id from agent.event as m where m.group_key = h.group_key and not m.head and m.claimed_by is null
             and m.vt < _since and m.kind = any(_swept) order by m.event_ts, m.id limit _limit)
            union all
            select h.id
        ) as batch
        limit _limit));
begin
    _ids := array(select id from agent.event where id = any(_ids) and vt < _since and claimed_by is null);
    return agent.archive_possible(_ids, 'expired', 'too_old');
end
$$;
