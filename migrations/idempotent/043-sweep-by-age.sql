-- Moves up to _limit events that have been visible and unclaimed for longer than _max_vt_age to history, as expired;
-- returns how many. _kinds null: of every kind that is not paused. The waiting members of an expired head's group that are
-- as old go with it.
create or replace function agent.sweep_by_age(_max_vt_age interval, _kinds text[], _limit int4) returns int4
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    _since timestamptz := agent.clock() - _max_vt_age;
    _heads int8[] := agent.lock_for_sweep(array(
        select e.id from generate_series(0, 15) as lane cross join agent.kind as k
        cross join lateral (
            select id from agent.event where head and event.lane = lane.lane and event.kind = k.kind and vt < _since and claimed_by is null
            order by vt limit _limit
        ) as e
        where not k.paused and (_kinds is null or k.kind = any(_kinds)) limit _limit));
    _ids int8[];
begin
    _ids := array(
        select id from agent.event where id = any(_heads) and vt < _since and claimed_by is null
        union all
        select m.id from agent.event as h join agent.event as m on m.group_key = h.group_key and not m.head
        where h.id = any(_heads) and h.vt < _since and h.claimed_by is null and not (m.claimed_by is not null) and m.vt < _since
        and (_kinds is null or m.kind = any(_kinds)));
    perform agent.archive_events(_ids, 'expired', 'too_old');
    return cardinality(_ids);
end
$$;
