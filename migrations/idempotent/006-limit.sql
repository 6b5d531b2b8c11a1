-- Limits of kinds: how many of their events run at once, and how many begin in a period, counted by
-- key (docs/adr/0040-limits.md). Events of a limited kind are parked as they are stored: in lanes
-- that ordinary claims do not visit. hold_limited claims them, as far as the limit allows.
--
--   limits: the limits that hold; claims, lists
--   without_parked: kinds with ordinary lanes; claims
--   limit_key, with_limit_key: the key of an event; inserts, parking
--   note_key, note_parked, note_freed: notes for claims; all that move a parked event, settles
--   event_parked: trigger: a parked event gets its key and a note
--   take_turn, await_turn, limit_turn: one transaction at a time; claims, sweeps, operators
--   heartbeat_lock: renewals under way; heartbeats, limit_room
--   limit_room: how many more may begin; hold_key, lists
--   hold_key: claims the events of one key; hold_limited
--   hold_limited, hold_mixed: claim limited kinds; claims
--   next_key, park_events, note_keys: events from before a limit, and after it; changes of limits
--   check_limit, hold_limit, declare_limits: workers, before they claim
--   set_limit, reset_limit, list_limits: operators
--   limit_sound: trigger: a limit that cannot be counted is refused
--   limit_problem: why one that stands cannot be; claims, why_limited
--   why_limited: why an event waits; why_waiting
--   sweep_limits: drops what is idle; sweep_kinds

-- The limits that hold: an operator's, otherwise what workers declared.
create or replace view agent.limits as
select l.kind, coalesce(l.set_per, l.per) as per
, nullif(coalesce(l.set_concurrency, l.concurrency), 0) as concurrency
, case when l.set_rate is null then l.rate else nullif(l.set_rate, 0) end as rate
, case when l.set_rate is null then l.period else l.set_period end as period
, l.grouped, l.parks, l.set_at, l.set_by
, l.concurrency as declared_concurrency, l.rate as declared_rate, l.period as declared_period
from agent.kind_limit as l;

-- Returns the kinds in their order, each kind whose events are parked replaced by an empty string.
create or replace function agent.without_parked(_kinds text[]) returns text[]
language plpgsql stable security definer as $$
begin
    return array(
        select case when exists (select from agent.kind_limit as l where l.kind = given.kind and l.parks)
            then '' else given.kind end
        from unnest(_kinds) with ordinality as given (kind, nth) order by nth);
end $$;

-- Returns the key under which its kind's limit counts an event. _given: the key that it has.
create or replace function agent.limit_key(_kind text, _event jsonb, _given text) returns text
language plpgsql stable security definer as $$
declare
    _per text := coalesce((select coalesce(l.set_per, l.per) from agent.kind_limit as l where l.kind = _kind)
        , 'kind');
    _key text;
begin
    if _per = 'kind' then
        return 'kind:';
    end if;
    _key := case _per
        when 'workspace' then 'workspace:' || agent.event_workspace(_event)
        when 'channel' then 'channel:' || agent.event_workspace(_event) || ':' || agent.event_channel(_event)
        when 'user' then 'user:' || agent.event_workspace(_event) || ':' || agent.event_user(_event)
        when 'given' then case when _given like 'given:%' then _given else 'given:' end end;
    -- Of a variable, or it would not be inlined.
    return agent.bounded_key(_key);
end $$;

-- Returns the changes of an event with its key as the first entry, which is always kept.
create or replace function agent.with_limit_key(_changes jsonb, _key text) returns jsonb
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp
return jsonb_build_array(jsonb_build_object('limit_key', _key))
    || case when _changes #> '{0,limit_key}' is null then _changes else _changes - 0 end;

-- Notes a key for claims to look at, from a moment on. One visible note is enough for a
-- transaction: a claim that looks at the key finds all that the transaction stored from then on.
-- Settings that end with the transaction, or its savepoint, remember hashes of such keys, and the
-- latest of their moments. An older event gets a note of its own.
create or replace function agent.note_key(_kind text, _key text, _due_at timestamptz) returns void
language plpgsql volatile security definer as $$
declare
    _noted text := coalesce(current_setting('surelane.noted', true), '');
    _hash text := ' ' || hashtextextended(_kind || ' ' || _key, 0) || ';';
    -- Seconds, not a time's text: its zone's abbreviation may be another zone's, too.
    _from timestamptz := to_timestamp(nullif(current_setting('surelane.noted_since', true), '')::float8);
begin
    if strpos(_noted, _hash) > 0 and _due_at >= _from then
        return;
    end if;
    insert into agent.limit_note (kind, limit_key, due_at) values (_kind, _key, _due_at);
    if _due_at <= agent.clock() then
        perform set_config('surelane.noted', case when length(_noted) < 8000 then _noted else '' end || _hash
            , true)
        , set_config('surelane.noted_since', extract(epoch from greatest(_from, _due_at))::text, true);
    end if;
end $$;

-- Gives a parked event its key, and notes it. A duplicate's note costs a look that finds nothing.
create or replace function agent.event_parked() returns trigger
language plpgsql security definer as $$
begin
    new.changes := agent.with_limit_key(new.changes
        , agent.limit_key(new.kind, new.event, new.changes #>> '{0,limit_key}'));
    if new.head then
        perform agent.note_key(new.kind, new.changes #>> '{0,limit_key}', new.vt);
    end if;
    return new;
end $$;

-- Notes the parked ones among some events, for claims now or at their vt. Each function that
-- changes vt, head, lane or claimed_by of a parked event, except a claim, calls it: a trigger would
-- slow all claims. An event from before the limit gets its key. _freed: their claims ended.
create or replace function agent.note_parked(_ids int8[], _freed boolean) returns void
language plpgsql volatile security definer
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
    _parked record;
    _key text;
begin
    for _parked in
        select e.id, e.kind, e.vt, e.claimed_by, e.event, e.changes #>> '{0,limit_key}' as key
        -- By id: an index of parked events is the shorter one while there are few.
        from unnest(_ids) as given (id)
        cross join lateral (select * from agent.event where id = given.id limit 1) as e
        where e.lane < 0 and e.head
    loop
        _key := _parked.key;
        if _key is null then
            _key := agent.limit_key(_parked.kind, _parked.event, null);
            update agent.event set changes = agent.with_limit_key(changes, _key) where id = _parked.id;
        end if;
        if isfinite(_parked.vt) then
            perform agent.note_key(_parked.kind, _key, _parked.vt);
        end if;
        if _freed and _parked.claimed_by is null and _parked.vt > agent.clock() then
            perform agent.note_freed(array[_parked.kind], array[_key]);
        end if;
    end loop;
end $$;

-- Notes keys under which runs ended and, by the last claim's record, events wait; wakes a worker. A
-- claim under way that still counts these runs looks again by itself (agent.hold_key).
create or replace function agent.note_freed(_kinds text[], _keys text[]) returns void
language plpgsql volatile security definer as $$
begin
    insert into agent.limit_note (kind, limit_key, due_at)
    select freed.kind, freed.key, agent.clock()
    from (select distinct given.kind, given.key from unnest(_kinds, _keys) as given (kind, key)) as freed
    where (select s.blocked_at from agent.limit_state as s
        where s.kind = freed.kind and s.limit_key = freed.key order by s.at desc limit 1) is not null;
    if found then
        perform pg_notify('agent_event', '');
    end if;
end $$;

-- Takes the turn of a name until the transaction ends. False: another transaction has it.
create or replace function agent.take_turn(_name text) returns boolean
language plpgsql volatile security definer as $$
begin
    perform from agent.turn where name = _name for update skip locked;
    -- It waits only for a transaction that is just adding the name.
    return found or (not exists (select from agent.turn where name = _name) and agent.await_turn(_name));
end $$;

-- The same, after a wait. A claim of 600 events has the turn of its key for 15 to 25 ms.
create or replace function agent.await_turn(_name text, _most text default '30ms') returns boolean
language plpgsql volatile security definer
set lock_timeout = '30ms' as $$
begin
    perform set_config('lock_timeout', _most, true); -- until this function returns
    insert into agent.turn (name) values (_name) on conflict do nothing;
    perform from agent.turn where name = _name for update;
    return found;
exception when lock_not_available or deadlock_detected then
    return false;
end $$;

-- The turn of a limit's key: a hash, as the key names people.
create or replace function agent.limit_turn(_kind text, _key text) returns text
language sql immutable parallel safe
return 'limit ' || hashtextextended('agent.limit ' || _kind || ' ' || _key, 0);

-- The advisory lock that heartbeats share until they commit (agent.extend_leases).
create or replace function agent.heartbeat_lock() returns int8
language sql immutable parallel safe
return hashtextextended('agent.heartbeat', 0);

-- How many more events of a key may begin now (null: any number), what runs, and until when the
-- rate alone forbids more (null: it does not). _state as the caller read it. For a caller that
-- wants no more than _most, the list of runs may do without a look at what has ended. A caller
-- without _most only looks, and locks nothing. Callers set the planner's settings, here and in
-- agent.hold_key: setting them for each key would take longer than the rest.
create or replace function agent.limit_room
( _limit agent.limits, _state agent.limit_state, _now timestamptz, _most int4
, out room int4, out free_at timestamptz, out lapses_at timestamptz, out running int8[], out long int4)
language plpgsql volatile security definer as $$
declare
    _lapsed int8[];
begin
    running := _state.running;
    long := _state.long;
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
-- caller holds the key's lock, so the count is exact. Returns when to look at the key again (null:
-- after another note), and about how many bytes the events have.
create or replace function agent.hold_key
( _limit agent.limits, _key text, _most int4, _most_bytes int8, _attempts int4, _lease interval
, _noted_at timestamptz
, out places tid[], out vts timestamptz[], out group_keys text[], out lapsed boolean[], out bytes int8
, out look_at timestamptz
)
language plpgsql volatile security definer as $$
declare
    _now timestamptz := agent.clock();
    _kind text := _limit.kind;
    _parked text := _kind || ' ' || _key;
    _state agent.limit_state;
    _known boolean;
    _last timestamptz;
    _room record;
    _may int4;
    _taken int4;
    _all int4;
    _ids int8[];
    _lanes int4[] := array[-2, -1, -3, -4];
    _next timestamptz;
    _start timestamptz;
    _blocked_at timestamptz;
    _seen timestamptz;
begin
    select * into _state from agent.limit_state as s where s.kind = _kind and s.limit_key = _key
    order by s.at desc limit 1 for update skip locked;
    _known := found;
    _last := _state.at;
    _seen := _state.seen;
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
                , w.claimed_by is not null as lapsed, w.id, agent.text_size(w.event) as size
                from agent.event as w
                where w.lane < 0 and w.head
                and (w.kind || ' ' || (w.changes #>> '{0,limit_key}')) collate "C" = _parked
                and w.lane::int4 = place.lane
                and w.vt <= _now and w.vt >= _state.seen and w.cancelled_by is null
                and w.attempts < coalesce(w.max_attempts, _attempts)
                order by w.vt limit _may for update skip locked
            ) as held
            limit _may
        ) as e;
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
            select w.vt from agent.event as w
            where w.lane < 0 and w.head
            and (w.kind || ' ' || (w.changes #>> '{0,limit_key}')) collate "C" = _parked
            and w.lane::int4 = place.lane and w.vt >= _state.seen
            and w.cancelled_by is null and w.attempts < coalesce(w.max_attempts, _attempts)
            and w.ctid not in (select taken from unnest(places) as taken)
            order by w.vt limit 1
        ) as other);
    _state.seen := least(_next, _now);
    if _taken > 0 then
        _next := least(_next, _now + _lease);
    end if;
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
            -- Until a run ends or lapses. A run that ends from now on leaves a note. One that is
            -- just ending may not: it does not know yet that events wait. So this looks by itself,
            -- too, each time after as long as events have waited.
            _blocked_at := coalesce(_state.blocked_at, _now);
            look_at := least(_room.lapses_at
                , _now + least(_lease, greatest(_now - _blocked_at, interval '100 milliseconds')
                    , interval '1 minute'));
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
                group by given.at order by given.at
            ) as began;
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

-- Locks up to _limit parked heads, of keys that have a note and room. It looks at keys in the order
-- of their notes, up to 64 per turn, and takes another turn if one found no event. It skips a key
-- that another claim looks at, unless there is no other, and parks events from before the limit. A
-- head comes without its group: each event is a run, unless the handler takes groups.
create or replace function agent.hold_limited
( _kinds text[], _limit int4, _most_bytes int8, _max_attempts int4, _lease interval, _now timestamptz
, _cursors timestamptz[], _all text[]
, out places tid[], out vts timestamptz[], out group_keys text[], out lapsed boolean[], out bytes int8
)
language plpgsql volatile security definer as $$
declare
    _noted record;
    _rule agent.limits;
    _held record;
    _left int4 := _limit;
    _read int4;
    _looked int4;
    _notes int8;
    _busy boolean;
    _again boolean;
    _own text;
    _waits boolean := false;
    _most int4[] := agent.attempts_of(_kinds, _max_attempts);
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
        _looked := 0;
        _notes := 0;
        _busy := false;
        _again := false;
        for _noted in
            select due.kind, due.limit_key, min(due.due_at) as first, count(*) as notes
            from (
                select note.* from unnest(_kinds) as given (kind)
                cross join lateral (select _cursors[array_position(_all, given.kind)]) as start (cursor)
                cross join lateral (
                    select n.kind, n.limit_key, n.due_at from agent.limit_note as n
                    where n.kind = given.kind and n.due_at <= _now
                    and n.due_at >= case when start.cursor <= _now then start.cursor else '-infinity' end
                    order by n.due_at limit _read
                ) as note
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
            -- Before the look, which then finds all that they stand for.
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
                , _most[array_position(_kinds, _noted.kind)], _lease, _noted.first);
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
                bytes := bytes + _held.bytes;
                exit when _left <= 0 or bytes >= _most_bytes;
            end if;
        end loop;
        exit when places is not null or not _busy and not _again and _looked < 64 and _notes < _read or _waits
            and _busy;
        _waits := _busy;
    end loop;
end $$;

-- The events of a claim with limited kinds: parked events, and events of the other kinds with their
-- groups, either sort first in half of the claims. The list begins with the parked ones: they count
-- as running by now, and a claim of too many bytes leaves out the end. See agent.claim_events.
create or replace function agent.hold_mixed
( _limited text[], _kinds text[], _member_kinds text[], _limit int4, _most_bytes int8, _max_attempts int4
, _lease interval, _now timestamptz, _cursors timestamptz[]
, out places tid[], out vts timestamptz[], out bytes int8
)
language plpgsql volatile security definer as $$
declare
    _held record;
    _members text[];
    _others text[] := agent.without_parked(_kinds);
    _all_parked boolean := array_remove(_others, '') = '{}';
    _parked boolean := _all_parked or random() < 0.5;
    _left int4 := _limit;
begin
    bytes := 0;
    for _turn in 1..2 loop
        if _parked then
            _held := agent.hold_limited(_limited, _left, _most_bytes, _max_attempts, _lease, _now, _cursors
                , _kinds);
            _members := array(select l.kind from agent.limits as l
                where l.kind = any(_limited) and l.grouped);
        else
            select h.places[:_left] as places, h.vts[:_left] as vts, h.group_keys, h.lapsed, h.bytes
            into _held
            from agent.take_heads(_others, _left, _max_attempts, _now, _cursors) as h;
            _members := agent.without_parked(_member_kinds);
        end if;
        if array_remove(_held.group_keys, null) <> '{}' then
            select * into _held
            from agent.take_members(_held.places, _held.vts, _held.group_keys, _held.lapsed, _members, _left
                , _max_attempts, _now, _held.bytes);
        end if;
        places := case when _parked then _held.places || places else places || _held.places end;
        vts := case when _parked then _held.vts || vts else vts || _held.vts end;
        bytes := bytes + coalesce(_held.bytes, 0);
        _left := _left - coalesce(cardinality(_held.places), 0);
        exit when _left <= 0 or _all_parked;
        _parked := not _parked;
    end loop;
end $$;

-- Returns the next key after _after under which events of a kind are parked; null at the end.
create or replace function agent.next_key(_kind text, _after text) returns text
language sql volatile security definer
set enable_sort = off
return (
    select e.changes #>> '{0,limit_key}' from agent.event as e
    where e.lane < 0 and e.head and (e.kind || ' ' || (e.changes #>> '{0,limit_key}')) collate "C" > _kind
    || ' ' || _after and (e.kind || ' ' || (e.changes #>> '{0,limit_key}')) collate "C" < _kind || '!'
    and e.kind || '' = _kind
    order by (e.kind || ' ' || (e.changes #>> '{0,limit_key}')) collate "C" limit 1);

-- Parks up to _most events from before their kind's limit, and gives new keys to events whose key
-- follows an older rule. Skips locked rows. Returns the number of events.
create or replace function agent.park_events(_kind text, _most int4) returns int4
language plpgsql volatile security definer
set enable_sort = off as $$
declare
    _per text := (select l.per from agent.limits as l where l.kind = _kind);
    _found int8[];
    _parked int4;
begin
    if not exists (select from agent.kind_limit as l where l.kind = _kind and l.parks) then
        return 0;
    end if;
    -- This transaction may have looked at keys since it noted them.
    perform set_config('surelane.noted', '', true);
    _found := array(
        select w.id from generate_series(0, 59) as place (lane)
        cross join lateral (select e.id from agent.event as e
            where e.head and e.lane = place.lane and e.kind = _kind order by e.vt limit _most) as w
        limit _most);
    if _found = '{}' then
        _found := array(
            with recursive known (key) as (
                select agent.next_key(_kind, '')
                union all
                select agent.next_key(_kind, known.key) from known where known.key is not null
            )
            select e.id from known cross join lateral (
                select w.id from agent.event as w
                where w.lane < 0 and w.head
                and (w.kind || ' ' || (w.changes #>> '{0,limit_key}')) collate "C" = _kind || ' ' || known.key
                order by w.lane::int4, w.vt limit _most
            ) as e
            where known.key not like _per || ':%' limit _most);
    end if;
    -- In the order of their vt, in which one note is enough for a key (agent.note_key).
    update agent.event as e set lane = agent.lane_for(e.kind, agent.priority_of(e.lane), e.group_key, e.event)
    , changes = agent.with_limit_key(e.changes
        , agent.limit_key(e.kind, e.event, e.changes #>> '{0,limit_key}'))
    from (
        select held.place from (select w.ctid as place, w.vt from agent.event as w where w.id = any(_found)
            order by w.id for update skip locked) as held
        order by held.vt offset 0
    ) as sorted
    where e.ctid = sorted.place;
    get diagnostics _parked = row_count;
    perform agent.note_parked(_found, false);
    return _parked;
end $$;

-- Notes up to _most keys of a kind under which events wait, and that events must be parked. Wakes a
-- worker. Runs after a limit changed, and in sweeps, which so repair missing notes: after changes
-- by hand, and for events stored before a limit and committed after it.
create or replace function agent.note_keys(_kind text, _most int4) returns int4
language plpgsql volatile security definer
set enable_bitmapscan = off as $$
declare
    _noted int4;
begin
    insert into agent.limit_note (kind, limit_key, due_at)
    with recursive known (key, nth) as (
        select agent.next_key(_kind, ''), 1
        union all
        select agent.next_key(_kind, known.key), nth + 1
        from known where known.key is not null and nth < _most
    )
    select _kind, known.key, agent.clock() from known where known.key is not null
    union all
    select _kind, '', agent.clock();
    get diagnostics _noted = row_count;
    if _noted > 0 then
        perform pg_notify('agent_event', '');
    end if;
    return _noted;
end $$;

-- Checks the bounds of a limit. The errors name the field.
create or replace function agent.check_limit(_per text, _concurrency int4, _rate int4, _period interval
    , _least int4) returns void
language plpgsql immutable as $$
begin
    if _per not in ('kind', 'workspace', 'channel', 'user', 'given') then
        raise invalid_parameter_value
            using message = format('per is kind, workspace, channel, user or given, not %L', left(_per, 40));
    elsif _concurrency not between _least and 10000 then
        raise invalid_parameter_value using message = format('concurrency is from %s to 10000, not %s', _least
            , _concurrency);
    elsif _rate not between _least and 1000000 then
        raise invalid_parameter_value using message = format('rate is from %s to 1000000, not %s', _least
            , _rate);
    elsif (coalesce(_rate, 0) = 0) <> (_period is null)
    or _period not between interval '100 milliseconds' and interval '1 day' then
        raise invalid_parameter_value using message = format('rate has a period from 100ms to 1d, not %s'
            , coalesce(_period::text, 'none'));
    end if;
end $$;

-- Refuses what check_limit does, also where a row is written by hand.
create or replace function agent.limit_sound() returns trigger
language plpgsql security definer as $$
begin
    perform agent.check_limit(new.per, new.concurrency, new.rate, new.period, 1)
    , agent.check_limit(new.set_per, new.set_concurrency, new.set_rate, new.set_period, 0);
    return new;
end $$;

do $$
begin
    if not exists (select from pg_trigger
        where tgrelid = 'agent.kind_limit'::regclass and tgname = 'limit_sound') then
        create trigger limit_sound before insert or update on agent.kind_limit
        for each row execute function agent.limit_sound();
    end if;
end $$;

-- Why a limit that stands cannot be counted; null: it can be. Its events wait.
create or replace function agent.limit_problem(_limit agent.limits) returns text
language sql stable parallel safe
return case when _limit.period < interval '100 milliseconds' or _limit.period > interval '1 day'
    or extract(month from _limit.period) + extract(year from _limit.period) <> 0 then
    format(
        'the limit of kind %s cannot be counted: its period is %s, not 100ms to 1d; run: surelane limits set'
        , _limit.kind, _limit.period) end;

-- Takes the turn in which a kind's limit changes. Raises 55P03 where another transaction has it for
-- two seconds, or for as long as the caller waits for a lock.
create or replace function agent.hold_limit(_kind text) returns void
language plpgsql volatile security definer as $$
declare
    _most text := current_setting('lock_timeout');
begin
    if not agent.await_turn('kind_limit ' || _kind
        , case when _most::interval between interval '1 ms' and interval '2 s' then _most else '2s' end) then
        raise lock_not_available
            using message = format('another transaction changes the limit of kind %s; try again'
            , left(_kind, 200));
    end if;
end $$;

-- Records the limits of a worker's handlers: {"kind": {"per": …, "concurrency": …, "rate": …,
-- "period": seconds, "grouped": …}}. The worker's other kinds have no limit. The last worker that
-- started decides; a first limit holds until then. Waits 100 ms at most for a limit that another
-- transaction changes (55P03: nothing was recorded, and the worker may not claim). Returns the
-- kinds it changed.
create or replace function agent.declare_limits(_name text, _kinds text[], _limits jsonb) returns text[]
language plpgsql volatile security definer
set enable_seqscan = off set lock_timeout = '100ms' as $$
declare
    _given record;
    _old agent.kind_limit;
    _changed text[] := '{}';
begin
    for _given in
        select wanted.kind, coalesce(declared.body ->> 'per', 'kind') as per
        , (declared.body ->> 'concurrency')::int4 as concurrency
        , (declared.body ->> 'rate')::int4 as rate
        , make_interval(secs => (declared.body ->> 'period')::float8) as period
        , coalesce((declared.body ->> 'grouped')::boolean, false) as grouped
        from unnest(_kinds) as wanted (kind)
        cross join lateral (select _limits -> wanted.kind) as declared (body)
        where (declared.body is not null
            or exists (select from agent.kind_limit as l where l.kind = wanted.kind))
        and not exists (select from agent.worker as w join agent.kind_limit as l on l.kind = wanted.kind
            where wanted.kind = any(w.kinds) and w.name <> _name
            and w.started_at > (select started_at from agent.worker where name = _name)
            and agent.worker_alive(w.seen_at))
        order by wanted.kind
    loop
        perform agent.check_limit(_given.per, _given.concurrency, _given.rate, _given.period, 1);
        select * into _old from agent.kind_limit as l where l.kind = _given.kind;
        continue when found and (_old.per, _old.concurrency, _old.rate, _old.period, _old.grouped)
            is not distinct from (_given.per, _given.concurrency, _given.rate, _given.period, _given.grouped);
        perform agent.hold_limit(_given.kind);
        insert into agent.kind_limit (kind, per, concurrency, rate, period, grouped)
        values (_given.kind, _given.per, _given.concurrency, _given.rate, _given.period, _given.grouped)
        on conflict (kind) do update set per = excluded.per, concurrency = excluded.concurrency
        , rate = excluded.rate, period = excluded.period, grouped = excluded.grouped;
        perform agent.note_keys(_given.kind, 10000);
        _changed := _changed || _given.kind;
    end loop;
    return _changed;
end $$;

-- Changes a kind's limit, over workers' own. Null leaves a field as it is; 0 lifts a bound.
create or replace function agent.set_limit(_kind text, _concurrency int4, _rate int4, _period interval
    , _per text) returns void
language plpgsql volatile security definer as $$
begin
    perform agent.check_limit(_per, _concurrency, _rate, _period, 0);
    if _kind is null or _kind = '' or length(_kind) > 200 then
        raise invalid_parameter_value using message = 'kind has from 1 to 200 characters';
    end if;
    perform agent.register_kinds(array[_kind]);
    perform agent.hold_limit(_kind);
    insert into agent.kind_limit as l (kind, set_per, set_concurrency, set_rate, set_period, set_at, set_by)
    values (_kind, _per, _concurrency, _rate, _period, agent.clock(), agent.acting())
    on conflict (kind) do update set set_per = coalesce(excluded.set_per, l.set_per)
    , set_concurrency = coalesce(excluded.set_concurrency, l.set_concurrency)
    , set_rate = coalesce(excluded.set_rate, l.set_rate)
    , set_period = case when excluded.set_rate is null then l.set_period else excluded.set_period end
    , set_at = excluded.set_at, set_by = excluded.set_by;
    perform agent.note_keys(_kind, 10000);
end $$;

-- Removes an operator's changes to a limit: the declared one holds. Returns whether there were any.
create or replace function agent.reset_limit(_kind text) returns boolean
language plpgsql volatile security definer as $$
begin
    perform agent.hold_limit(_kind);
    update agent.kind_limit set set_per = null, set_concurrency = null, set_rate = null, set_period = null
    , set_at = null, set_by = null
    where kind = _kind and set_at is not null;
    if not found then
        return false;
    end if;
    perform agent.note_keys(_kind, 10000);
    return true;
end $$;

-- The limits, by kind.
create or replace function agent.list_limits() returns setof agent.limits
language sql stable security definer
as $$ select * from agent.limits as l where l.parks or l.set_at is not null order by l.kind $$;

-- Returns why an event waits for the limit of its kind; null: it does not.
create or replace function agent.why_limited(_e agent.event, _now timestamptz) returns text
language plpgsql volatile security definer as $$
declare
    _limit agent.limits;
    _state agent.limit_state;
    _room record;
    _key text := _e.changes #>> '{0,limit_key}';
begin
    if _e.lane >= 0 then
        return null;
    end if;
    select * into _limit from agent.limits as l where l.kind = _e.kind;
    if agent.limit_problem(_limit) is not null then
        return agent.limit_problem(_limit);
    end if;
    select * into _state from agent.limit_state as s where s.kind = _e.kind and s.limit_key = _key
    order by s.at desc limit 1;
    select * into _room from agent.limit_room(_limit, _state, _now, null);
    return case when _room.room > 0 or _room.room is null then null
        when _room.free_at is not null
            then format('%s events per %s for %s began already; the next one begins at %s'
            , _limit.rate, _limit.period, _key, _room.free_at)
        else format(
            '%s of %s run at once for %s; the next one begins when one of them ends'
            ', by %s unless its lease is renewed'
            , cardinality(_room.running), _limit.concurrency, _key
            , (select min(e.vt) from agent.event as e where e.id = any(_room.running))) end;
end $$;

-- Sweeps the limits in bounded steps: adds missing notes, deletes idle keys and limits.
create or replace function agent.sweep_limits(_lanes int4[], _found text[]) returns void
language plpgsql volatile security definer as $$
begin
    -- These are parked although the kind has no limit.
    insert into agent.kind_limit (kind)
    select unknown.kind from (
        select distinct seen.kind from unnest(_lanes, _found) as seen (lane, kind)
        where seen.lane < 0 and not exists (select from agent.kind_limit as l where l.kind = seen.kind)
        offset 0
    ) as unknown
    where agent.take_turn('kind_limit ' || unknown.kind) on conflict do nothing;
    perform agent.note_keys(l.kind, 1000) from agent.kind_limit as l;
    delete from agent.kind_limit as l where l.kind in (
        select idle.kind from agent.kind_limit as idle where not idle.parks and idle.set_at is null
        and not exists (select from unnest(_lanes, _found) as seen (lane, kind)
            where seen.lane < 0 and seen.kind = idle.kind)
        and agent.take_turn('kind_limit ' || idle.kind) for update skip locked);
    -- No period is longer than a day.
    with gone as (
        delete from agent.limit_state as s where s.ctid = any(array(
        select idle.ctid from agent.limit_state as idle
        where idle.at - timestamptz '1970-01-01 00:00:00+00' < agent.clock(
        ) - timestamptz '1970-01-01 00:00:00+00' - interval '25 hours'
        and not exists (select from agent.event as e
            where e.id = any(idle.running) and e.claimed_by is not null)
        and agent.take_turn(agent.limit_turn(idle.kind, idle.limit_key))
        order by idle.at - timestamptz '1970-01-01 00:00:00+00' limit 100 for update skip locked))
        returning s.kind, s.limit_key
    )
    delete from agent.turn as t using gone where t.name = agent.limit_turn(gone.kind, gone.limit_key);
end $$;
