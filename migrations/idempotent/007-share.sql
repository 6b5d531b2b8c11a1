-- How workers share the queue: bands for crowds, peeks, and who answers at once.
--   lanes_of, crowds_in, move_others, share_kind: bands for crowds; a worker
--   peek_lanes: what is due; a worker's poll
--   position_lock, take_position, position_free, leave_position, pass_on: who answers; workers
--   touch_worker: a worker's sign of life; its polls

create or replace function agent.lanes_of(_band int4) returns setof int4 language sql immutable parallel safe
as $$ select generate_series(case when _band = 0 then 0 else 12 + 4 * _band end, 15 + 4 * _band) $$;

-- The workspaces that make up most of what waits in a band, null where there are none: of the
-- oldest 512 heads that have waited for two seconds (at least 256), each has an eighth or more, and
-- all together half.
create or replace function agent.crowds_in(_kind text, _band int4, _now timestamptz) returns text[]
language sql security definer
return (
    select array_agg(large.workspace)
    from (
        select waiting.workspace, count(*) as events, sum(count(*)) over () as total
        from (
            select agent.event_workspace(oldest.event) as workspace
            from agent.lanes_of(_band) as place (lane)
            cross join lateral (
                select e.event from agent.event as e
                where e.head and e.lane = place.lane and e.kind = _kind
                and e.vt <= _now - interval '2 seconds'
                order by e.vt limit case when _band = 0 then 32 else 128 end) as oldest
        ) as waiting
        group by waiting.workspace) as large
    where large.total >= 256 and large.workspace <> '' and large.events >= large.total / 8
    having sum(large.events) >= min(large.total) / 2);

-- Moves events of other workspaces out of a band that has a crowd, in one bounded step: up to 1,000
-- heads of each lane, from where the last step ended. Their vt becomes now, ahead of every claim
-- cursor. Steps over locked rows. Returns whether there is more to look at; the last two seconds
-- are looked at again, for late commits.
create or replace function agent.move_others(_kind text, _band int4, _now timestamptz) returns boolean
language plpgsql security definer set plan_cache_mode = force_generic_plan as $$
declare _crowds text[]; _from timestamptz; _to timestamptz; _moved int8[];
begin
    select array_agg(b.workspace), min(b.moved_to) into _crowds, _from from agent.band as b
    where b.kind = _kind and b.band = _band and b.workspace <> '';
    _to := (
        select min(edge.vt) from agent.lanes_of(_band) as place (lane)
        cross join lateral (
            select e.vt from agent.event as e
            where e.head and e.lane = place.lane and e.kind = _kind and e.vt >= _from and e.vt <= _now
            order by e.vt offset 1000 limit 1
        ) as edge);
    -- A thousand rows of one moment: all of them, or the step would not end further on.
    _to := case when _to = _from then _to + interval '1 microsecond' else coalesce(_to, _now) end;
    _moved := array(
        select held.id from agent.event as held where held.id = any(array(
            select seen.id from agent.lanes_of(_band) as place (lane)
            cross join lateral (
                select w.id, w.event from agent.event as w
                where w.head and w.lane = place.lane and w.kind = _kind and w.vt >= _from and w.vt < _to
                and w.claimed_by is null) as seen
            where agent.event_workspace(seen.event) <> all(_crowds)))
        and held.head and held.claimed_by is null and held.vt <= _now for update skip locked);
    if _moved <> '{}' then
        update agent.event as e set lane = agent.lane_for(e.kind, 1::int2, e.group_key, e.event)
        , vt = agent.clock() where e.id = any(_moved);
        perform agent.note_parked(_moved, false);
        perform pg_notify('agent_event', '');
    end if;
    update agent.band as b set moved_to = least(_to, _now - interval '2 seconds')
    where b.kind = _kind and b.band = _band and b.workspace <> '';
    return _to < _now - interval '2 seconds';
end $$;

-- Keeps a workspace with a backlog of a kind from holding up the others. If few workspaces make up
-- most of what waits with priority 1, that band becomes theirs. All other events go into a free
-- band, which claims look at first; those behind the crowd move there step by step. Once nothing
-- waits in it, the band is shared again. One transaction at a time does this. Returns when to call
-- it again; null: when events wait long.
create or replace function agent.share_kind(_kind text) returns interval
language plpgsql security definer set enable_bitmapscan = off set lock_timeout = '100ms' as $$
declare
    _now timestamptz := agent.clock(); _others int4; _crowds text[]; _free int4; _crowded record;
    _more boolean := false;
begin
    if not agent.take_turn('share_kind ' || _kind) then return null; end if;
    _others := coalesce((select band from agent.band where kind = _kind and workspace = ''), 0);
    _crowds := agent.crowds_in(_kind, _others, _now);
    if _crowds is not null then
        _free := (
            select free from unnest(array[0, 4, 5, 6, 7, 8, 9, 10, 11]) as free
            where free <> _others and not exists (select from agent.band
                where kind = _kind and band = free and workspace <> '') order by free limit 1);
    end if;
    if _free is not null then
        insert into agent.band (kind, band, workspace) select _kind, _others, crowd
        from unnest(_crowds) as crowd;
        delete from agent.band where kind = _kind and workspace = '';
        perform agent.use_band(_kind, _free);
        if _free > 0 then
            insert into agent.band (kind, band, workspace) values (_kind, _free, '');
        end if;
    end if;
    for _crowded in select distinct b.band from agent.band as b
        where b.kind = _kind and b.workspace <> '' loop
        _more := agent.move_others(_kind, _crowded.band, _now) or _more;
        if not exists (
            select from agent.lanes_of(_crowded.band) as place (lane)
            where exists (select from agent.event as e
                where e.head and e.lane = place.lane and e.kind = _kind and e.vt <= _now))
        then
            delete from agent.band where kind = _kind and band = _crowded.band and workspace <> '';
        end if;
    end loop;
    if not exists (select from agent.band where kind = _kind and workspace <> '') then
        delete from agent.band where kind = _kind and workspace = '';
        return null;
    end if;
    return case when _more then interval '0' else interval '1 second' end;
end $$;

-- What a worker waits for: the vt of the first event of each lane and kind, at lane *
-- cardinality(_kinds) + position, that can be claimed now or within _within. Null: none, or the
-- kind is paused. It looks no further ahead, which spares the dead entries of leases, and locks
-- nothing. _cursors as in claim_events.
create or replace function agent.peek_lanes
( _kinds text[], _within interval, _max_attempts int4, _cursors timestamptz[], out now_at timestamptz
, out vts timestamptz[], out paused text[], out took interval)
language plpgsql security definer set plan_cache_mode = force_generic_plan set enable_bitmapscan = off as $$
declare
    _most int4[] := agent.attempts_of(_kinds, _max_attempts);
    _last int4 := 15 + 4 * coalesce((select max(b.band) from agent.band as b where b.kind = any(_kinds)), 0);
begin
    now_at := agent.clock();
    paused := array(select k.kind from agent.kind as k where k.kind = any(_kinds) and k.paused);
    vts := array(
        select least(case when place.lane < 16
                or exists (select from agent.band as b
                where b.kind = place.kind and b.band = (place.lane - 12) / 4) then (
            -- A worker reads no time before the year 1.
            select greatest(e.vt, '0001-01-02 00:00+00') from agent.event as e
            where e.head and e.lane = place.lane and e.kind = place.kind and e.vt >= place.start
            and e.vt <= now_at + _within
            -- Exhausted events are left to the sweep.
            and e.cancelled_by is null and e.attempts < coalesce(e.max_attempts, _most[place.nth])
            and place.kind <> all(paused) order by e.vt limit 1) end
        -- In lane 0, when to look at a key of a limited kind. Cursors skip notes, too.
        , case when place.lane = 0 and place.kind <> all(paused) then (
            select n.due_at from agent.limit_note as n
            where n.kind = place.kind and n.due_at >= place.start and n.due_at <= now_at + _within
            order by n.due_at limit 1) end)
        from (
            select lane, k.kind, k.nth, case when cursor <= now_at then cursor else '-infinity' end as start
            from generate_series(0, _last) as lane cross join unnest(_kinds) with ordinality as k (kind, nth)
            cross join lateral (select _cursors[lane * cardinality(_kinds) + k.nth]) as given (cursor)
        ) as place
        order by place.lane, place.nth);
    took := agent.clock() - now_at;
end $$;

-- The advisory lock of a position. The workers that handle the same kinds share two: 0 is the
-- responder's, 1 the deputy's (docs/adr/0034-positions.md).
create or replace function agent.position_lock(_kinds text[], _position int4) returns int8
language sql immutable set search_path = pg_catalog, pg_temp
return hashtextextended('agent.position ' || _position || ' ' || (select jsonb_agg(kind order by kind)
        from unnest(_kinds) as kind), 0);

-- Takes the first free position before _held, the session's own (null: none), which it gives up
-- then. Returns the session's position. Tells listening workers that another came.
create or replace function agent.take_position(_kinds text[], _held int4) returns int4
language plpgsql security definer as $$ begin
    for _position in 0..least(_held, 2) - 1 loop
        if pg_try_advisory_lock(agent.position_lock(_kinds, _position)) then
            if _held is not null then
                perform pg_advisory_unlock(agent.position_lock(_kinds, _held));
            else
                perform pg_notify('agent_event', 'taken');
            end if;
            return _position;
        end if;
    end loop;
    return _held;
end $$;

-- Whether a position before _below is free. For a moment it holds a lock that excludes no other
-- question; a session that just tries to take it tries again.
create or replace function agent.position_free(_kinds text[], _below int4) returns boolean
language sql security definer
return exists (
    select from generate_series(0, _below - 1) as p (place)
    where pg_try_advisory_xact_lock_shared(agent.position_lock(_kinds, place)));

-- Gives up a position, and tells the workers that listen: one of them takes it at once.
create or replace function agent.leave_position(_kinds text[], _held int4) returns void
language sql security definer
as $$ select pg_advisory_unlock(agent.position_lock(_kinds, _held)), pg_notify('agent_event', 'free') $$;

-- Tells the workers that listen that the responder is full: another one answers for a moment.
create or replace function agent.pass_on() returns void
language sql security definer as $$ select pg_notify('agent_event', 'full') $$;

-- Records that a worker lives, and its clock less ours; waits for none. False: it is not announced.
create or replace function agent.touch_worker(_name text, _clock_offset interval) returns boolean
language plpgsql security definer as $$ begin
    update agent.worker set seen_at = agent.clock(), clock_offset = coalesce(_clock_offset, clock_offset)
    where name = (select name from agent.worker where name = _name for update skip locked);
    return found or exists (select from agent.worker where name = _name);
end $$;
