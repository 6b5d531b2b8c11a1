-- Heartbeats, notes, and the rescue of dead workers' events.
--   extend_leases: a worker's heartbeat
--   note_event: a worker, for what the next attempt must know
--   in_halves, each_kind, added: one item that refuses stops no other; retention, erasing, sweeps
--   end_claims: their events are visible at once; rescues
--   rescue_events: claims without heartbeats; a worker's sweep
--   rescue_worker: a worker without its session; responder and deputy
--   release_unknown: claims whose answer was lost; a worker that reconnects

-- Renews leases. A group shares one: extending one member's extends all that are held. Stale: the
-- lease is lost. Busy: the row, or its group's head, is locked.
create or replace function agent.extend_leases
( _ids int8[], _claims int4[], _invisible_for interval default '10m')
returns table (ordinal int4, answer text)
language plpgsql security definer set enable_seqscan = off set lock_timeout = '100ms' as $$
declare _held int8[]; _groups text[]; _sooner int8[]; _soonest interval; _now timestamptz;
begin
    begin
        _held := agent.hold_claims(_ids, _claims);
        -- A lapsed run of a limited kind no longer counts, so its slot may be taken. The worker has
        -- stopped its handler by then. The clock is read with the rows and this lock held: from
        -- then on a claim counts these runs (agent.limit_room), however late this transaction ends.
        -- No session of ours takes the lock exclusively. Where a foreign one does, this goes on
        -- without it, but renews no limited run that would lapse before this has ended.
        _soonest := case when pg_try_advisory_xact_lock_shared(agent.heartbeat_lock()) then interval '0'
            else interval '10 s' end;
        _now := agent.clock();
        _held := array(
            select given.id from unnest(_held) as given (id)
            cross join lateral (select lane, vt from agent.event where id = given.id limit 1) as e
            where e.lane >= 0 or e.vt > _now + _soonest);
        _groups := array(select distinct group_key from agent.event
            where id = any(_held) and group_key is not null);
        if _groups <> '{}' then
            _held := _held
                || array(select id from agent.event
                    where group_key = any(_groups) and not head and claimed_by is not null
                    for update skip locked)
                || array(select id from agent.event
                    where group_key = any(_groups) and head and claimed_by is not null
                    and (lane >= 0 or vt > _now + _soonest) for update skip locked);
        end if;
        -- Parked events whose lease ends sooner than claims of their key expect.
        _sooner := array(
            select e.id from unnest(_held) as given (id)
            cross join lateral (select * from agent.event where id = given.id limit 1) as e
            where e.lane < 0 and e.head and e.cancelled_by is null and e.vt > _now + _invisible_for);
        -- Not if it was asked to be cancelled: so a worker that hangs is fenced.
        update agent.event set vt = case when cancelled_by is null then _now + _invisible_for else vt end
        , heartbeat_at = _now where id = any(_held);
        if _sooner <> '{}' then perform agent.note_parked(_sooner, false); end if;
    exception when lock_not_available or deadlock_detected then
        -- skip locked may wait all the same where a row is being updated at that moment.
        _held := '{}';
    end;
    return query select a.ordinal, a.answer from agent.settle_answers(_ids, _claims, _held) as a;
end $$;

-- Keeps, fenced, what a handler's next attempt must find, such as the timestamp of its stream.
create or replace function agent.note_event(_id int8, _claim int4, _notes jsonb) returns text
language plpgsql security definer set enable_seqscan = off set lock_timeout = '100ms' as $$
declare _held int8[];
begin
    begin
        _held := agent.hold_claims(array[_id], array[_claim]);
        update agent.event set notes = _notes where id = any(_held);
    exception when lock_not_available or deadlock_detected then
        _held := '{}';
    end;
    return (select answer from agent.settle_answers(array[_id], array[_claim], _held));
end $$;

-- Runs a statement that takes items as $1 and returns counts. If it fails, in halves: an item that
-- refuses or is locked stops no other. kept names it, as one of _what, with its SQLSTATE.
create or replace function agent.in_halves
( _statement text, _items anyarray, _what text, out counts jsonb, out kept jsonb)
language plpgsql as $$
declare
    _half int4 := cardinality(_items) / 2; _rest record; _most text := current_setting('lock_timeout');
begin
    counts := '{}'; kept := '{}';
    if _items = '{}' then return; end if;
    begin
        execute _statement into counts using _items;
        return;
    exception when others then
        if sqlstate not in ('55P03', '40P01') and agent.is_outage(sqlstate) then
            raise;
        elsif _half = 0 then
            if not agent.is_outage(sqlstate) then -- without the error's text: it may quote the row
                raise warning '% % refuses: SQLSTATE %', _what, _items[1], sqlstate;
            end if;
            kept := jsonb_build_object(format('%s %s', _what, _items[1]), sqlstate);
            return;
        end if;
    end;
    perform set_config('lock_timeout', '10ms', true); -- for each of the others that are locked
    select * into counts, kept from agent.in_halves(_statement, _items[:_half], _what);
    select * into _rest from agent.in_halves(_statement, _items[_half + 1:], _what);
    counts := agent.added(counts, _rest.counts); kept := kept || _rest.kept;
    perform set_config('lock_timeout', _most, true);
end $$;

-- Calls a function for each of some kinds, which it knows as "kind".
create or replace function agent.each_kind(_call text, _kinds text[]) returns void language sql as $$
    select agent.in_halves(format('select jsonb_build_object(''kinds'', count(%s)) from unnest($1) as kind'
            , _call), _kinds, 'kind') $$;

create or replace function agent.added(_counts jsonb, _more jsonb) returns jsonb
language sql immutable parallel safe
return (
    select coalesce(jsonb_object_agg(name, total), '{}') from (
        select key as name, sum(value::int8) as total
        from (select * from jsonb_each_text(_counts) union all select * from jsonb_each_text(_more)) as c
        group by key) as summed);

-- Ends claims of a dead worker: their events are visible at once, the attempts counted, as after a
-- lapse. Exhausted ones go to history. They remember _rescue: who found it out, and how. Skips
-- locked rows, and rows that refuse it, with a warning. Returns how many.
create or replace function agent.end_claims(_ids int8[], _rescue jsonb) returns int4
language plpgsql security definer as $$ declare _now timestamptz := agent.clock(); _rescued int4;
begin
    _rescued := coalesce((agent.in_halves(format($s$
        with ended as (
            update agent.event set vt = %1$L, changes = agent.add_change(changes
                , jsonb_build_object('action', 'rescued', 'at', %1$L::timestamptz, 'worker', claimed_by
                , 'claim', array_upper(claimed, 1)) || %2$L)
            where id in (
                select id from agent.event where id = any($1) and claimed_by is not null and vt > %1$L
                order by id for update skip locked) returning id)
        select jsonb_build_object('claims', count(*)) from ended $s$, _now, _rescue)
    , _ids, 'event')).counts ->> 'claims', '0');
    if _rescued > 0 then
        perform agent.note_parked(_ids, false);
        perform agent.sweep_exhausted(null, 1000, null);
        perform pg_notify('agent_event', '');
    end if;
    return _rescued;
end $$;

-- Ends the claims without a heartbeat for _dead_for: their worker hangs, or has lost the network.
-- It takes a claim for lost after as long (surelane.events.DEAD_FOR), so none works on it. Claims
-- that send no heartbeats are left to their vt. And the claims that a worker had when it was taken
-- for dead: they had lapsed, and the clock went back since. Later ones are alive. Returns how many.
create or replace function agent.rescue_events(_dead_for interval default '5m') returns int4
language sql security definer set enable_seqscan = off
return agent.end_claims(array(
        select id from agent.event
        where attempts > 0 and vt > (select agent.clock()) and claimed_by is not null
        and heartbeat_at < (select agent.clock()) - _dead_for)
    , jsonb_build_object('silent_for', extract(epoch from _dead_for)))
    + agent.end_claims(array(
        select e.id from agent.worker as w join agent.event as e on e.claimed_by = w.name
        where e.claimed[array_upper(e.claimed, 1)] <= w.died_at
        and e.attempts > 0 and e.vt > (select agent.clock())), '{}');

-- Takes a worker for dead whose session has been gone for _lost_for, at the word of worker _by, and
-- ends its claims. Does nothing where that session is open, or the worker has opened another.
-- Returns how many claims it ended and how many are left locked: call it again. Where no worker saw
-- the death, it counts from when the silence showed it.
create or replace function agent.rescue_worker
( _name text, _session int4, _lost_for interval, _by text, out rescued int4, out remaining int4)
language plpgsql security definer set enable_seqscan = off as $$
declare _now timestamptz := agent.clock(); _died_at timestamptz; _ids int8[];
begin
    rescued := 0; remaining := 0;
    select coalesce(died_at, least(_now - _lost_for, seen_at + agent.alive_for())) into _died_at
    from agent.worker where name = _name and session = _session;
    if not found or _session = any(agent.open_sessions()) then return; end if;
    _ids := array(select id from agent.event where attempts > 0 and vt > _now and claimed_by = _name);
    rescued := agent.end_claims(_ids, jsonb_build_object('died_at', _died_at, 'by', _by));
    remaining := cardinality(_ids) - rescued;
    -- Other workers look until this is set. Where the row is locked, its events do not wait.
    update agent.worker set died_at = _died_at where remaining = 0
    and name in (select name from agent.worker where name = _name and session = _session and died_at is null
        for update skip locked);
end $$;

-- Releases claims of a living worker that it does not know of, as the answer to its claim was lost:
-- all until a moment, by default now, except _ids; and those after now, as the clock went back. The
-- worker calls it over a new connection, and again with the moment returned. Skips locked events.
create or replace function agent.release_unknown
( _name text, _ids int8[], _claims int4[], _before timestamptz default null, out before timestamptz
, out released int4) language plpgsql security definer set enable_seqscan = off as $$
declare _now timestamptz := agent.clock(); _unknown int8[]; _unknown_claims int4[];
begin
    before := coalesce(_before, _now);
    select coalesce(array_agg(e.id), '{}'), coalesce(array_agg(array_upper(e.claimed, 1)), '{}')
    into _unknown, _unknown_claims
    from agent.event as e where e.attempts > 0 and e.vt > _now and e.claimed_by = _name
    and (e.claimed[array_upper(e.claimed, 1)] <= before
        or e.claimed[array_upper(e.claimed, 1)] > _now + interval '1 second')
    and (e.id, array_upper(e.claimed, 1)) not in (select known.id, known.claim
        from unnest(_ids, _claims) as known (id, claim));
    released := (
        select count(*) from agent.settle(_unknown, _unknown_claims
            , array_fill('release'::text, array[cardinality(_unknown)])) where answer = 'done');
end $$;
