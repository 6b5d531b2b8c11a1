-- What a worker waits for: the vt of the first event of each lane and kind, at lane * cardinality(_kinds) + position, that can
-- be claimed now or will be _within that time; null where there is none, and where the kind is paused. Looking no further
-- than needed spares the dead entries of leases, which end far ahead. Claims and locks nothing, so it delays nobody however
-- many dead entries it walks over; _cursors as in claim_events.
create or replace function agent.peek_events
( _kinds text[], _within interval, _max_attempts int4 default null, _cursors timestamptz[] default null
, out now_at timestamptz, out vts timestamptz[], out paused text[], out took interval
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
    _most int4[] := agent.attempts_of(_kinds, _max_attempts);
begin
    now_at := agent.clock();
    paused := array(select k.kind from agent.kind as k where k.kind = any(_kinds) and k.paused);
    vts := array(
        select (
            select e.vt from agent.event as e
            where e.head and e.lane = place.lane and e.kind = place.kind and e.vt >= place.start and e.vt <= now_at + _within
            -- Others are exhausted: the sweep's business.
            and e.cancelled_by is null and e.attempts < coalesce(e.max_attempts, _most[place.nth])
            and place.kind <> all(paused)
            order by e.vt limit 1)
        from (
            select lane, k.kind, k.nth, case when cursor <= now_at then cursor else '-infinity' end as start
            from generate_series(0, 15) as lane cross join unnest(_kinds) with ordinality as k (kind, nth)
            cross join lateral (select _cursors[lane * cardinality(_kinds) + k.nth]) as given (cursor)
        ) as place
        order by place.lane, place.nth);
    took := agent.clock() - now_at;
end
$$;
