-- Claims: a program's of one event, and a worker's of many. Both lock heads lane by lane.
--   claim_events, claim_event: a worker's claim, and a program's
--   claim_apart: one head after another, where a row refuses; workers, claim_event
--   mark_claimed, why_refused: the claim of one row, and how it refuses; claim_apart, why_waiting
--   text_size, last_claims: sizes, and numbers of claims; both, hold_key
--   walk_lanes, take_heads: lock heads lane by lane; claims
--   take_members: adds the members of their groups; claims

-- About how many bytes an event takes as text. Small ones count as in the row, not made into text.
create or replace function agent.text_size(_event jsonb) returns int4 language sql stable parallel safe
return case when pg_column_compression(_event) is null and pg_column_size(_event) < 2000
    then pg_column_size(_event) else octet_length(_event::text) end;

-- The lanes that a claim probes where a kind uses several bands, in order, and the position of the
-- kind in each. _most: as in take_heads. Priority 0 first, then 1, without and with crowds
-- (agent.share_kind), then 2 and 3. One claim in eight takes the bands in random order: each is the
-- first in one of 96 claims at least.
create or replace function agent.walk_lanes(_kinds text[], _most int4[], out lanes int4[], out nths int4[])
language plpgsql security definer as $$
declare
    _first int4 := floor(random() * 16); _in_turn boolean := random() < 0.125;
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
            where b.kind = _kinds[nth] and b.band > 0 group by b.band) as used
        cross join lateral generate_series(0, case when used.band = 0 then 15 else 3 end) as turn
        where _most[nth] >= 0 order by case when _in_turn then 0
            else 13 * case when used.band = 1 then 0 when used.band in (2, 3) then 1 + used.band
                when used.crowded then 2 else 1 end
            end + (used.band + 1) * _factor % 13
        , turn, random()) as walk;
end $$;

-- Locks up to _limit visible, unexhausted heads of some kinds: the oldest of a lane, one index
-- probe a (lane, kind), from its cursor on. Their places (ctid) cannot change while they are
-- locked. bytes: their events' size as text, or more. most: how many attempts an event of each kind
-- may have; -1: paused. Where all kinds have one band, the walk starts at a random lane and takes
-- the kinds in one random order; else see walk_lanes. Exhausted heads are last attempts that
-- lapsed. A claim that meets only those looks at 100 more; then it has 1,000 swept and passes over
-- the others. To look at sizes may fail where a row is damaged: only where they are _sized.
create or replace function agent.take_heads
( _kinds text[], _limit int4, _max_attempts int4, _now timestamptz, _cursors timestamptz[], _passed int8[]
, _sized boolean, out places tid[], out vts timestamptz[], out group_keys text[], out lapsed boolean[]
, out bytes int8, out most int4[]) language plpgsql as $$
declare
    _first int4 := floor(random() * 16); _banded boolean; _lanes int4[]; _nths int4[];
    _open int4 := 1; _exhausted int8; _past boolean := false;
begin
    select array(
        select coalesce((select case when paused then -1 else max_attempts end from agent.kind
                where kind.kind = wanted), _max_attempts, 3)
        from unnest(_kinds) as wanted)
    , exists (select from agent.band where kind = any(_kinds)) into most, _banded;
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
            , case when _sized then agent.text_size(e.event) end as bytes
            from (
                select walk.lane, _kinds[walk.nth] as kind, most[walk.nth] as most
                -- A cursor ahead of the clock would hide events: it is dropped.
                , case when cursor <= _now then cursor else '-infinity' end as start
                from (
                    select nth, case when _lanes is null then (_first + (place - 1)::int4 / _open) & 15
                        else _lanes[place] end as lane
                    from unnest(_nths) with ordinality as walk (nth, place)) as walk
                cross join lateral
                (select _cursors[walk.lane * cardinality(_kinds) + walk.nth]) as given (cursor)
                offset 0) as probe
            cross join lateral (
                select ctid, vt, group_key, claimed_by, cancelled_by, attempts, max_attempts, event
                from agent.event where head and lane = probe.lane and kind = probe.kind and vt <= _now
                and vt >= probe.start and id <> all(_passed)
                and (not _past or cancelled_by is null and attempts < coalesce(max_attempts, probe.most))
                order by vt limit _limit for update skip locked
            ) as e limit _limit) as h;
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

-- What to claim with held heads: each head, then the visible members of its group in order, up to
-- _limit and to the end of the group that reaches it. Members end before an event of another claim:
-- a retry whose time has not come, or a visible event of another claimed kind. Of a lapsed group
-- the head comes alone, after fencing. Members have no prior vt. Steps over locked members; a
-- lapsed group with one is left alone. bytes: the events' text size, or more; _head_bytes: heads'.
create or replace function agent.take_members
( _heads tid[], _head_vts timestamptz[], _group_keys text[], _lapsed boolean[], _kinds text[], _limit int4
, _max_attempts int4, _now timestamptz, _head_bytes int8, _passed int8[], out places tid[]
, out vts timestamptz[], out bytes int8) language plpgsql security definer as $$
declare
    _last text; _more record; _unfenced text[]; _claimable text[]; _most int4[];
    _followed boolean; _overtaking tid[];
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
             and e.cancelled_by is null and e.id <> all(_passed)
             order by e.event_ts, e.id limit 100 for update skip locked) as member
        ) as batch limit _limit) as m;
    if _last is not null and not _lapsed[array_position(_group_keys, _last)] then
        select array_agg(batch.place) as places, coalesce(sum(batch.bytes), 0) as bytes into _more
        from (
                select e.ctid as place, agent.text_size(e.event) as bytes from agent.event as e
                where e.group_key = _last and not e.head
                and e.claimed_by is null and e.vt <= _now and e.kind = any(_claimable)
                and e.attempts < coalesce(e.max_attempts, _most[array_position(_claimable, e.kind)])
                and e.cancelled_by is null and e.id <> all(_passed)
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
                order by e.event_ts, e.id limit 1) as first_left
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
-- upper bound is the number of the claim.
create or replace function agent.last_claims(_claimed timestamptz[], _now timestamptz) returns timestamptz[]
language plpgsql immutable as $$
declare
    _claim int4 := array_upper(_claimed, 1) + 1;
    _kept timestamptz[] := array_fill(_now, array[100], array[_claim - 99]);
begin
    _kept[_claim - 99 : _claim - 1] := _claimed[_claim - 99 : _claim - 1];
    return _kept;
end $$;

-- How a row refuses a claim, by a try that is taken back; null: it does not, or it is locked.
create or replace function agent.why_refused(_id int8, out code text, out message text, out object text)
language sql security definer as $$
    select t.code, t.message, t.object
    from (select id from agent.event where id = _id for update skip locked) as held
    cross join lateral agent.try_out(
        format('select agent.mark_claimed(%s, '''', null, ''1m'')', held.id)) as t $$;

-- Marks a row, which the caller has locked, as claimed, and reads all of it.
create or replace function agent.mark_claimed
( _id int8, _claimed_by text, _heartbeat_at timestamptz, _invisible_for interval) returns agent.event
language plpgsql set enable_seqscan = off as $$ declare _now timestamptz := agent.clock(); _row agent.event;
begin
    update agent.event set attempts = attempts + 1, vt = _now + _invisible_for
    , claimed = case when cardinality(claimed) < 100 then claimed || _now
        else agent.last_claims(claimed, _now) end, heartbeat_at = _heartbeat_at, retrying = false
    , changes = case when claimed_by is null then changes else agent.after_lapse(changes, claimed_by, vt) end
    , claimed_by = _claimed_by where id = _id returning * into _row;
    if not found then
        perform agent.blame_foreign(); raise no_data_found;
    end if;
    perform octet_length(_row::text);
    return _row;
end $$;

-- Claims up to _limit visible heads, each alone. Where a row refuses, it warns, and returns the id,
-- the SQLSTATE and the object; after ten of those it ends. most: the attempts it may have.
create or replace function agent.claim_apart
( _kinds text[], _limit int4, _max_attempts int4, _invisible_for interval, _claimed_by text
, _heartbeat_at timestamptz, _passed int8[])
returns table (claimed agent.event, most int4, refused int8, code text, object text)
language plpgsql security definer
set plan_cache_mode = force_generic_plan set enable_bitmapscan = off set enable_sort = off as $$
declare
    _now timestamptz := agent.clock(); _held record; _parked boolean; _id int8; _in_vain int4 := 0;
    _limited text[] := array(select l.kind from agent.kind_limit as l where l.kind = any(_kinds));
begin
    if _heartbeat_at is not null then set constraints all immediate; end if; -- for a worker
    -- A lapsed head with a locked member, or held back by another event, stays: look for another.
    for _turn in 1.._limit + 10 loop
        _id := null; refused := null; code := null; object := null;
        begin
            -- Limited kinds come first in half of the claims.
            foreach _parked in array case when _limited = '{}' then '{f}' when random() < 0.5 then '{f,t}'
                else '{t,f}' end::boolean[] loop
                if _parked then
                    _held := agent.hold_limited(_limited, 1, null, _max_attempts, _invisible_for, _now, null
                        , _kinds, _passed);
                else
                    _held := agent.take_heads(case when _limited = '{}' then _kinds
                            else agent.without_parked(_kinds) end
                        , 1, _max_attempts, _now, null, _passed, false);
                end if;
                exit when _held.places is not null;
            end loop;
            _id := (select id from agent.event where ctid = _held.places[1]);
            exit when _id is null;
            _passed := _passed || _id;
            continue when _held.lapsed[1] and _held.group_keys[1] is not null
                and agent.fence_groups(_held.group_keys[1:1], _now) <> '{}';
            claimed := agent.mark_claimed(_id, _claimed_by, _heartbeat_at, _invisible_for);
            most := coalesce(claimed.max_attempts
                , (agent.attempts_of(array[claimed.kind], _max_attempts))[1]);
            _limit := _limit - 1;
        exception when others then
            if _id is null or agent.is_outage(sqlstate) then raise; end if;
            raise warning 'event % cannot be claimed: SQLSTATE %', _id, sqlstate;
            claimed := null; refused := _id; code := sqlstate; _in_vain := _in_vain + 1;
            object := (agent.why_refused(_id)).object;
        end;
        return next;
        exit when _limit = 0 or _in_vain = 10;
    end loop;
end $$;

-- Claims one visible event of any kind that is not paused, from a random lane: one row as it is
-- after the claim, or none. Of a group it is the head, alone. Sends no heartbeats: the claim stands
-- until its vt.
create or replace function agent.claim_event
( _max_attempts int4 default 3, _invisible_for interval default '10m') returns setof agent.event
language plpgsql security definer as $$
declare _kinds text[] := array(select kind from agent.kind where not paused); _live text[];
begin
    if cardinality(_kinds) > 100 then
        -- Where few kinds have events, a probe of each lane for each kind would take longer.
        _live := array(select live.kind from agent.live_kinds() as live limit 1000);
        if cardinality(_live) < 1000 then
            _kinds := array(select unnest(_live) intersect select unnest(_kinds));
        end if;
    end if;
    return query select (c.claimed).* from agent.claim_apart(_kinds, 1, coalesce(_max_attempts, 0)
        , _invisible_for, coalesce(nullif(current_setting('application_name'), ''), session_user)
        , null, '{}') as c where c.refused is null;
end $$;

-- Claims up to _limit visible events of the kinds given. A group comes whole: its head and up to
-- 100 visible members in order, the last group also beyond _limit; after a lapse the head alone.
-- prior_vt: a head's vt before the claim; the highest of a (lane, kind) is where the next claim may
-- start. Steps over locked rows; PostgreSQL waits for a row that is just being updated, for 100 ms
-- at most (55P03: claim again). _cursors: by lane and kind, at lane * cardinality(_kinds) +
-- position. _member_kinds: whose members a group brings along, by default _kinds; a worker without
-- slots for some kinds claims the others' heads alone. _most_bytes: stops before the event whose
-- text would exceed them, but not before the first. _passed: passes over these ids. A row that
-- refuses it fails it: agent.claim_apart then finds which.
drop function if exists agent.claim_events -- of an earlier schema: its callers call the next one
( text[], int4, int4, interval, text, timestamptz[], text[], int8);
create or replace function agent.claim_events
( _kinds text[], _limit int4 default 100, _max_attempts int4 default null
, _invisible_for interval default '10m', _claimed_by text default session_user
, _cursors timestamptz[] default null, _member_kinds text[] default null, _most_bytes int8 default null
, _passed int8[] default '{}')
returns table (id int8, kind text, lane int2, event_ts timestamptz, attempts int4, claim int4, vt timestamptz
, prior_vt timestamptz, event jsonb, item_key text, group_key text, max_attempts int4, enqueued_at timestamptz
, errors jsonb, notes jsonb, traceparent text) language plpgsql security definer
set plan_cache_mode = force_generic_plan set enable_bitmapscan = off set enable_sort = off
set lock_timeout = '100ms' as $$
declare
    _now timestamptz := agent.clock(); _held record; _most int4[]; _same int4; _claimed int8;
    _limited text[] := array(select l.kind from agent.kind_limit as l where l.kind = any(_kinds));
begin
    if _limited = '{}' then
        _held := agent.take_heads(_kinds, _limit, _max_attempts, _now, _cursors, _passed, true);
        -- Behind exhausted heads it takes more than _limit.
        if cardinality(_held.places) > _limit then _held.places := _held.places[:_limit]; end if;
    else
        -- hold_mixed brings the members, too.
        select mixed.places, mixed.vts, null::text[] as group_keys, null::boolean[] as lapsed, mixed.bytes
        , agent.attempts_of(_kinds, _max_attempts) as most into _held
        from agent.hold_mixed(_limited, _kinds, coalesce(_member_kinds, _kinds), _limit, _most_bytes
            , _max_attempts, _invisible_for, _now, _cursors, _passed) as mixed;
    end if;
    if _held.places is null then return; end if;
    _most := _held.most;
    -- Most workers' kinds have one maximum: to find each event's position would slow claims.
    _same := case when _most[1] = all(_most) then _most[1] end;
    if array_remove(_held.group_keys, null) <> '{}' then
        select * into _held
        from agent.take_members(_held.places, _held.vts, _held.group_keys, _held.lapsed
            , coalesce(_member_kinds, _kinds), _limit, _max_attempts, _now, _held.bytes, _passed);
    end if;
    if _held.bytes > _most_bytes then
        select array_agg(fitting.place order by fitting.nth) as places
        , array_agg(fitting.vt order by fitting.nth) as vts into _held
        from (
            select held.place, held.vt, held.nth, body.size
            , sum(body.size) over (order by held.nth) - body.size as before
            from unnest(_held.places, _held.vts) with ordinality as held (place, vt, nth)
            cross join lateral (select agent.text_size(e.event) as size from agent.event as e
                where e.ctid = held.place) as body) as fitting
        where fitting.nth = 1 or fitting.before + fitting.size <= _most_bytes;
    end if;
    return query update agent.event as e
    set attempts = e.attempts + 1, vt = _now + _invisible_for, claimed_by = _claimed_by, heartbeat_at = _now
    , claimed = case when cardinality(e.claimed) < 100 then e.claimed || _now
        else agent.last_claims(e.claimed, _now) end, retrying = false
    -- Few claims follow a lapsed one: the function would slow all others.
    , changes = case when e.claimed_by is null then e.changes
        else agent.after_lapse(e.changes, e.claimed_by, e.vt) end
    from unnest(_held.places, _held.vts) as held (place, vt) where e.ctid = held.place
    -- Of a parked event, an ordinary lane of its priority.
    returning e.id, e.kind, case when e.lane >= 0 then e.lane when e.lane = -1 then 0
        else 8 - 4 * e.lane end::int2, e.event_ts, e.attempts, array_upper(e.claimed, 1), e.vt, held.vt
    , e.event, e.item_key, e.group_key, coalesce(e.max_attempts, _same, _most[array_position(_kinds, e.kind)])
    , e.enqueued_at, e.errors, e.notes, e.traceparent;
    get diagnostics _claimed = row_count;
    if _claimed < cardinality(_held.places) then perform agent.blame_foreign(); end if;
end $$;
