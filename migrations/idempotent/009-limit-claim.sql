-- Claims of limited kinds, as far as their limits allow.
--   limit_turn: the turn of a key; hold_limited, sweeps
--   heartbeat_lock: renewals under way; heartbeats, limit_room
--   limit_room: how many more may begin; hold_key, lists
--   hold_key: claims the events of one key; hold_limited
--   hold_limited, hold_mixed: claim limited kinds; claims

-- The turn of a limit's key: a hash, as the key names people.
create or replace function agent.limit_turn(_kind text, _key text) returns text
language sql immutable parallel safe
return 'limit ' || hashtextextended('agent.limit ' || _kind || ' ' || _key, 0);

-- The advisory lock that heartbeats share until they commit (agent.extend_leases).
create or replace function agent.heartbeat_lock() returns int8
language sql immutable parallel safe return hashtextextended('agent.heartbeat', 0);

-- How many more events of a key may begin now (null: any number), what runs, and until when the
-- rate alone forbids more (null: it does not). For a caller that wants no more than _most, the list
-- of runs may do without a look at what has ended. Without _most it only looks, and locks nothing.
-- Callers set the planner's settings, here and in agent.hold_key: for each key it takes too long.
create or replace function agent.limit_room
( _limit agent.limits, _state agent.limit_state, _now timestamptz, _most int4, out room int4
, out free_at timestamptz, out lapses_at timestamptz, out running int8[], out long int4)
language plpgsql security definer as $$ declare _lapsed int8[];
begin
    running := _state.running; long := _state.long;
    if _limit.concurrency is null then
        null;
    elsif cardinality(running) + _most <= _limit.concurrency and cardinality(running) < _state.long then
        room := _limit.concurrency - cardinality(running);
    else
        -- What has ended or lapsed no longer counts. A heartbeat that is not committed yet may have
        -- renewed a run before it lapsed: it has the row locked, so such a run counts. A heartbeat
        -- after this look reads a later clock, and renews none of these.
        select coalesce(array_agg(e.id) filter (where e.vt > _now), '{}')
        , min(e.vt) filter (where e.vt > _now)
        , array_agg(e.id) filter (where e.vt <= _now) into running, lapses_at, _lapsed
        from agent.event as e where e.id = any(_state.running) and e.claimed_by is not null;
        if _lapsed is not null and _most is not null then
            -- Heartbeats first: the next statement sees a lease committed meanwhile.
            if exists (
                select from pg_locks as l
                where l.locktype = 'advisory' and l.objsubid = 1 and l.granted and l.pid <> pg_backend_pid()
                and l.database = (select d.oid from pg_database as d where d.datname = current_database())
                and l.classid::int8 << 32 | l.objid::int8 = agent.heartbeat_lock())
            then
                _lapsed := array(
                    select lapsed from unnest(_lapsed) as lapsed
                    where lapsed <> all(array(select e.id from agent.event as e
                            where e.id = any(_lapsed) and e.vt <= _now for update skip locked)));
            else
                _lapsed := array(select e.id from agent.event as e
                    where e.id = any(_lapsed) and e.claimed_by is not null and e.vt > _now);
            end if;
            if _lapsed <> '{}' then
                running := running || _lapsed;
                lapses_at := least(lapses_at, _now + interval '1 second');
            end if;
        end if;
        room := greatest(_limit.concurrency - cardinality(running), 0);
        long := 200 + 3 * cardinality(running);
    end if;
    if _limit.rate is not null then
        room := least(room, greatest(_limit.rate - (
            select coalesce(sum(began.count), 0)
            from unnest(_state.starts, _state.counts) as began (at, count)
            -- Rounded up to a hundredth of the period. Later: the clock had jumped ahead.
            where began.at > _now - _limit.period and began.at <= _now + _limit.period / 100), 0));
        if room = 0 then
            free_at := (
                select latest.at + _limit.period
                from (
                    select began.at, sum(began.count) over (order by began.at desc) as events
                    from unnest(_state.starts, _state.counts) as began (at, count)
                    where began.at > _now - _limit.period and began.at <= _now + _limit.period / 100
                ) as latest where latest.events >= _limit.rate order by latest.at desc limit 1);
        end if;
    end if;
end $$;

-- Locks up to _most visible heads of a key, as far as its limit goes, and records them as runs. The
-- caller holds the key's turn, so the count is exact. Returns when to look at the key again (null:
-- after another note), and about how many bytes the events have.
create or replace function agent.hold_key
( _limit agent.limits, _key text, _most int4, _most_bytes int8, _attempts int4, _lease interval
, _noted_at timestamptz, _passed int8[], out places tid[], out vts timestamptz[], out group_keys text[]
, out lapsed boolean[], out bytes int8, out look_at timestamptz) language plpgsql security definer as $$
declare
    _now timestamptz := agent.clock(); _kind text := _limit.kind;
    _parked text := _kind || ' ' || _key;
    _state agent.limit_state; _known boolean; _last timestamptz; _room record; _may int4;
    _taken int4; _all int4; _ids int8[];
    _lanes int4[] := array[-2, -1, -3, -4];
    _next timestamptz; _start timestamptz; _blocked_at timestamptz; _seen timestamptz;
begin
    select * into _state from agent.limit_state as s where s.kind = _kind and s.limit_key = _key
    order by s.at desc limit 1 for update skip locked;
    _known := found; _last := _state.at; _seen := _state.seen;
    if not _known and exists (select from agent.limit_state as s where s.kind = _kind and s.limit_key = _key)
    then
        look_at := _now + interval '1 second'; -- somebody has it locked: other keys and kinds go on
        return;
    elsif not _known then
        _state := row(_kind, _key, _now, '{}', '{}', '{}', '-infinity', '-infinity', null, 200);
    end if;
    select * into _room from agent.limit_room(_limit, _state, _now, _most);
    _may := least(_most, _room.room);
    _state.seen := least(_state.seen, _noted_at);
    if random() < 0.125 then
        _lanes := array(select lane from unnest(_lanes) as lane order by random());
    end if;
    if _may > 0 then
        select array_agg(e.place), array_agg(e.vt), array_agg(e.group_key), array_agg(e.lapsed)
        , array_agg(e.id), sum(e.size), count(*)
        into places, vts, group_keys, lapsed, _ids, bytes, _all
        from (
            select held.* from unnest(_lanes) as place (lane)
            cross join lateral (
                select w.ctid as place, case when place.lane = -1 then _noted_at end as vt, w.group_key
                , w.claimed_by is not null as lapsed, w.id
                , case when _most_bytes is not null then agent.text_size(w.event) end as size
                from agent.event as w where w.lane < 0 and w.head
                and (w.kind || ' ' || (w.changes #>> '{0,limit_key}')) collate "C" = _parked
                and w.lane::int4 = place.lane
                and w.vt <= _now and w.vt >= _state.seen and w.id <> all(_passed)
                and w.cancelled_by is null and w.attempts < coalesce(w.max_attempts, _attempts)
                order by w.vt limit _may for update skip locked
            ) as held limit _may) as e;
    end if;
    _taken := coalesce(_all, 0);
    if bytes > _most_bytes then
        -- As many as fit, and one in any case.
        _taken := greatest(1, (
            select count(*) from (
                select sum(agent.text_size(e.event)) over (order by held.nth) as until
                from unnest(places) with ordinality as held (place, nth)
                cross join lateral (select w.event from agent.event as w where w.ctid = held.place) as e
            ) as fits where fits.until <= _most_bytes));
        places := places[:_taken];
        vts := vts[:_taken];
        group_keys := group_keys[:_taken];
        lapsed := lapsed[:_taken];
        _ids := _ids[:_taken];
    end if;
    -- The next waiting event, or the next end of a lease. A subquery is hashed, an array is not.
    _next := (
        select min(other.vt) from unnest(_lanes) as place (lane)
        cross join lateral (
            select w.vt from agent.event as w where w.lane < 0 and w.head
            and (w.kind || ' ' || (w.changes #>> '{0,limit_key}')) collate "C" = _parked
            and w.lane::int4 = place.lane and w.vt >= _state.seen and w.id <> all(_passed)
            and w.cancelled_by is null and w.attempts < coalesce(w.max_attempts, _attempts)
            and w.ctid not in (select taken from unnest(places) as taken) order by w.vt limit 1
        ) as other);
    _state.seen := least(_next, _now);
    if _taken > 0 then _next := least(_next, _now + _lease); end if;
    if _next <= _now then
        if _taken = _most or _taken < _all then
            look_at := _now;
        elsif _taken < coalesce(_room.room, _taken + 1) then
            look_at := _now + interval '1 second'; -- another transaction has them locked
        elsif _room.free_at is not null then
            look_at := _room.free_at;
        elsif _limit.rate is not null and _taken > 0 then
            look_at := _now; -- whether the rate allows the next one
        else
            -- Until a run ends or lapses. A run that ends from now on leaves a note. A run that is
            -- ending now may leave none: it cannot see yet that events wait. So this also looks
            -- without a note, each time after as long as the events have waited.
            _blocked_at := coalesce(_state.blocked_at, _now);
            look_at := least(_room.lapses_at
                , _now + least(
                    _lease, greatest(_now - _blocked_at, interval '100 milliseconds'), interval '1 minute'));
        end if;
    else
        look_at := _next;
    end if;
    if _taken > 0 and _limit.concurrency is not null then
        _room.running := _room.running || _ids;
    end if;
    if _taken > 0 and _limit.rate is not null then
        -- For limits above 100, round up to a hundredth of the period. So the row stays small,
        -- and no period has more events than the limit.
        _start := case when _limit.rate <= 100 then _now
            else date_bin(_limit.period / 100, _now, 'epoch') + _limit.period / 100 end;
        if _state.starts[cardinality(_state.starts)] = _start then
            _state.counts[cardinality(_state.counts)] := _state.counts[cardinality(_state.counts)] + _taken;
        else
            select array_agg(began.at), array_agg(began.count) into _state.starts, _state.counts
            from (
                select given.at, sum(given.count)::int4 as count
                from unnest(_state.starts || _start, _state.counts || _taken) as given (at, count)
                where given.at > _now - _limit.period and given.at <= _now + _limit.period / 100
                group by given.at order by given.at) as began;
        end if;
    end if;
    -- One note for later is enough.
    if look_at > _now and _state.noted > _now and _state.noted <= look_at then
        look_at := null;
    elsif look_at > _now then
        _state.noted := look_at;
    end if;
    if _known then
        -- An older event has come: its note is gone, so the state says how far back to look.
        if _taken > 0 or look_at > _now or _state.blocked_at is distinct from _blocked_at
        or _state.seen < _seen then
            update agent.limit_state as s
            set at = greatest(_now, _last + interval '1 microsecond'), running = _room.running
            , starts = _state.starts, counts = _state.counts, seen = _state.seen, noted = _state.noted
            , blocked_at = _blocked_at, long = _room.long
            where s.kind = _kind and s.limit_key = _key and s.at = _last;
        end if;
    elsif _taken > 0 or look_at > _now then
        insert into agent.limit_state (kind, limit_key, at, running, starts, counts, seen, noted, blocked_at
            , long)
        values (_kind, _key, _now, _room.running, _state.starts, _state.counts, _state.seen, _state.noted
            , _blocked_at, _room.long);
    end if;
end $$;

-- Locks up to _limit parked heads, of keys that have a note and room, in the order of their notes:
-- up to 64 keys a turn, and another turn if none had an event. Skips a key that another claim looks
-- at, unless there is no other, and parks events from before the limit. A head comes without its
-- group, unless the handler takes groups.
create or replace function agent.hold_limited
( _kinds text[], _limit int4, _most_bytes int8, _max_attempts int4, _lease interval, _now timestamptz
, _cursors timestamptz[], _all text[], _passed int8[], out places tid[], out vts timestamptz[]
, out group_keys text[], out lapsed boolean[], out bytes int8) language plpgsql security definer as $$
declare
    _noted record; _rule agent.limits; _held record; _left int4 := _limit;
    _read int4; _looked int4; _notes int8; _busy boolean; _again boolean; _own text;
    _waits boolean := false; _most int4[] := agent.attempts_of(_kinds, _max_attempts);
    _grouped text[] := array(select l.kind from agent.limits as l where l.kind = any(_kinds) and l.grouped);
begin
    bytes := 0;
    -- A claim deletes notes, perhaps of its own transaction (agent.note_key).
    if current_setting('surelane.noted', true) <> '' then
        perform set_config('surelane.noted', '', true);
    end if;
    for _turn in 1..10 loop
        -- Most claims find enough under the first keys.
        _read := case when _turn = 1 then 64 else 1000 end;
        _looked := 0; _notes := 0; _busy := false; _again := false;
        for _noted in
            select due.kind, due.limit_key, min(due.due_at) as first, count(*) as notes
            from (
                select note.* from unnest(_kinds) as given (kind)
                cross join lateral (select _cursors[array_position(_all, given.kind)]) as start (cursor)
                cross join lateral (
                    select n.kind, n.limit_key, n.due_at from agent.limit_note as n
                    where n.kind = given.kind and n.due_at <= _now
                    and n.due_at >= case when start.cursor <= _now then start.cursor else '-infinity' end
                    order by n.due_at limit _read) as note
                where not exists (select from agent.kind as k where k.kind = given.kind and k.paused)
            ) as due
            group by due.kind, due.limit_key order by min(due.due_at) limit 64
        loop
            _looked := _looked + 1;
            _notes := _notes + _noted.notes;
            -- Claims of a key take turns: so their counts are exact.
            _own := agent.limit_turn(_noted.kind, _noted.limit_key);
            if not agent.take_turn(_own) and not (_waits and not _busy and agent.await_turn(_own)) then
                _busy := true;
                continue;
            end if;
            if _noted.limit_key = '' and agent.park_events(_noted.kind, 200) > 0 then
                _again := _turn = 1;
                continue; -- the note stays until nothing is left to park
            end if;
            -- Notes go first: the look then finds every event that they are about.
            delete from agent.limit_note as n where n.ctid = any(array(
                select due.ctid from agent.limit_note as due
                where due.kind = _noted.kind and due.limit_key = _noted.limit_key
                and due.due_at >= _noted.first and due.due_at <= _now
                order by due.due_at limit 1000 for update skip locked));
            continue when _noted.limit_key = '';
            if _rule.kind is distinct from _noted.kind then
                select * into _rule from agent.limits as l where l.kind = _noted.kind;
            end if;
            if agent.limit_problem(_rule) is not null then
                -- It would fail the claim of all kinds.
                raise warning '%', agent.limit_problem(_rule);
                insert into agent.limit_note (kind, limit_key, due_at)
                values (_noted.kind, _noted.limit_key, _now + interval '10 seconds');
                continue;
            end if;
            select * into _held
            from agent.hold_key(_rule, _noted.limit_key, _left, _most_bytes - bytes
                , _most[array_position(_kinds, _noted.kind)], _lease, _noted.first, _passed);
            if _held.look_at is not null then
                insert into agent.limit_note (kind, limit_key, due_at)
                values (_noted.kind, _noted.limit_key, _held.look_at);
            end if;
            if _held.places is not null then
                places := places || _held.places;
                vts := vts || _held.vts;
                group_keys := group_keys || _held.group_keys;
                lapsed := lapsed || case when _noted.kind = any(_grouped) then _held.lapsed
                    else array_fill(true, array[cardinality(_held.lapsed)]) end;
                _left := _left - cardinality(_held.places);
                bytes := bytes + coalesce(_held.bytes, 0);
                exit when _left <= 0 or bytes >= _most_bytes;
            end if;
        end loop;
        exit when places is not null or not _busy and not _again and _looked < 64 and _notes < _read or _waits
            and _busy;
        _waits := _busy;
    end loop;
end $$;

-- The events of a claim with limited kinds: parked events, and events of the other kinds with their
-- groups. Either come first in half of the claims. The list begins with the parked events: they
-- count as running by now, and a claim of too many bytes leaves out the end.
create or replace function agent.hold_mixed
( _limited text[], _kinds text[], _member_kinds text[], _limit int4, _most_bytes int8, _max_attempts int4
, _lease interval, _now timestamptz, _cursors timestamptz[], _passed int8[], out places tid[]
, out vts timestamptz[], out bytes int8) language plpgsql security definer as $$
declare
    _held record; _members text[]; _others text[] := agent.without_parked(_kinds);
    _all_parked boolean := array_remove(_others, '') = '{}';
    _parked boolean := _all_parked or random() < 0.5; _left int4 := _limit;
begin
    bytes := 0;
    for _turn in 1..2 loop
        if _parked then
            _held := agent.hold_limited(
                _limited, _left, _most_bytes, _max_attempts, _lease, _now, _cursors, _kinds, _passed);
            _members := array(select l.kind from agent.limits as l
                where l.kind = any(_limited) and l.grouped);
        else
            select h.places[:_left] as places, h.vts[:_left] as vts, h.group_keys, h.lapsed, h.bytes
            into _held
            from agent.take_heads(_others, _left, _max_attempts, _now, _cursors, _passed, true) as h;
            _members := agent.without_parked(_member_kinds);
        end if;
        if array_remove(_held.group_keys, null) <> '{}' then
            select * into _held
            from agent.take_members(_held.places, _held.vts, _held.group_keys, _held.lapsed, _members, _left
                , _max_attempts, _now, _held.bytes, _passed);
        end if;
        places := case when _parked then _held.places || places else places || _held.places end;
        vts := case when _parked then _held.vts || vts else vts || _held.vts end;
        bytes := bytes + coalesce(_held.bytes, 0);
        _left := _left - coalesce(cardinality(_held.places), 0);
        exit when _left <= 0 or _all_parked;
        _parked := not _parked;
    end loop;
end $$;
