-- Durable handlers: waits, signals, and requests to cancel.
--   take_signal, due_waits: a handler waits; workers
--   settle_suspended: the outcomes await and suspend; settle_alike
--   send_signal: a worker, for a click
--   live_event, signal_event, signal: programs, operators
--   suspended_for: what it waits for; why_waiting
--   cancelled_claims, outlast: which claims to cancel, and a claim whose thread runs on; workers

-- Takes the oldest signal of a name for a wait of a running handler, fenced by its claim. Ends the
-- wait if its time has passed. Answers done, with the signal as {"value", "at", "by"}, or with null
-- if the time has passed; pending: no signal has come; stale; busy.
create or replace function agent.take_signal
( _id int8, _claim int4, _name text, _nth int4, _timeout interval, out answer text, out signal json)
language plpgsql security definer set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
    _now timestamptz := agent.clock(); _held agent.event := agent.hold_running(_id, _claim);
    _wait agent.step; _sent agent.signal;
begin
    if _held.id is null then answer := agent.unheld(_id, _claim); return; end if;
    answer := 'done';
    select * into _wait from agent.step as s where s.event_id = _id and s.name = _name and s.nth = _nth;
    if _wait.finished_at is not null then signal := _wait.result; return; end if;
    select * into _sent from agent.signal as s
    where s.event_id = _id and s.name = _name and s.taken_by is null order by s.id limit 1;
    if _sent.id is not null then
        signal := json_build_object('value', _sent.value, 'at', _sent.sent_at, 'by', _sent.sent_by);
        update agent.signal as s set taken_by = _nth where s.id = _sent.id;
    elsif coalesce(_wait.due_at, _now + _timeout) > _now or coalesce(_wait.due_at, _now + _timeout) is null
    then
        answer := 'pending';
        return;
    end if;
    insert into agent.step as s (event_id, name, nth, sort, event_ts, result, attempt, started_at, due_at
        , finished_at)
    values (_id, _name, _nth, 'wait', _held.event_ts, signal, _held.attempts, _now, _now + _timeout, _now)
    on conflict (event_id, name, nth) do update
    set result = excluded.result, finished_at = excluded.finished_at;
    if _held.attempts > 1 then update agent.event set attempts = 1 where id = _id; end if;
end $$;

-- What ends waits of an event while its handler runs: the names of its signals that no wait has
-- taken, each with number 0; names and numbers of waits and sleeps whose time has passed.
create or replace function agent.due_waits(_id int8) returns table (name text, nth int4)
language sql stable security definer set enable_seqscan = off as $$
    select distinct s.name, 0 from agent.signal as s where s.event_id = _id and s.taken_by is null
    union all select s.name, s.nth from agent.step as s
    where s.event_id = _id and s.finished_at is null and s.due_at <= agent.clock() $$;

-- Suspends an event until the first of its sleeps, waits and pauses of steps ends: {"waits":
-- [{"sort", "name", "nth", "seconds"}], "blocking": boolean}. The attempt is not counted, and no
-- earlier one if a wait is new. Waits of an earlier attempt keep their time. If a signal has come
-- already, the event is visible at once. Its group goes on meanwhile, unless blocking is true.
-- {"until": time}: it waits for agent.answer_event instead, and expires at that time. With a
-- request to cancel it ends. Returns the id if the event was settled.
create or replace function agent.settle_suspended(_id int8, _claim int4, _given jsonb) returns int8[]
language plpgsql security definer set lock_timeout = '100ms' as $$
declare
    _now timestamptz := agent.clock(); _held int8[] := agent.hold_claims(array[_id], array[_claim]);
    _cancelled int8[] := array(select id from agent.event where id = any(_held) and cancelled_by is not null);
    _until timestamptz;
    _new boolean := exists (
        select from jsonb_to_recordset(_given -> 'waits') as w (name text, nth int4)
        where not exists (select from agent.step as s
            where s.event_id = _id and s.name = w.name and s.nth = w.nth));
begin
    _held := agent.hold_endings(_held, _cancelled, 'cancelled');
    perform agent.archive_events(array(select unnest(_held) intersect select unnest(_cancelled))
        , 'cancelled', 'cancelled while running');
    if _held = '{}' or _cancelled <> '{}' then return _held; end if;
    if _given ? 'until' then
        update agent.event set vt = 'infinity', deadline = (_given ->> 'until')::timestamptz
        , claimed_by = null, heartbeat_at = null, retrying = false where id = _id;
    else
        insert into agent.step (event_id, name, nth, sort, event_ts, attempt, started_at, due_at)
        select _id, w.name, w.nth, w.sort, e.event_ts, e.attempts, _now
        , _now + make_interval(secs => w.seconds)
        from jsonb_to_recordset(_given -> 'waits') as w (sort text, name text, nth int4, seconds float8)
        cross join (select event_ts, attempts from agent.event where id = _id) as e
        on conflict (event_id, name, nth) do update set due_at = excluded.due_at
        where step.sort in ('step', 'undo') and step.finished_at is null;
        select case when bool_or(s.sort = 'wait' and exists (
                select from agent.signal as sent
                where sent.event_id = _id and sent.name = s.name and sent.taken_by is null))
            -- Do not use infinity: it marks an event that awaits a remote agent's answer.
            then _now else coalesce(min(s.due_at), _now + interval '3650 days') end
        into _until from jsonb_to_recordset(_given -> 'waits') as w (name text, nth int4)
        join agent.step as s on s.event_id = _id and s.name = w.name and s.nth = w.nth;
        update agent.event set vt = greatest(_until, _now), claimed_by = null, heartbeat_at = null
        , attempts = case when _new then 0 else greatest(attempts - 1, 0) end
        , retrying = coalesce((_given ->> 'blocking')::boolean, false) where id = _id;
    end if;
    perform agent.note_parked(array[_id], true);
    perform agent.reelect(array[group_key]) from agent.event where id = _id and group_key is not null;
    if _until < _now + interval '1 minute' then perform pg_notify('agent_event', ''); end if;
    return _held;
end $$;

-- Sends a value to a live event, also as the answer of a person: only workers, which read clicks,
-- may call it. The oldest wait of that name takes it, also one that begins later. An event that is
-- suspended in such a wait becomes visible at once. With _once only the first signal of a name
-- counts. Answers sent; decided, with the value that counted (null: the time had passed), even
-- after the end; unknown: it is not live. Raises 55P03 after two seconds of a lock.
create or replace function agent.send_signal
( _id int8, _name text, _value json, _once boolean, _by text, out answer text, out decided json)
language plpgsql security definer set lock_timeout = '2s' set enable_seqscan = off as $$
declare _found agent.event;
begin
    if coalesce(length(_name), 0) not between 1 and 200 then
        raise invalid_parameter_value using message = 'the name of a signal has 1 to 200 characters';
    end if;
    perform agent.hold_group((select group_key from agent.event where id = _id));
    select * into _found from agent.event where id = _id for update;
    if _once then
        select 'decided', s.value into answer, decided from agent.signal as s
        where s.event_id = _id and s.name = _name order by s.id limit 1;
        if not found and exists (select from agent.step as s
            where s.event_id = _id and s.name = _name and s.finished_at is not null) then
            answer := 'decided';
        end if;
    end if;
    if answer is null and _found.id is null then answer := 'unknown'; end if;
    if answer is not null then return; end if;
    answer := 'sent';
    insert into agent.signal (event_id, name, value, sent_by, decides)
    values (_id, _name, coalesce(_value, 'null'), coalesce(_by, agent.acting()), _once);
    if _found.claimed_by is null and _found.vt > agent.clock() and (_found.notes ? 'undo' or exists (
        select from agent.step as s where s.event_id = _id and s.name = _name and s.sort = 'wait'
        and s.finished_at is null))
    then
        update agent.event set vt = agent.clock() where id = _id;
        perform agent.note_parked(array[_id], false);
        perform agent.reelect(array[_found.group_key]);
        perform pg_notify('agent_event', '');
    end if;
end $$;

create or replace function agent.live_event(_key text) returns int8
language sql stable security definer set enable_seqscan = off
return coalesce((select id from agent.event where item_key = agent.bounded_key(_key))
    , case when _key ~ '^[0-9]{1,18}$' then (select id from agent.event where id = _key::int8) end);

-- Sends a program's value to a live event, for its waits of that name. Names that end in a colon
-- and a number belong to questions and children. Answers sent, or null: it is not live.
create or replace function agent.signal_event(_id int8, _name text, _value json default null) returns text
language plpgsql security definer as $$ begin
    if _name ~ ':[0-9]+$' then
        raise invalid_parameter_value using message = format(
            'the signal %s answers a question: a person answers it in Slack', left(_name, 200));
    elsif octet_length(_value::text) > 1000000 then
        raise invalid_parameter_value using message = 'the value of a signal has at most a million bytes';
    end if;
    return (select nullif(s.answer, 'unknown') from agent.send_signal(_id, _name, _value, false, null) as s);
end $$;

-- The same by the event's natural key, or its id. A program reaches events that its role stored
-- and, by Slack's own keys, which cannot be guessed, Slack's events.
create or replace function agent.signal(_key text, _name text, _value jsonb default null) returns text
language sql security definer as $$ select agent.signal_event((
        select e.id from agent.event as e where e.id = agent.live_event(_key)
        and (agent.stored_by_caller(e.enqueued_by) or e.kind like 'slack.%'
            and e.item_key = agent.bounded_key(_key))), _name, _value::json) $$;

create or replace function agent.suspended_for(_id int8) returns text
language sql stable security definer set enable_seqscan = off
return (
    select string_agg(case s.sort when 'sleep' then 'sleeps' when 'wait' then 'waits for ' || s.name
            else 'tries step ' || s.name || ' again' end
        || coalesce(' until ' || s.due_at, ''), ', ' order by s.due_at, s.name, s.nth)
    from agent.step as s where s.event_id = _id and s.finished_at is null
    and (s.due_at > agent.clock() or s.due_at is null and s.sort = 'wait'));

create or replace function agent.cancelled_claims(_ids int8[], _claims int4[]) returns setof int8
language sql stable security definer set enable_seqscan = off as $$
    select e.id from unnest(_ids, _claims) as given (id, claim)
    cross join lateral (select id from agent.event
        where id = given.id and agent.claim_stands(claimed_by, claimed, given.claim)
        and cancelled_by is not null) as e $$;

-- Renews the lease of a claim that was asked to be cancelled and has not lapsed: a thread of its
-- handler still runs, and nothing is undone before it ends. Answers as store_step.
create or replace function agent.outlast(_id int8, _claim int4, _lease interval) returns text
language plpgsql security definer set enable_seqscan = off as $$
declare _now timestamptz := agent.clock(); _held int8[] := agent.hold_claims(array[_id], array[_claim]);
begin
    if _held = '{}' then return agent.unheld(_id, _claim); end if;
    update agent.event set vt = _now + _lease, heartbeat_at = _now
    where id = _id and cancelled_by is not null and vt > _now;
    if not found then return 'stale'; end if;
    perform agent.note_parked(_held, false);
    return 'done';
end $$;
