-- Limits of kinds: how many of their events run at once, and how many begin in a period, counted by
-- key (docs/adr/0040-limits.md). Events of a limited kind are parked as they are stored: in lanes
-- that ordinary claims do not visit. hold_limited claims them, as far as the limit allows.
--   limits: the limits that hold; claims, lists
--   without_parked: kinds with ordinary lanes; claims
--   limit_key, with_limit_key: the key of an event; inserts, parking
--   note_key, note_parked, note_freed: notes for claims; all that move a parked event, settles
--   event_parked: trigger: a parked event gets its key and a note
--   next_key, park_events, note_keys: events from before a limit, and after it; set_limit
--   check_limit, hold_limit, declare_limits: workers, before they claim
--   set_limit, reset_limit, list_limits: operators
--   limit_sound: trigger: a limit that cannot be counted is refused
--   limit_problem: why a limit cannot be counted; claims, why_limited
--   why_limited: why an event waits; why_waiting
--   sweep_limits: drops what is idle; sweep_kinds

-- The limits that hold: an operator's, otherwise what workers declared.
create or replace view agent.limits as
select l.kind, coalesce(l.set_per, l.per) as per
, nullif(coalesce(l.set_concurrency, l.concurrency), 0) as concurrency
, case when l.set_rate is null then l.rate else nullif(l.set_rate, 0) end as rate
, case when l.set_rate is null then l.period else l.set_period end as period, l.grouped, l.parks, l.set_at
, l.set_by, l.concurrency as declared_concurrency, l.rate as declared_rate, l.period as declared_period
from agent.kind_limit as l;

-- The kinds in their order, with an empty string in place of each kind whose events are parked.
create or replace function agent.without_parked(_kinds text[]) returns text[]
language plpgsql stable security definer as $$ begin
    return array(
        select case when exists (select from agent.kind_limit as l where l.kind = given.kind and l.parks)
            then '' else given.kind end
        from unnest(_kinds) with ordinality as given (kind, nth) order by nth);
end $$;

-- Returns the key under which its kind's limit counts an event. _given: the key that it has.
create or replace function agent.limit_key(_kind text, _event jsonb, _given text) returns text
language plpgsql stable security definer as $$
declare
    _per text := coalesce(
        (select coalesce(l.set_per, l.per) from agent.kind_limit as l where l.kind = _kind), 'kind');
    _key text;
begin
    if _per = 'kind' then return 'kind:'; end if;
    _key := case _per
        when 'workspace' then 'workspace:' || agent.event_workspace(_event)
        when 'channel' then 'channel:' || agent.event_workspace(_event) || ':' || agent.event_channel(_event)
        when 'user' then 'user:' || agent.event_workspace(_event) || ':' || agent.event_user(_event)
        when 'given' then case when _given like 'given:%' then _given else 'given:' end end;
    -- By a variable: else the call would not be inlined.
    return agent.bounded_key(_key);
end $$;

create or replace function agent.with_limit_key(_changes jsonb, _key text) returns jsonb
language sql immutable parallel safe set search_path = pg_catalog, pg_temp
return jsonb_build_array(jsonb_build_object('limit_key', _key))
    || case when _changes #> '{0,limit_key}' is null then _changes else _changes - 0 end;

-- Notes a key for claims to look at, from a moment on. One visible note is enough for a
-- transaction: a claim that looks at the key finds all that the transaction stored. Settings that
-- end with the transaction remember hashes of such keys, and the latest of their moments. An older
-- event gets a note of its own.
create or replace function agent.note_key(_kind text, _key text, _due_at timestamptz) returns void
language plpgsql security definer as $$
declare
    _noted text := coalesce(current_setting('surelane.noted', true), '');
    _hash text := ' ' || hashtextextended(_kind || ' ' || _key, 0) || ';';
    -- Seconds, not a time's text: its zone's abbreviation may be another zone's, too.
    _from timestamptz := to_timestamp(nullif(current_setting('surelane.noted_since', true), '')::float8);
begin
    if strpos(_noted, _hash) > 0 and _due_at >= _from then return; end if;
    insert into agent.limit_note (kind, limit_key, due_at) values (_kind, _key, _due_at);
    if _due_at <= agent.clock() then
        perform set_config('surelane.noted'
            , case when length(_noted) < 8000 then _noted else '' end || _hash, true)
        , set_config('surelane.noted_since', extract(epoch from greatest(_from, _due_at))::text, true);
    end if;
end $$;

-- Gives a parked event its key, and notes it. A duplicate's note costs a look that finds nothing.
create or replace function agent.event_parked() returns trigger language plpgsql security definer as $$ begin
    new.changes := agent.with_limit_key(new.changes
        , agent.limit_key(new.kind, new.event, new.changes #>> '{0,limit_key}'));
    if new.head then
        perform agent.note_key(new.kind, new.changes #>> '{0,limit_key}', new.vt);
    end if;
    return new;
end $$;

-- Notes the parked ones among some events, for claims now or at their vt. All that changes vt,
-- head, lane or claimed_by of a parked event calls it, except a claim: a trigger would slow all
-- claims. An event from before the limit gets its key. _freed: their claims ended.
create or replace function agent.note_parked(_ids int8[], _freed boolean) returns void
language plpgsql security definer set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare _parked record; _key text;
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
-- claim that still counts these runs looks again (agent.hold_key).
create or replace function agent.note_freed(_kinds text[], _keys text[]) returns void
language plpgsql security definer as $$ begin
    insert into agent.limit_note (kind, limit_key, due_at)
    select freed.kind, freed.key, agent.clock()
    from (select distinct given.kind, given.key from unnest(_kinds, _keys) as given (kind, key)) as freed
    where (select s.blocked_at from agent.limit_state as s
        where s.kind = freed.kind and s.limit_key = freed.key order by s.at desc limit 1) is not null;
    if found then perform pg_notify('agent_event', ''); end if;
end $$;

-- Returns the next key after _after under which events of a kind are parked; null at the end.
create or replace function agent.next_key(_kind text, _after text) returns text
language sql security definer set enable_sort = off
return (
    select e.changes #>> '{0,limit_key}' from agent.event as e
    where e.lane < 0 and e.head and (e.kind || ' ' || (e.changes #>> '{0,limit_key}')) collate "C" > _kind
    || ' ' || _after and (e.kind || ' ' || (e.changes #>> '{0,limit_key}')) collate "C" < _kind || '!'
    and e.kind || '' = _kind
    order by (e.kind || ' ' || (e.changes #>> '{0,limit_key}')) collate "C" limit 1);

-- Parks up to _most events from before their kind's limit, and gives new keys to events whose key
-- follows an older rule. Skips locked rows. Returns the number of events.
create or replace function agent.park_events(_kind text, _most int4) returns int4
language plpgsql security definer set enable_sort = off as $$
declare
    _per text := (select l.per from agent.limits as l where l.kind = _kind);
    _found int8[]; _parked int4;
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
                select agent.next_key(_kind, known.key) from known where known.key is not null)
            select e.id from known cross join lateral (
                select w.id from agent.event as w where w.lane < 0 and w.head
                and (w.kind || ' ' || (w.changes #>> '{0,limit_key}')) collate "C" = _kind || ' ' || known.key
                order by w.lane::int4, w.vt limit _most) as e
            where known.key not like _per || ':%' limit _most);
    end if;
    -- In the order of their vt, in which one note is enough for a key (agent.note_key).
    _parked := (agent.in_halves($s$
        with parked as (
            update agent.event as e
            set lane = agent.lane_for(e.kind, agent.priority_of(e.lane), e.group_key, e.event)
            , changes = agent.with_limit_key(e.changes
                , agent.limit_key(e.kind, e.event, e.changes #>> '{0,limit_key}'))
            from (
                select held.place from (select w.ctid as place, w.vt from agent.event as w
                    where w.id = any($1) order by w.id for update skip locked) as held
                order by held.vt offset 0) as sorted
            where e.ctid = sorted.place returning e.id)
        select jsonb_build_object('parked', count(*)) from parked $s$, _found, 'event')).counts ->> 'parked';
    perform agent.note_parked(_found, false);
    return coalesce(_parked, 0);
end $$;

-- Notes up to _most keys of a kind under which events wait, and that events must be parked. Wakes a
-- worker. Runs after a limit changed, and in sweeps, which so repair missing notes: after changes
-- by hand, and for events stored before a limit and committed after it.
create or replace function agent.note_keys(_kind text, _most int4) returns int4
language plpgsql security definer set enable_bitmapscan = off as $$ declare _noted int4;
begin
    insert into agent.limit_note (kind, limit_key, due_at)
    with recursive known (key, nth) as (
        select agent.next_key(_kind, ''), 1
        union all
        select agent.next_key(_kind, known.key), nth + 1
        from known where known.key is not null and nth < _most)
    select _kind, known.key, agent.clock() from known where known.key is not null
    union all
    select _kind, '', agent.clock();
    get diagnostics _noted = row_count;
    if _noted > 0 then perform pg_notify('agent_event', ''); end if;
    return _noted;
end $$;

create or replace function agent.check_limit
( _per text, _concurrency int4, _rate int4, _period interval, _least int4) returns void
language plpgsql immutable as $$ begin
    if _per not in ('kind', 'workspace', 'channel', 'user', 'given') then
        raise invalid_parameter_value
            using message = format('per is kind, workspace, channel, user or given, not %L', left(_per, 40));
    elsif _concurrency not between _least and 10000 then
        raise invalid_parameter_value using message = format(
            'concurrency is from %s to 10000, not %s', _least, _concurrency);
    elsif _rate not between _least and 1000000 then
        raise invalid_parameter_value using message = format(
            'rate is from %s to 1000000, not %s', _least, _rate);
    elsif (coalesce(_rate, 0) = 0) <> (_period is null)
    or _period not between interval '100 milliseconds' and interval '1 day' then
        raise invalid_parameter_value using message = format('rate has a period from 100ms to 1d, not %s'
            , coalesce(_period::text, 'none'));
    end if;
end $$;

create or replace function agent.limit_sound() returns trigger language plpgsql security definer as $$ begin
    perform agent.check_limit(new.per, new.concurrency, new.rate, new.period, 1)
    , agent.check_limit(new.set_per, new.set_concurrency, new.set_rate, new.set_period, 0);
    return new;
end $$;

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
language plpgsql security definer as $$ declare _most text := current_setting('lock_timeout');
begin
    if not agent.await_turn('kind_limit ' || _kind
        , case when _most::interval between interval '1 ms' and interval '2 s' then _most else '2s' end) then
        raise lock_not_available using message = format(
            'another transaction changes the limit of kind %s; try again', left(_kind, 200));
    end if;
end $$;

-- Records the limits of a worker's handlers: {"kind": {"per": …, "concurrency": …, "rate": …,
-- "period": seconds, "grouped": …}}. The worker's other kinds have no limit. The last worker that
-- started decides. Waits 100 ms at most for a limit that another transaction changes (55P03:
-- nothing was recorded, and the worker may not claim). Returns the kinds it changed.
create or replace function agent.declare_limits(_name text, _kinds text[], _limits jsonb) returns text[]
language plpgsql security definer set enable_seqscan = off set lock_timeout = '100ms' as $$
declare _given record; _old agent.kind_limit; _changed text[] := '{}';
begin
    for _given in
        select wanted.kind, coalesce(declared.body ->> 'per', 'kind') as per
        , (declared.body ->> 'concurrency')::int4 as concurrency, (declared.body ->> 'rate')::int4 as rate
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
create or replace function agent.set_limit
( _kind text, _concurrency int4, _rate int4, _period interval, _per text) returns void
language plpgsql security definer as $$ begin
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
language plpgsql security definer as $$ begin
    perform agent.hold_limit(_kind);
    update agent.kind_limit set set_per = null, set_concurrency = null, set_rate = null, set_period = null
    , set_at = null, set_by = null where kind = _kind and set_at is not null;
    if not found then return false; end if;
    perform agent.note_keys(_kind, 10000);
    return true;
end $$;

create or replace function agent.list_limits() returns setof agent.limits language sql stable security definer
as $$ select * from agent.limits as l where l.parks or l.set_at is not null order by l.kind $$;

create or replace function agent.why_limited(_e agent.event, _now timestamptz) returns text
language plpgsql security definer as $$
declare
    _limit agent.limits; _state agent.limit_state; _room record;
    _key text := _e.changes #>> '{0,limit_key}';
begin
    if _e.lane >= 0 then return null; end if;
    select * into _limit from agent.limits as l where l.kind = _e.kind;
    if agent.limit_problem(_limit) is not null then return agent.limit_problem(_limit); end if;
    select * into _state from agent.limit_state as s where s.kind = _e.kind and s.limit_key = _key
    order by s.at desc limit 1;
    select * into _room from agent.limit_room(_limit, _state, _now, null);
    return case when _room.room > 0 or _room.room is null then null
        when _room.free_at is not null
            then format('%s events per %s for %s began already; the next one begins at %s'
            , _limit.rate, _limit.period, _key, _room.free_at)
        else format(
            '%s of %s run at once for %s; the next one begins when one of them ends'
            ', by %s unless its lease is renewed', cardinality(_room.running), _limit.concurrency, _key
            , (select min(e.vt) from agent.event as e where e.id = any(_room.running))) end;
end $$;

-- Sweeps the limits in bounded steps: adds missing notes, deletes idle keys and limits.
create or replace function agent.sweep_limits(_lanes int4[], _found text[]) returns void
language plpgsql security definer as $$ declare _idle tid[]; _turns text[];
begin
    -- Events may be parked although their kind has no limit.
    perform agent.in_halves('with new as (insert into agent.kind_limit (kind) select kind'
        ' from unnest($1) as kind where agent.take_turn(''kind_limit '' || kind) on conflict do nothing'
        ' returning 1) select jsonb_build_object(''limits'', count(*)) from new', array(
            select distinct seen.kind from unnest(_lanes, _found) as seen (lane, kind) where seen.lane < 0
            and not exists (select from agent.kind_limit as l where l.kind = seen.kind)), 'kind')
    , agent.each_kind('agent.note_keys(kind, 1000)', array(select kind from agent.kind_limit))
    , agent.delete_rows('kind_limit', array(
            select idle.ctid from agent.kind_limit as idle where not idle.parks and idle.set_at is null
            and not exists (select from unnest(_lanes, _found) as seen (lane, kind)
                where seen.lane < 0 and seen.kind = idle.kind)
            and agent.take_turn('kind_limit ' || idle.kind) for update skip locked));
    -- No period is longer than a day.
    select array_agg(gone.place), array_agg(gone.turn) into _idle, _turns from (
        select idle.ctid as place, agent.limit_turn(idle.kind, idle.limit_key) as turn
        from agent.limit_state as idle
        where idle.at - timestamptz '1970-01-01 00:00:00+00' < (select agent.clock())
        - timestamptz '1970-01-01 00:00:00+00' - interval '25 hours'
        and not exists (select from agent.event as e
            where e.id = any(idle.running) and e.claimed_by is not null)
        and agent.take_turn(agent.limit_turn(idle.kind, idle.limit_key))
        order by idle.at - timestamptz '1970-01-01 00:00:00+00' limit 100 for update skip locked) as gone;
    perform agent.delete_rows('limit_state', _idle)
    , agent.delete_rows('turn', array(select ctid from agent.turn where name = any(_turns)));
end $$;
