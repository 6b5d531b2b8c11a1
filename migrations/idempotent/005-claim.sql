-- Claims, and how workers share them: crowds, peeks, positions.
--
--   claim_events: a worker's claim
--   claim_event: a program's claim
--   text_size, last_claims: sizes, and numbers of claims; claims
--   walk_lanes, take_heads: lock heads lane by lane; claims
--   take_members: adds the members of their groups; claims
--   fence_groups, fence_lapsed: after a lapse, members go back; claims, sweeps, operators
--   lanes_of, crowds_in, move_others, share_kind: bands for crowds; a worker, as events wait long
--   peek_lanes: what is due; a worker's poll
--   position_lock, take_position, position_free, leave_position, pass_on: who answers; workers
--   touch_worker: a worker's sign of life; its polls

-- About how many bytes an event takes as text. Small ones count as in the row, not made into text.
create or replace function agent.text_size(_event jsonb) returns int4
language sql stable parallel safe
return case when pg_column_compression(_event) is null and pg_column_size(_event) < 2000
    then pg_column_size(_event) else octet_length(_event::text) end;

-- The lanes that a claim probes where a kind uses several bands, in order, and the position of the
-- kind in each. _most: as in take_heads. Priority 0 first, then 1, without and with crowds
-- (agent.share_kind), then 2 and 3. A band begins at a random lane, a lane with a random kind. One
-- claim in eight takes the bands in random order: each is the first in one of 96 claims at least.
create or replace function agent.walk_lanes(_kinds text[], _most int4[], out lanes int4[], out nths int4[])
language plpgsql volatile security definer as $$
declare
    _first int4 := floor(random() * 16);
    _in_turn boolean := random() < 0.125;
    -- Multiplied by it, the bands (plus 1) are in another order modulo 13; each is first for one.
    _factor int4 := 1 + floor(random() * 12);
begin
    select array_agg(walk.lane), array_agg(walk.nth) into lanes, nths
    from (
        select case when used.band = 0 then (_first + turn) & 15
            else 12 + 4 * used.band + ((_first + turn) & 3) end as lane, nth
        from generate_subscripts(_kinds, 1) as nth
        cross join lateral (
            select 0 as band, exists (select from agent.band as b
                where b.kind = _kinds[nth] and b.band = 0 and b.workspace <> '') as crowded
            union all
            select b.band, bool_or(b.workspace <> '') from agent.band as b
            where b.kind = _kinds[nth] and b.band > 0 group by b.band
        ) as used
        cross join lateral generate_series(0, case when used.band = 0 then 15 else 3 end) as turn
        where _most[nth] >= 0
        order by case when _in_turn then 0
            else 13 * case when used.band = 1 then 0 when used.band in (2, 3) then 1 + used.band
                when used.crowded then 2 else 1 end
            end + (used.band + 1) * _factor % 13
        , turn, random()
    ) as walk;
end $$;

-- Locks up to _limit visible, unexhausted heads of some kinds: the oldest of a lane, one index
-- probe a (lane, kind), from its cursor on where one is given. Their places (ctid) cannot change
-- while they are locked, so the caller updates them by place. bytes: what their events come to as
-- text, or more. most: how many attempts an event of each kind may have; -1 where the kind is
-- paused. Where all kinds have one band, the walk starts at a random lane and takes the kinds of
-- each lane in the same random order; else see walk_lanes. Exhausted heads are last attempts that
-- lapsed, or lapsed ones that were asked to be cancelled. A claim that meets only those looks at
-- 100 more; then it has 1,000 swept and passes over the others, each a row read.
create or replace function agent.take_heads
( _kinds text[], _limit int4, _max_attempts int4, _now timestamptz, _cursors timestamptz[]
, out places tid[], out vts timestamptz[], out group_keys text[], out lapsed boolean[], out bytes int8
, out most int4[]
)
language plpgsql volatile as $$
declare
    _first int4 := floor(random() * 16);
    _banded boolean;
    _lanes int4[];
    _nths int4[];
    _open int4 := 1;
    _exhausted int8;
    _past boolean := false;
begin
    select array(
        select coalesce((select case when paused then -1 else max_attempts end from agent.kind
                where kind.kind = wanted), _max_attempts, 3)
        from unnest(_kinds) as wanted)
    , exists (select from agent.band where kind = any(_kinds))
    into most, _banded;
    if _banded then
        select walk.lanes, walk.nths into _lanes, _nths from agent.walk_lanes(_kinds, most) as walk;
    elsif cardinality(_kinds) > 1 then
        -- The kinds in random order, sixteen times: once for each lane.
        _nths := array(select nth from generate_subscripts(most, 1) as nth where most[nth] >= 0
            order by random());
        _open := cardinality(_nths);
        _nths := _nths || _nths || _nths || _nths;
        _nths := _nths || _nths || _nths || _nths;
    elsif most[1] >= 0 then
        _nths := array_fill(1, array[16]);
    end if;
    foreach _limit in array array[_limit, _limit + 100, _limit + 100] loop
        select array_agg(h.ctid) filter (where h.claimable), array_agg(h.vt) filter (where h.claimable)
        , array_agg(h.group_key) filter (where h.claimable), array_agg(h.claimed) filter (where h.claimable)
        , count(*) filter (where not h.claimable), sum(h.bytes)
        into places, vts, group_keys, lapsed, _exhausted, bytes
        from (
            select e.ctid, e.vt, e.group_key, e.claimed_by is not null as claimed
            , e.cancelled_by is null and e.attempts < coalesce(e.max_attempts, probe.most) as claimable
            , agent.text_size(e.event) as bytes
            from (
                select walk.lane, _kinds[walk.nth] as kind, most[walk.nth] as most
                -- A cursor ahead of the clock would hide events: it is dropped.
                , case when cursor <= _now then cursor else '-infinity' end as start
                from (
                    select nth, case when _lanes is null then (_first + (place - 1)::int4 / _open) & 15
                        else _lanes[place] end as lane
                    from unnest(_nths) with ordinality as walk (nth, place)
                ) as walk
                cross join lateral
                (select _cursors[walk.lane * cardinality(_kinds) + walk.nth]) as given (cursor)
                offset 0
            ) as probe
            cross join lateral (
                select ctid, vt, group_key, claimed_by, cancelled_by, attempts, max_attempts, event
                from agent.event where head and lane = probe.lane and kind = probe.kind and vt <= _now
                and vt >= probe.start
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
end $$;

-- After a group's lease lapsed: its other held members go back unspent, and their claims no longer
-- stand. So the head is tried alone, and an event that kills its worker exhausts alone. The caller
-- has locked the heads. Steps over locked members, and returns their groups. A head goes back
-- unspent, too, behind a retry or an earlier event that was claimed before: its worker failed or
-- released that one and died. That leads then; its group is returned: the next claim takes it.
create or replace function agent.fence_groups(_group_keys text[], _now timestamptz) returns text[]
language plpgsql volatile security definer
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
    _members int8[];
    _left text[];
    _held_back text[];
    _first int8[];
begin
    if coalesce(_group_keys, '{}') = '{}' then
        return '{}';
    end if;
    _members := array(
        select id from agent.event where group_key = any(_group_keys) and not head and claimed_by is not null
        for update skip locked);
    update agent.event set claimed_by = null, heartbeat_at = null, vt = _now
    -- An event that was asked to be cancelled keeps its attempt, by which the sweep finds it.
    , attempts = case when cancelled_by is null then greatest(attempts - 1, 0) else attempts end
    where id = any(_members);
    _left := array(select distinct group_key from agent.event
        where group_key = any(_group_keys) and not head and claimed_by is not null);
    select array_agg(e.group_key), array_agg(first.id) into _held_back, _first
    from agent.event as e
    cross join lateral (
        select m.id from agent.event as m
        where m.group_key = e.group_key and not m.head
        and m.kind = any((select agent.claimable_kinds())::text[])
        and (m.retrying or m.vt <= _now and m.claimed <> '{}' and m.cancelled_by is null
            and (m.event_ts, m.id) < (e.event_ts, e.id))
        order by m.retrying desc limit 1) as first
    where e.group_key = any(_group_keys) and e.group_key <> all(_left) and e.head and e.claimed_by is not null
    and e.vt <= _now and e.cancelled_by is null;
    if _held_back <> '{}' then
        -- Not where another transaction has what comes first locked.
        _group_keys := array(select group_key from agent.event where id = any(_first) for update skip locked);
        update agent.event as e set claimed_by = null, heartbeat_at = null, vt = _now
        , attempts = greatest(attempts - 1, 0)
        where e.group_key = any(_group_keys) and e.head;
        perform agent.reelect(_group_keys);
    end if;
    return _left || _held_back;
end $$;

-- The same where heads whose lease lapsed, of these events, leave or move.
create or replace function agent.fence_lapsed(_ids int8[]) returns text[]
language plpgsql volatile security definer
set enable_seqscan = off as $$
declare
    _now timestamptz := agent.clock();
begin
    return agent.fence_groups(array(
        select group_key from agent.event
        where id = any(_ids) and head and group_key is not null and claimed_by is not null and vt <= _now
        order by group_key), _now);
end $$;

-- What to claim with held heads: each head, then the visible members of its group in order, up to
-- _limit and to the end of the group that reaches it. Members end before an event of another claim:
-- a retry whose time has not come, or a visible event of another claimed kind, such as a limited
-- one. Of a lapsed group the head comes alone, after fencing. Members have no prior vt. Steps over
-- members that another transaction has locked; a lapsed group with such a member is left alone.
-- bytes: what the events come to as text, or more; _head_bytes: the same of the heads.
create or replace function agent.take_members
( _heads tid[], _head_vts timestamptz[], _group_keys text[], _lapsed boolean[], _kinds text[], _limit int4
, _max_attempts int4, _now timestamptz, _head_bytes int8
, out places tid[], out vts timestamptz[], out bytes int8
)
language plpgsql volatile security definer as $$
declare
    _last text;
    _more record;
    _unfenced text[];
    _claimable text[];
    _most int4[];
    _followed boolean;
    _overtaking tid[];
begin
    select array_agg(wanted), array_agg(coalesce(known.max_attempts, _max_attempts, 3)) into _claimable, _most
    from unnest(_kinds) as wanted left join agent.kind as known on known.kind = wanted
    where known.paused is not true;
    select array_agg(m.place), array_agg(m.vt), (array_agg(m.group_key))[_limit]
    , _head_bytes + coalesce(sum(m.bytes), 0), bool_or(m.follows) into places, vts, _last, bytes, _followed
    from (
        select batch.place, batch.vt, h.group_key, batch.bytes, batch.follows
        from unnest(_heads, _head_vts, _group_keys, _lapsed) as h (place, vt, group_key, lapsed)
        cross join lateral (
            select h.place, h.vt, 0 as bytes, false as follows
            union all
            select member.place, null, member.bytes, true
            from (select e.ctid as place, agent.text_size(e.event) as bytes from agent.event as e
                where h.group_key is not null and not h.lapsed and e.group_key = h.group_key and not e.head
             and e.claimed_by is null and e.vt <= _now and e.kind = any(_claimable)
             and e.attempts < coalesce(e.max_attempts, _most[array_position(_claimable, e.kind)])
             and e.cancelled_by is null
             order by e.event_ts, e.id limit 100 for update skip locked) as member
        ) as batch
        limit _limit
    ) as m;
    if _last is not null and not _lapsed[array_position(_group_keys, _last)] then
        select array_agg(batch.place) as places, coalesce(sum(batch.bytes), 0) as bytes into _more
        from (
                select e.ctid as place, agent.text_size(e.event) as bytes from agent.event as e
                where e.group_key = _last and not e.head
                and e.claimed_by is null and e.vt <= _now and e.kind = any(_claimable)
                and e.attempts < coalesce(e.max_attempts, _most[array_position(_claimable, e.kind)])
                and e.cancelled_by is null
                order by e.event_ts, e.id limit 100 for update skip locked) as batch
        where batch.place <> all(places);
        places := places || _more.places;
        bytes := bytes + _more.bytes;
        _followed := _followed or _more.places is not null;
    end if;
    if _followed then
        _overtaking := array(
            -- By their places alone: an index has the members, and stale statistics prefer it.
            with held as materialized (select e.ctid as place, e.group_key, e.event_ts, e.id, e.head
                from agent.event as e where e.ctid = any(places))
            , member as materialized (select h.place, h.group_key, h.event_ts, h.id from held as h
                where not h.head)
            select member.place
            from (select distinct on (group_key) group_key, event_ts, id from member
                order by group_key, event_ts desc, id desc) as last
            cross join lateral (
                -- Workers' kinds are looked up only for a kind that this claim may not take.
                select e.event_ts, e.id from agent.event as e
                where e.group_key = last.group_key and not e.head and e.claimed_by is null
                and (e.event_ts, e.id) < (last.event_ts, last.id)
                and case when e.vt <= _now then e.kind <> all(_claimable) else e.retrying end
                and e.cancelled_by is null
                and e.attempts < coalesce(e.max_attempts
                    , (select k.max_attempts from agent.kind as k where k.kind = e.kind), _max_attempts, 3)
                and (e.kind = any(_claimable) or e.kind = any((select agent.claimable_kinds())::text[]))
                order by e.event_ts, e.id limit 1
            ) as first_left
            join member on member.group_key = last.group_key
            and (member.event_ts, member.id) > (first_left.event_ts, first_left.id));
        if _overtaking <> '{}' then
            select array_agg(held.place order by held.nth), array_agg(held.vt order by held.nth)
            into places, vts
            from unnest(places, vts) with ordinality as held (place, vt, nth)
            where held.place <> all(_overtaking);
        end if;
    end if;
    if true = any(_lapsed) then
        _unfenced := agent.fence_groups(array(
            select h.group_key from unnest(_heads, _group_keys, _lapsed) as h (place, group_key, lapsed)
            where h.lapsed and h.group_key is not null and h.place = any(places) order by h.group_key), _now);
        if _unfenced <> '{}' then
            select array_agg(held.place), array_agg(held.vt) into places, vts
            from unnest(places, vts) as held (place, vt)
            where held.place <> all(array(select h.place
                    from unnest(_heads, _group_keys) as h (place, group_key)
                    where h.group_key = any(_unfenced)));
        end if;
    end if;
end $$;

-- The moments of an event's claims with one more: the last 100. They keep their subscripts: the
-- upper bound is the number of the claim, by which settles are fenced.
create or replace function agent.last_claims(_claimed timestamptz[], _now timestamptz) returns timestamptz[]
language plpgsql immutable as $$
declare
    _claim int4 := array_upper(_claimed, 1) + 1;
    _kept timestamptz[] := array_fill(_now, array[100], array[_claim - 99]);
begin
    _kept[_claim - 99 : _claim - 1] := _claimed[_claim - 99 : _claim - 1];
    return _kept;
end $$;

-- Claims one visible event of any kind that is not paused, from a random lane: one row as it is
-- after the claim, or none. Of a group it is the head, alone. Sends no heartbeats: the claim stands
-- until its vt. No sequential scans: a plan made while the queue is short must be right when it is
-- long.
create or replace function agent.claim_event(_max_attempts int4 default 3
    , _invisible_for interval default '10m') returns setof agent.event
language plpgsql volatile security definer
set plan_cache_mode = force_generic_plan set enable_bitmapscan = off set enable_sort = off as $$
declare
    _now timestamptz := agent.clock();
    _held record;
    _kinds text[] := array(select kind from agent.kind where not paused);
    _limited text[] := array(select l.kind from agent.kind_limit as l where l.kind = any(_kinds));
    _parked boolean := _limited <> '{}' and random() < 0.5;
    _last boolean := _limited = '{}';
begin
    -- A lapsed head with a locked member, or held back by another event, stays: look for another.
    for _turn in 1..5 loop
        -- Limited kinds come first in half of the claims.
        loop
            if _parked then
                _held := agent.hold_limited(_limited, 1, null, coalesce(_max_attempts, 0), _invisible_for
                    , _now, null, _kinds);
            else
                _held := agent.take_heads(case when _limited = '{}' then _kinds
                        else agent.without_parked(_kinds) end, 1, coalesce(_max_attempts, 0), _now, null);
            end if;
            exit when _held.places is not null or _last;
            _parked := not _parked;
            _last := true;
        end loop;
        exit when not _held.lapsed[1] or _held.group_keys[1] is null
            or agent.fence_groups(_held.group_keys[1:1], _now) = '{}';
        _held.places := null;
    end loop;
    return query
    update agent.event
    set attempts = attempts + 1, vt = _now + _invisible_for
    , claimed = case when cardinality(claimed) < 100 then claimed || _now
        else agent.last_claims(claimed, _now) end, heartbeat_at = null, retrying = false
    , changes = case when claimed_by is null then changes else agent.after_lapse(changes, claimed_by, vt) end
    , claimed_by = coalesce(nullif(current_setting('application_name'), ''), session_user)
    where ctid = _held.places[1] returning *;
end $$;

-- Claims up to _limit visible events of the kinds given. A group comes whole: its head and up to
-- 100 visible members in order, the last group also beyond _limit. Of a group whose lease lapsed
-- the head comes alone. prior_vt is a head's vt before the claim: the highest one seen in a (lane,
-- kind) is where the next claim may start. Steps over locked rows, but PostgreSQL waits for a row
-- that is being updated at that moment, for 100 ms at most (55P03: claim again). _cursors: by lane
-- and kind, at lane * cardinality(_kinds) + position. _member_kinds: which kinds' members a group
-- brings along, by default _kinds: a worker without slots for some kinds claims the others' heads
-- alone, and groups still come in order. _most_bytes: stops before the event whose text would
-- exceed them, but not before the first. Counted only where it may come to more.
create or replace function agent.claim_events
( _kinds text[], _limit int4 default 100, _max_attempts int4 default null
, _invisible_for interval default '10m'
, _claimed_by text default session_user, _cursors timestamptz[] default null
, _member_kinds text[] default null, _most_bytes int8 default null
) returns table
( id int8, kind text, lane int2, event_ts timestamptz, attempts int4, claim int4, vt timestamptz
, prior_vt timestamptz, event jsonb, item_key text
, group_key text, max_attempts int4, enqueued_at timestamptz, errors jsonb, notes jsonb, traceparent text)
language plpgsql volatile security definer
set plan_cache_mode = force_generic_plan set enable_bitmapscan = off set enable_sort = off
set lock_timeout = '100ms' as $$
declare
    _now timestamptz := agent.clock();
    _held record;
    _most int4[];
    _same int4;
    _limited text[] := array(select l.kind from agent.kind_limit as l where l.kind = any(_kinds));
begin
    if _limited = '{}' then
        _held := agent.take_heads(_kinds, _limit, _max_attempts, _now, _cursors);
        -- Behind exhausted ones it looks for more.
        if cardinality(_held.places) > _limit then
            _held.places := _held.places[:_limit];
        end if;
    else
        -- It brings the members, too.
        select mixed.places, mixed.vts, null::text[] as group_keys, null::boolean[] as lapsed, mixed.bytes
        , agent.attempts_of(_kinds, _max_attempts) as most into _held
        from agent.hold_mixed(_limited, _kinds, coalesce(_member_kinds, _kinds), _limit, _most_bytes
            , _max_attempts, _invisible_for, _now, _cursors) as mixed;
    end if;
    if _held.places is null then
        return;
    end if;
    _most := _held.most;
    -- Of most workers' kinds: finding each event's position would slow claims.
    _same := case when _most[1] = all(_most) then _most[1] end;
    if array_remove(_held.group_keys, null) <> '{}' then
        select * into _held
        from agent.take_members(_held.places, _held.vts, _held.group_keys, _held.lapsed
            , coalesce(_member_kinds, _kinds), _limit, _max_attempts, _now, _held.bytes);
    end if;
    if _held.bytes > _most_bytes then
        select array_agg(fitting.place order by fitting.nth) as places
        , array_agg(fitting.vt order by fitting.nth) as vts into _held
        from (
            select held.place, held.vt, held.nth, body.size
            , sum(body.size) over (order by held.nth) - body.size as before
            from unnest(_held.places, _held.vts) with ordinality as held (place, vt, nth)
            cross join lateral (select agent.text_size(e.event) as size from agent.event as e
                where e.ctid = held.place) as body
        ) as fitting
        where fitting.nth = 1 or fitting.before + fitting.size <= _most_bytes;
    end if;
    return query
    update agent.event as e
    set attempts = e.attempts + 1, vt = _now + _invisible_for, claimed_by = _claimed_by, heartbeat_at = _now
    , claimed = case when cardinality(e.claimed) < 100 then e.claimed || _now
        else agent.last_claims(e.claimed, _now) end
    , retrying = false
    -- Few claims follow a lapsed one: the function would slow all others.
    , changes = case when e.claimed_by is null then e.changes
        else agent.after_lapse(e.changes, e.claimed_by, e.vt) end
    from unnest(_held.places, _held.vts) as held (place, vt)
    where e.ctid = held.place
    -- Of a parked event, an ordinary lane of its priority.
    returning e.id, e.kind, case when e.lane >= 0 then e.lane when e.lane = -1 then 0
        else 8 - 4 * e.lane end::int2, e.event_ts, e.attempts, array_upper(e.claimed, 1), e.vt, held.vt
    , e.event, e.item_key, e.group_key, coalesce(e.max_attempts, _same, _most[array_position(_kinds, e.kind)])
    , e.enqueued_at, e.errors, e.notes, e.traceparent;
end $$;

-- The lanes of a band.
create or replace function agent.lanes_of(_band int4) returns setof int4
language sql immutable parallel safe
as $$ select generate_series(case when _band = 0 then 0 else 12 + 4 * _band end, 15 + 4 * _band) $$;

-- The workspaces that make up most of what waits in a band, null where there are none. Judged by
-- the oldest 512 visible heads that have waited for two seconds; fewer than 256 are no crowd. Each
-- has an eighth of them at least, and all together half.
create or replace function agent.crowds_in(_kind text, _band int4, _now timestamptz) returns text[]
language sql volatile security definer
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
                order by e.vt limit case when _band = 0 then 32 else 128 end
            ) as oldest
        ) as waiting
        group by waiting.workspace
    ) as large
    where large.total >= 256 and large.workspace <> '' and large.events >= large.total / 8
    having sum(large.events) >= min(large.total) / 2);

-- Moves events of other workspaces out of a band that has a crowd, in one bounded step: up to 1,000
-- heads of each lane, from where the last step ended. Their vt becomes now, ahead of every claim
-- cursor; their order in a group stays. Steps over locked rows. The last two seconds are looked at
-- again, for late commits. Returns whether there is more to look at.
create or replace function agent.move_others(_kind text, _band int4, _now timestamptz) returns boolean
language plpgsql volatile security definer
set plan_cache_mode = force_generic_plan as $$
declare
    _crowds text[];
    _from timestamptz;
    _to timestamptz;
    _moved int8[];
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
        select held.id from agent.event as held
        where held.id = any(array(
            select seen.id from agent.lanes_of(_band) as place (lane)
            cross join lateral (
                select w.id, w.event from agent.event as w
                where w.head and w.lane = place.lane and w.kind = _kind and w.vt >= _from and w.vt < _to
                and w.claimed_by is null
            ) as seen
            where agent.event_workspace(seen.event) <> all(_crowds)))
        and held.head and held.claimed_by is null and held.vt <= _now
        for update skip locked);
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
-- most of what waits in the band of priority 1, that band becomes theirs. All other events go into
-- a free band, which claims look at first; those that wait behind the crowd move there in bounded
-- steps. The band is shared again once nothing waits in it. One transaction at a time does this;
-- others return at once. Returns when to call it again; null: when events wait long.
create or replace function agent.share_kind(_kind text) returns interval
language plpgsql volatile security definer
set enable_bitmapscan = off set lock_timeout = '100ms' as $$
declare
    _now timestamptz := agent.clock();
    _others int4;
    _crowds text[];
    _free int4;
    _crowded record;
    _more boolean := false;
begin
    if not agent.take_turn('share_kind ' || _kind) then
        return null;
    end if;
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
-- kind is paused. It looks no further ahead than needed, which spares the dead entries of leases.
-- It claims and locks nothing, so it delays no other session. _cursors as in claim_events.
create or replace function agent.peek_lanes
( _kinds text[], _within interval, _max_attempts int4, _cursors timestamptz[]
, out now_at timestamptz, out vts timestamptz[], out paused text[], out took interval
)
language plpgsql volatile security definer
set plan_cache_mode = force_generic_plan set enable_bitmapscan = off as $$
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
            -- Others are exhausted: the sweep's business.
            and e.cancelled_by is null and e.attempts < coalesce(e.max_attempts, _most[place.nth])
            and place.kind <> all(paused)
            order by e.vt limit 1) end
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
language sql immutable
set search_path = pg_catalog, pg_temp
return hashtextextended('agent.position ' || _position || ' ' || (select jsonb_agg(kind order by kind)
        from unnest(_kinds) as kind), 0);

-- Takes the first free position before _held, the session's own (null: none), which it gives up
-- then. Returns the session's position, until it ends. Tells listening workers that another came.
create or replace function agent.take_position(_kinds text[], _held int4) returns int4
language plpgsql volatile security definer as $$
begin
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

-- Whether a position before _below is free; workers of 0.2.0 ask about four. For a moment it holds
-- a lock that excludes no other question; a session that just tries to take it tries again.
create or replace function agent.position_free(_kinds text[], _below int4) returns boolean
language sql volatile security definer
return exists (
    select from generate_series(0, least(_below, 2) - 1) as p (place)
    where pg_try_advisory_xact_lock_shared(agent.position_lock(_kinds, place)));

-- Gives up a position, and tells the workers that listen: one of them takes it at once.
create or replace function agent.leave_position(_kinds text[], _held int4) returns void
language sql volatile security definer
as $$ select pg_advisory_unlock(agent.position_lock(_kinds, _held)), pg_notify('agent_event', 'free') $$;

-- Tells the workers that listen that the responder is full: another one answers for a moment.
create or replace function agent.pass_on() returns void
language sql volatile security definer
as $$ select pg_notify('agent_event', 'full') $$;

-- Records that a worker lives, and its clock less ours; waits for none. False: it is not announced.
create or replace function agent.touch_worker(_name text, _clock_offset interval) returns boolean
language plpgsql volatile security definer as $$
begin
    update agent.worker set seen_at = agent.clock(), clock_offset = coalesce(_clock_offset, clock_offset)
    where name = (select name from agent.worker where name = _name for update skip locked);
    return found or exists (select from agent.worker where name = _name);
end $$;
