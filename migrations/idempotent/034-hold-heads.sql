-- Locks up to _limit visible, unexhausted heads of some kinds: the oldest of a lane, the lanes in turn from a random one, the
-- kinds of a lane in random order; one index probe a (lane, kind), from its cursor on where one is given.
-- Their places (ctid) stay theirs while they are locked: whoever goes on to them by place spares another look at the index.
-- Exhausted heads are last attempts that lapsed, or lapsed ones that were asked to be cancelled. A claim that meets only those looks at 100 more; then it
-- has 1,000 of them swept and passes over the others, each a row read: however many there are, it finds what lies behind them.
create or replace function agent.hold_heads
( _kinds text[], _limit int4, _max_attempts int4, _now timestamptz, _cursors timestamptz[]
, out places tid[], out vts timestamptz[], out group_keys text[], out lapsed boolean[]
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
as $$
declare
    _first int4 := floor(random() * 16);
    _exhausted int8;
    _past boolean := false;
    _most int4[] := agent.attempts_of(_kinds, _max_attempts);
begin
    foreach _limit in array array[_limit, _limit + 100, _limit + 100] loop
        select array_agg(h.ctid) filter (where h.claimable), array_agg(h.vt) filter (where h.claimable)
        , array_agg(h.group_key) filter (where h.claimable), array_agg(h.claimed) filter (where h.claimable), count(*) filter (where not h.claimable)
        into places, vts, group_keys, lapsed, _exhausted
        from (
            select e.ctid, e.vt, e.group_key, e.claimed_by is not null as claimed, e.cancelled_by is null and e.attempts < coalesce(e.max_attempts, probe.most) as claimable
            from (
                select (_first + turn) & 15 as lane, k.kind, _most[k.nth] as most
                -- A cursor ahead of the clock would hide events: it is dropped.
                , case when cursor <= _now then cursor else '-infinity' end as start
                from generate_series(0, 15) as turn cross join unnest(_kinds) with ordinality as k (kind, nth)
                cross join lateral (select _cursors[((_first + turn) & 15) * cardinality(_kinds) + k.nth]) as given (cursor)
                where not exists (select from agent.kind where kind.kind = k.kind and paused)
                order by turn, random()
            ) as probe
            cross join lateral (
                select ctid, * from agent.event where head and lane = probe.lane and kind = probe.kind and vt <= _now and vt >= probe.start
                and (not _past or cancelled_by is null and attempts < coalesce(max_attempts, probe.most))
                order by vt limit _limit for update skip locked
            ) as e
            limit _limit
        ) as h;
        -- Fewer than asked for: there are no others.
        exit when places is not null or _exhausted < _limit or _past;
        if _exhausted > 100 then
            begin
                perform agent.sweep_exhausted(_max_attempts, 1000, _kinds);
            exception when lock_not_available or deadlock_detected then
                null; -- the sweep must wait for a row; this claim need not
            end;
            _past := true;
        end if;
    end loop;
end
$$;
