-- Durable handlers: steps, waits, signals, cancelling, and runs with followers.
--
--   hold_running, unheld: the fence of a running event; steps, signals, gather
--   store_step, cut_step, stored_steps, step_result, read_steps, end_sleeps: a handler's steps;
--   workers
--   take_signal, due_waits: a handler waits; workers
--   settle_suspended, settle_coalesced: two outcomes; settle_alike (007)
--   send_signal: a worker, for a click
--   live_event, signal_event, signal: programs, operators
--   list_steps, suspended_for: operators
--   with_undos, undo_first: what ends undoes first; archive_events (004)
--   open_step: undos and progress; workers
--   finish_step: a step in a team's own transaction; workers, programs
--   store_tags: by which operators find a running event; workers
--   store_said, read_said: what an agent says, for who follows it; workers, operators
--   cancelled_claims, outlast: a worker asks which claims to cancel, and keeps one that still runs
--   gather, ended_followers: the followers of a run; workers
--   uncount_starts: a run that was put back has not begun; settle_returned (007)

-- Locks an event whose claim stands, without waiting. Null: the claim does not stand, or the row is
-- locked. The lock is weaker than a settle's: new members of the group may join meanwhile.
create or replace function agent.hold_running(_id int8, _claim int4) returns agent.event
language plpgsql volatile security definer
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
    _held agent.event;
begin
    select * into _held from agent.event where id = _id and agent.claim_stands(claimed_by, claimed, _claim)
    for no key update skip locked;
    return _held;
end $$;

-- Returns the answer for a claim that could not be locked: busy if it stands, otherwise stale.
create or replace function agent.unheld(_id int8, _claim int4) returns text
language sql volatile security definer
set enable_seqscan = off
return case when exists (select from agent.event
        where id = _id and agent.claim_stands(claimed_by, claimed, _claim))
    then 'busy' else 'stale' end;

-- Stores a step of a running handler, fenced by its claim: its result and the errors of failed
-- tries. If it is _done it is not run again: without a result it has failed for good. A second call
-- changes nothing. After a new result, attempts count anew. _in_order is the column's. _opens: the
-- sort of a step that begins (open_step). Answers done; stale: the claim no longer stands; busy:
-- another transaction has locked the event.
create or replace function agent.store_step
( _id int8, _claim int4, _name text, _nth int4, _arguments text, _result json, _errors jsonb, _took interval
, _done boolean, _in_order boolean default false, _opens text default null) returns text
language plpgsql volatile security definer
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
    _now timestamptz := agent.clock();
    _held agent.event := agent.hold_running(_id, _claim);
begin
    if _held.id is null then
        return agent.unheld(_id, _claim);
    end if;
    insert into agent.step as s (event_id, name, nth, sort, event_ts, arguments, result, errors, attempt
        , started_at, finished_at, in_order)
    values (_id, _name, _nth, coalesce(_opens, 'step'), _held.event_ts, _arguments, _result, _errors
        , _held.attempts, _now - _took, case when _done then _now end, _in_order)
    on conflict (event_id, name, nth) do update
    set arguments = coalesce(excluded.arguments, s.arguments), result = excluded.result
    , errors = s.errors || excluded.errors
    , attempt = excluded.attempt, started_at = excluded.started_at, due_at = null
    , finished_at = excluded.finished_at, in_order = _opens is null and s.in_order or excluded.in_order
    where s.finished_at is null;
    if _done and _result is not null and _held.attempts > 1 then
        update agent.event set attempts = 1 where id = _id;
    end if;
    return 'done';
end $$;

-- Stores that a step, a sleep or a wait of a running handler was cut off: a timeout around it
-- passed, or its task was cancelled. This replaces what was stored at the same moment, and frees
-- the signal that the wait took. Answers as store_step.
create or replace function agent.cut_step
( _id int8, _claim int4, _name text, _nth int4, _sort text, _arguments text, _took interval
, _in_order boolean) returns text
language plpgsql volatile security definer
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
    _now timestamptz := agent.clock();
    _held agent.event := agent.hold_running(_id, _claim);
begin
    if _held.id is null then
        return agent.unheld(_id, _claim);
    end if;
    insert into agent.step as s (event_id, name, nth, sort, event_ts, arguments, errors, attempt, started_at
        , finished_at, in_order)
    values (_id, _name, _nth, _sort, _held.event_ts, _arguments
        , jsonb_build_array(jsonb_build_object('type', 'CutOff', 'cut', true
        , 'message', 'a timeout passed, or its task was cancelled', 'at', _now, 'attempt', _held.attempts))
    , _held.attempts, _now - _took, _now, _in_order)
    on conflict (event_id, name, nth) do update
    set result = null, errors = s.errors || excluded.errors, attempt = excluded.attempt, due_at = null
    , finished_at = excluded.finished_at, in_order = s.in_order or excluded.in_order;
    update agent.signal as s set taken_by = null
    where s.event_id = _id and s.name = _name and s.taken_by = _nth;
    return 'done';
end $$;

-- Returns the steps that earlier attempts stored, in the order in which they ended. Of a step
-- without a result it returns whether that is final, how often it has failed, the last error, and
-- the seconds until it is tried again; of a sleep, whether its end is stored; of a sleep or a wait
-- that was cut off, {"cut": true}. Of a result of more than _most bytes it returns null: such a one
-- is read by step_result, where the handler asks for it.
drop function if exists agent.stored_steps(int8);
create or replace function agent.stored_steps(_id int8, _most int4 default null)
returns table (name text, nth int4, sort text, arguments text, result json, done boolean, in_order boolean)
language plpgsql stable security definer
set enable_seqscan = off as $$
declare
    _now timestamptz := agent.clock();
begin
    return query
    select s.name, s.nth, case s.sort when 'undo' then 'step' else s.sort end, s.arguments
    , case when s.sort in ('sleep', 'wait') and s.errors -> -1 ? 'cut' then '{"cut": true}'
        when s.sort = 'sleep' then to_json(s.finished_at is not null)
        when s.sort in ('step', 'undo') and (s.result is null or s.finished_at is null)
            then json_build_object('failed', s.finished_at is not null, 'tries', jsonb_array_length(s.errors)
            , 'error', s.errors -> -1, 'left', extract(epoch from s.due_at - _now))
        -- Its size on disk is known without reading it. It is compressed a hundredfold at most.
        when s.sort in ('step', 'undo') and pg_column_size(s.result) > _most / 100
            and octet_length(s.result::text) > _most then null
        else s.result end
    , s.finished_at is not null and (s.sort not in ('step', 'undo') or s.result is not null)
    or s.sort = 'sleep' and s.due_at <= _now
    , s.in_order
    -- Number 0 is the list of agent.gather.
    from agent.step as s where s.event_id = _id and s.nth > 0
    order by s.finished_at, s.due_at, s.name, s.nth;
end $$;

-- Returns the result of a step that is done.
create or replace function agent.step_result(_id int8, _name text, _nth int4) returns json
language sql stable security definer
set enable_seqscan = off
as $$ select s.result from agent.step as s where s.event_id = _id and s.name = _name and s.nth = _nth $$;

-- The same as stored_steps for services of 0.2.0.
create or replace function agent.read_steps(_id int8)
returns table (name text, nth int4, sort text, arguments text, result json, done boolean)
language sql stable security definer
as $$ select s.name, s.nth, s.sort, s.arguments, s.result, s.done from agent.stored_steps(_id) as s $$;

-- Stores that the sleeps whose time has passed are over, fenced by the claim: from then on each
-- attempt finds the same order of what has ended. Answers as store_step does.
create or replace function agent.end_sleeps(_id int8, _claim int4) returns text
language plpgsql volatile security definer
set enable_seqscan = off as $$
declare
    _now timestamptz := agent.clock();
    _held agent.event := agent.hold_running(_id, _claim);
begin
    if _held.id is null then
        return agent.unheld(_id, _claim);
    end if;
    update agent.step as s set finished_at = _now
    where s.event_id = _id and s.sort = 'sleep' and s.finished_at is null and s.due_at <= _now;
    return 'done';
end $$;

-- Takes the oldest signal of a name for a wait of a running handler, fenced by its claim. Ends the
-- wait if its time has passed. Answers done, with the signal as {"value", "at", "by"}, or with null
-- if the time has passed; pending: no signal has come; stale; busy.
create or replace function agent.take_signal(_id int8, _claim int4, _name text, _nth int4, _timeout interval
    , out answer text, out signal json)
language plpgsql volatile security definer
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
    _now timestamptz := agent.clock();
    _held agent.event := agent.hold_running(_id, _claim);
    _wait agent.step;
    _sent agent.signal;
begin
    if _held.id is null then
        answer := agent.unheld(_id, _claim);
        return;
    end if;
    answer := 'done';
    select * into _wait from agent.step as s where s.event_id = _id and s.name = _name and s.nth = _nth;
    if _wait.finished_at is not null then
        signal := _wait.result;
        return;
    end if;
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
    if _held.attempts > 1 then
        update agent.event set attempts = 1 where id = _id;
    end if;
end $$;

-- Returns what ends waits of an event while its handler runs: the names of its signals that no wait
-- has taken, each with number 0; names and numbers of waits and sleeps whose time has passed.
create or replace function agent.due_waits(_id int8) returns table (name text, nth int4)
language sql stable security definer
set enable_seqscan = off as $$
    select distinct s.name, 0 from agent.signal as s where s.event_id = _id and s.taken_by is null
    union all
    select s.name, s.nth from agent.step as s
    where s.event_id = _id and s.finished_at is null and s.due_at <= agent.clock()
$$;

-- Suspends an event until the first of its sleeps, waits and pauses of steps ends: {"waits":
-- [{"sort", "name", "nth", "seconds"}], "blocking": boolean}. The attempt is not counted, and no
-- earlier one if a wait is new. Waits that an earlier attempt began keep their time. If a signal
-- has come already, the event is visible at once. Its group goes on meanwhile, unless blocking is
-- true. {"until": time}: it waits for agent.answer_event instead, and expires at that time. With a
-- request to cancel it ends. Returns the id if the event was settled.
create or replace function agent.settle_suspended(_id int8, _claim int4, _given jsonb) returns int8[]
language plpgsql volatile security definer
set lock_timeout = '100ms' as $$
declare
    _now timestamptz := agent.clock();
    _held int8[] := agent.hold_claims(array[_id], array[_claim]);
    _cancelled int8[] := array(select id from agent.event where id = any(_held) and cancelled_by is not null);
    _until timestamptz;
    _new boolean := exists (
        select from jsonb_to_recordset(_given -> 'waits') as w (name text, nth int4)
        where not exists (select from agent.step as s
            where s.event_id = _id and s.name = w.name and s.nth = w.nth));
begin
    _held := agent.hold_endings(_held, _cancelled, 'cancelled');
    perform agent.archive_events(array(select unnest(_held) intersect select unnest(_cancelled)), 'cancelled'
        , 'cancelled while running');
    if _held = '{}' or _cancelled <> '{}' then
        return _held;
    end if;
    if _given ? 'until' then
        update agent.event set vt = 'infinity', deadline = (_given ->> 'until')::timestamptz
        , claimed_by = null, heartbeat_at = null, retrying = false
        where id = _id;
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
        into _until
        from jsonb_to_recordset(_given -> 'waits') as w (name text, nth int4)
        join agent.step as s on s.event_id = _id and s.name = w.name and s.nth = w.nth;
        update agent.event
        set vt = greatest(_until, _now), claimed_by = null, heartbeat_at = null
        , attempts = case when _new then 0 else greatest(attempts - 1, 0) end
        , retrying = coalesce((_given ->> 'blocking')::boolean, false)
        where id = _id;
    end if;
    perform agent.note_parked(array[_id], true);
    perform agent.reelect(array[group_key]) from agent.event where id = _id and group_key is not null;
    if _until < _now + interval '1 minute' then
        perform pg_notify('agent_event', '');
    end if;
    return _held;
end $$;

-- Sends a value to a live event, also as the answer of a person: only workers, which read clicks,
-- may call it. The oldest wait of that name takes it, even if the wait begins later. An event that
-- is suspended in such a wait becomes visible at once. With _once only the first signal of a name
-- counts. Answers sent; decided, with the value that counted (null: the time had passed), even
-- after the end; unknown: it is not live. Raises 55P03 after two seconds of a lock.
create or replace function agent.send_signal
( _id int8, _name text, _value json, _once boolean, _by text, out answer text, out decided json
)
language plpgsql volatile security definer
set lock_timeout = '2s' set enable_seqscan = off as $$
declare
    _found agent.event;
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
    if answer is null and _found.id is null then
        answer := 'unknown';
    end if;
    if answer is not null then
        return;
    end if;
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

-- The id of the live event with this natural key, else with this id.
create or replace function agent.live_event(_key text) returns int8
language sql stable security definer
set enable_seqscan = off
return coalesce((select id from agent.event where item_key = agent.bounded_key(_key))
    , case when _key ~ '^[0-9]{1,18}$' then (select id from agent.event where id = _key::int8) end);

-- Sends a program's value to a live event, for its waits of that name. Names that end in a colon
-- and a number belong to questions and children. Answers sent, or null: it is not live.
create or replace function agent.signal_event(_id int8, _name text, _value json default null) returns text
language plpgsql volatile security definer as $$
begin
    if _name ~ ':[0-9]+$' then
        raise invalid_parameter_value
            using message = format('the signal %s answers a question: a person answers it in Slack'
            , left(_name, 200));
    elsif octet_length(_value::text) > 1000000 then
        raise invalid_parameter_value using message = 'the value of a signal has at most a million bytes';
    end if;
    return (select nullif(s.answer, 'unknown') from agent.send_signal(_id, _name, _value, false, null) as s);
end $$;

-- The same by the event's natural key, or its id. A program reaches what its role stored and, by
-- Slack's own keys, which cannot be guessed, Slack's events. Others are not live for it.
create or replace function agent.signal(_key text, _name text, _value jsonb default null) returns text
language sql volatile security definer as $$
    select agent.signal_event((
        select e.id from agent.event as e where e.id = agent.live_event(_key)
        and (agent.stored_by_caller(e.enqueued_by) or e.kind like 'slack.%'
            and e.item_key = agent.bounded_key(_key))), _name, _value::json)
$$;

-- Returns the steps, signals, tags and progress of an event, live or ended, as a JSON array in the
-- order of time, for operators. It leaves out the results of steps, which may be large.
create or replace function agent.list_steps(_id int8) returns jsonb
language sql stable security definer
set enable_seqscan = off
return (
    select coalesce(jsonb_agg(what.happened order by what.at), '[]')
    from (
        select s.started_at as at, jsonb_build_object('sort'
            , case s.sort when 'undo' then 'step' else s.sort end, 'name', s.name, 'nth', s.nth, 'attempt'
            , s.attempt, 'errors', s.errors
            , 'started_at', s.started_at, 'due_at', s.due_at, 'finished_at', s.finished_at
            , 'failed', s.sort in ('step', 'undo') and s.finished_at is not null and s.result is null
            -- What ctx.ask posted (surelane_worker.handling.asks).
            , 'posted', case when s.name like '%:% asked'
                then jsonb_build_object('channel', s.result -> 'channel', 'ts'
                    , s.result -> 'ts') end) as happened
        from agent.step as s where s.event_id = _id and s.nth > 0
        union all
        select s.started_at, jsonb_build_object('sort', 'coalesced', 'name', s.name, 'nth', s.nth
            , 'started_at', s.started_at, 'events', s.result -> 'events')
        from agent.step as s where s.event_id = _id and s.nth = 0
        and json_array_length(s.result -> 'events') > 0
        union all
        select s.started_at, jsonb_build_object('sort', case s.nth when 0 then 'progress' else 'tag' end
            , 'name', s.name, 'value', s.result, 'started_at', s.started_at)
        from agent.step as s where s.event_id = _id and (s.nth = -1 or s.nth = 0 and s.name = 'progress')
        union all
        select s.sent_at, jsonb_build_object('sort', 'signal', 'name', s.name, 'started_at', s.sent_at, 'by'
            , s.sent_by, 'nth', s.taken_by)
        from agent.signal as s where s.event_id = _id
    ) as what);

-- Stores what an agent says, fenced by the claim: _text, after _from characters of the response
-- _part. At 0 that is told anew: what was stored of it and of later ones goes. A second call
-- changes nothing. Batches are steps with numbers from -2 down. Answers as store_step.
create or replace function agent.store_said(_id int8, _claim int4, _part int4, _from int4
    , _text json) returns text
language plpgsql volatile security definer
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
    _now timestamptz := agent.clock();
    _held agent.event := agent.hold_running(_id, _claim);
    _latest int4 := (select min(s.nth) from agent.step as s
        where s.event_id = _id and s.name = 'said' and s.nth < -1);
    _place text := format('[%s, %s]', _part, _from);
begin
    if _held.id is null then
        return agent.unheld(_id, _claim);
    elsif _from = 0 then
        delete from agent.step as s where s.event_id = _id and s.name = 'said' and s.nth < -1
        and (s.arguments::json ->> 0)::int4 >= _part;
        if _text is null and not found then
            return 'done';
        end if;
    elsif exists (select from agent.step as s
        where s.event_id = _id and s.name = 'said' and s.nth = _latest and s.arguments = _place) then
        return 'done';
    end if;
    insert into agent.step (event_id, name, nth, sort, event_ts, arguments, result, attempt, started_at
        , finished_at)
    values (_id, 'said', coalesce(_latest, -1) - 1, 'step', _held.event_ts, _place, coalesce(_text, '""')
        , _held.attempts, _now, _now);
    return 'done';
end $$;

-- Returns up to 100 batches of what an agent said after the batch with number _after, in order, and
-- whether the event has ended. Numbers never begin again, also where the event runs again.
create or replace function agent.read_said(_id int8, _after int4, out ended boolean, out said json)
language sql stable security definer
set enable_seqscan = off as $$
    select not exists (select from agent.event where id = _id), coalesce((
        select json_agg(json_build_object('number', -1 - s.nth, 'part', s.arguments::json -> 0, 'from'
                , s.arguments::json -> 1, 'value', s.result) order by s.nth desc)
        from (select * from agent.step where event_id = _id and name = 'said' and nth < -1 - _after
            order by nth desc limit 100) as s), '[]')
$$;

-- Returns in words what a suspended event waits for; null: it is not suspended.
create or replace function agent.suspended_for(_id int8) returns text
language sql stable security definer
set enable_seqscan = off
return (
    select string_agg(case s.sort when 'sleep' then 'sleeps' when 'wait' then 'waits for ' || s.name
            else 'tries step ' || s.name || ' again' end
        || coalesce(' until ' || s.due_at, ''), ', ' order by s.due_at, s.name, s.nth)
    from agent.step as s where s.event_id = _id and s.finished_at is null
    and (s.due_at > agent.clock() or s.due_at is null and s.sort = 'wait'));

-- Returns those of a worker's (id, claim) pairs that have a request to cancel.
create or replace function agent.cancelled_claims(_ids int8[], _claims int4[]) returns setof int8
language sql stable security definer
set enable_seqscan = off as $$
    select e.id from unnest(_ids, _claims) as given (id, claim)
    cross join lateral (select id from agent.event
        where id = given.id and agent.claim_stands(claimed_by, claimed, given.claim)
        and cancelled_by is not null) as e
$$;

-- Renews the lease of a claim that was asked to be cancelled and that has not lapsed: a thread of
-- its handler still runs, and nothing is undone before it ends. Answers as store_step.
create or replace function agent.outlast(_id int8, _claim int4, _lease interval) returns text
language plpgsql volatile security definer
set enable_seqscan = off as $$
declare
    _now timestamptz := agent.clock();
    _held int8[] := agent.hold_claims(array[_id], array[_claim]);
begin
    if _held = '{}' then
        return agent.unheld(_id, _claim);
    end if;
    update agent.event set vt = _now + _lease, heartbeat_at = _now
    where id = _id and cancelled_by is not null and vt > _now;
    if not found then
        return 'stale';
    end if;
    perform agent.note_parked(_held, false);
    return 'done';
end $$;

-- Notes which followers the run of a claimed event gets, in a step of number 0. The first run
-- decides that for all later attempts. Events that have steps have begun a run of their own, and
-- follow none. Returns their ids; answers done, stale, busy, or alone: the claim follows a lapsed
-- one, and was claimed without its followers.
create or replace function agent.gather(_id int8, _claim int4, _followers int8[], out answer text
    , out followers int8[])
language plpgsql volatile security definer
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
    _now timestamptz := agent.clock();
    _held agent.event := agent.hold_running(_id, _claim);
begin
    if _held.id is null then
        answer := agent.unheld(_id, _claim);
        return;
    end if;
    -- The claim before this one lapsed, unless it began after that.
    if _followers = '{}' and _held.changes -> -1 ->> 'action' in ('lapsed', 'rescued')
    and (_held.changes -> -1 ->> 'at')::timestamptz >= _held.claimed[_claim - 1]
    and exists (select from agent.event as e
        where e.group_key = _held.group_key and not e.head and e.claimed_by is null and e.vt <= _now) then
        answer := 'alone';
        return;
    end if;
    insert into agent.step as s (event_id, name, nth, sort, event_ts, result, attempt, started_at
        , finished_at)
    values (_id, 'events', 0, 'step', _held.event_ts
        , json_build_object('into', coalesce(_held.item_key, _id::text), 'events', array(
        select follower from unnest(_followers) with ordinality as given (follower, nth)
        where not exists (select from agent.step as own
            where own.event_id in (follower, _id) and own.nth >= 0) order by nth))
    , _held.attempts, _now, _now)
    on conflict do nothing;
    select array(select json_array_elements_text(s.result -> 'events')::int8) into followers
    from agent.step as s where s.event_id = _id and s.name = 'events' and s.nth = 0;
    answer := 'done';
end $$;

-- The followers of an event that have ended with it: as an earlier run was suspended.
create or replace function agent.ended_followers(_id int8)
returns table
( id int8, kind text, event_ts timestamptz, attempts int4, claim int4, vt timestamptz, event jsonb
, item_key text, group_key text
, max_attempts int4, enqueued_at timestamptz, errors jsonb, notes jsonb, traceparent text)
language plpgsql stable security definer
set plan_cache_mode = force_custom_plan set jit = off as $$
begin
    return query
    select h.id, h.kind, h.event_ts, h.attempts, array_upper(h.claimed, 1), h.vt, h.event, h.item_key
    , h.group_key, h.max_attempts, h.enqueued_at, h.errors, h.notes, h.traceparent
    from agent.step as s cross join lateral json_array_elements_text(s.result -> 'events') as follower (id)
    join agent.event_hist as h on h.id = follower.id::int8 and h.reason = 'coalesced into '
    || (s.result ->> 'into')
    where s.event_id = _id and s.name = 'events' and s.nth = 0;
end $$;

-- Settles a claim whose run got followers, and ends those as completed with it: {"outcome",
-- "argument", "followers": [[id, claim], …]}. Passes over followers whose claim no longer stands.
-- Where one cannot be locked, nothing is settled. Returns the id if it was settled.
create or replace function agent.settle_coalesced(_id int8, _claim int4, _given jsonb) returns int8[]
language plpgsql volatile security definer
set enable_seqscan = off set lock_timeout = '100ms' as $$
declare
    _into text := (select coalesce(item_key, id::text) from agent.event where id = _id);
    _ids int8[];
    _claims int4[];
    _held int8[];
    _behind int8[];
    _cancelled int8[];
begin
    select array_agg((pair ->> 0)::int8), array_agg((pair ->> 1)::int4) into _ids, _claims
    from jsonb_array_elements(_given -> 'followers') as pair;
    _held := agent.settle_alike(_given ->> 'outcome', array[_id], array[_claim]
        , array[nullif(_given -> 'argument', 'null')], true);
    if _held = '{}' then
        return _held;
    end if;
    _behind := agent.hold_claims(_ids, _claims);
    if exists (select from agent.settle_answers(_ids, _claims, _behind) as a where a.answer = 'busy')
    or cardinality(agent.hold_endings(_behind, _behind, 'cancelled')) < cardinality(_behind) then
        raise lock_not_available using message = format('a follower of event %s is locked', _id);
    end if;
    if _given ->> 'outcome' in ('await', 'suspend')
    and not exists (select from agent.event where id = _id and (notes ? 'undo') is not true) then
        -- It was asked to be cancelled, and has ended or begins its undos. So do such followers:
        -- without a claim nothing would find them, and their group would wait for good.
        _cancelled := array(select id from agent.event where id = any(_behind) and cancelled_by is not null);
        perform agent.archive_events(_cancelled, 'cancelled', 'cancelled while running');
        perform agent.return_events(array(select id from unnest(_behind) as id where id <> all(_cancelled))
            , false);
    else
        perform agent.archive_events(_behind, 'completed', 'coalesced into ' || _into);
    end if;
    return _held;
end $$;

-- Takes the latest claims of events off the rates of their limits, as no runs have begun with them.
-- Where a claim is looking at the key at this moment, it counts all the same: this waits for none.
create or replace function agent.uncount_starts(_ids int8[]) returns void
language plpgsql volatile security definer
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
    _e record;
begin
    for _e in
        select e.kind, e.changes #>> '{0,limit_key}' as key, e.claimed[array_upper(e.claimed, 1)] as began
        from agent.event as e where e.id = any(_ids) and e.lane < 0
    loop
        if agent.take_turn(agent.limit_turn(_e.kind, _e.key)) then
            update agent.limit_state as s set counts[counted.nth] = s.counts[counted.nth] - 1
            from (
                select latest.at, (
                    select min(began.nth)
                    from unnest(latest.starts, latest.counts) with ordinality as began (at, count, nth)
                    where began.at >= _e.began and began.count > 0)::int4 as nth
                from agent.limit_state as latest where latest.kind = _e.kind and latest.limit_key = _e.key
                order by latest.at desc limit 1
            ) as counted
            where s.kind = _e.kind and s.limit_key = _e.key and s.at = counted.at and counted.nth is not null;
            if found then
                insert into agent.limit_note (kind, limit_key, due_at)
                values (_e.kind, _e.key, agent.clock());
            end if;
        end if;
    end loop;
end $$;

-- Of events that are about to end: those whose undos have not run, or whose children live on, and
-- theirs. A child that is among _ids and does not wait itself ends with them.
create or replace function agent.with_undos(_ids int8[]) returns int8[]
language plpgsql stable
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
begin
    return array(
        with recursive waiting as (
            select given.id from unnest(_ids) as given (id)
            cross join lateral (select notes, waits_for from agent.event where id = given.id) as e
            where e.notes ? 'undo' or (e.notes ? 'undone') is not true and (exists (
                select from agent.step as s
                where s.event_id = given.id and s.sort = 'undo' and s.finished_at is null)
            or e.waits_for is not null and exists (
                select from agent.live_children(given.id) as c where c.id <> all(_ids)))
            union
            select e.continuation_id from waiting join agent.event as e on e.id = waiting.id
            where e.continuation_id = any(_ids) and agent.if_failed(e.changes) <> 'leave'
        )
        select waiting.id from waiting);
end $$;

-- Hands an event that is about to end out once more, for its children and undos, instead. Its notes
-- keep how it was to end. It has three attempts for them at least; its group waits. Where its claim
-- lapsed, an error says that its handler may still run. About to end again, it ends as they say; an
-- error names undos that failed. Before that, an undo in which all attempts died or hung has
-- failed, and the event is handed out again for the others. The caller holds the event.
create or replace function agent.undo_first(_id int8, _outcome text, _reason text) returns void
language plpgsql volatile security definer
set enable_seqscan = off as $$
declare
    _now timestamptz := agent.clock();
    _undo jsonb := (select notes -> 'undo' from agent.event where id = _id);
    _others bool := false;
    _left text := (
        select string_agg(s.name || case when s.nth > 1 then format(' (%s)', s.nth) else '' end, ', '
            order by s.started_at desc)
        from agent.step as s where s.event_id = _id and s.sort = 'undo'
        and (s.finished_at is null or s.result is null));
begin
    if _undo is null then
        update agent.event as e
        set attempts = 0, cancelled_by = null
        , errors = e.errors || case when e.claimed_by is null or e.vt > _now then '[]'
            else jsonb_build_array(jsonb_build_object(
            'type', 'UnfinishedError', 'message', 'its undos began although its handler may still run', 'at'
                , _now, 'attempt', e.attempts)) end
        , max_attempts = greatest(coalesce(e.max_attempts
                , (select k.max_attempts from agent.kind as k where k.kind = e.kind)), 3)
        , notes = coalesce(e.notes, '{}')
        || jsonb_build_object('undo', jsonb_build_object('outcome', _outcome, 'reason', _reason
            , 'attempts', e.attempts, 'max_attempts', e.max_attempts, 'cancelled_by', e.cancelled_by))
        , changes = agent.add_change(e.changes
            , jsonb_build_object('action', 'undoing', 'at', _now, 'by', agent.acting()))
        where id = _id;
        perform agent.return_events(array[_id], true);
        return;
    end if;
    update agent.step as s
    set finished_at = _now, result = null, errors = s.errors || jsonb_build_array(jsonb_build_object(
        'type', 'UndoError', 'message', 'each attempt died or hung in it', 'at', _now, 'attempt', e.attempts))
    from agent.event as e
    where e.id = _id and s.event_id = _id and s.sort = 'undo' and s.finished_at is null
    and s.result::jsonb ? 'begun'
    and (_reason like 'expired by %') is not true;
    if found then
        _others := exists (select from agent.step as s
            where s.event_id = _id and s.sort = 'undo' and s.finished_at is null);
    end if;
    if _others then
        update agent.event set attempts = 0 where id = _id;
        perform agent.return_events(array[_id], true);
        return;
    end if;
    update agent.event as e
    set attempts = (_undo ->> 'attempts')::int4, max_attempts = (_undo ->> 'max_attempts')::int4
    , cancelled_by = _undo ->> 'cancelled_by', notes = e.notes - 'undo' || '{"undone": true}'
    , errors = e.errors || case when _left is null then '[]' else jsonb_build_array(jsonb_build_object(
        'type', 'UndoError', 'message', 'not undone: ' || _left, 'at', _now, 'attempt', e.attempts)) end
    where id = _id;
    perform agent.archive_events(array[_id], _undo ->> 'outcome', _undo ->> 'reason');
end $$;

-- Stores a step that is not done, or the progress of a running event, fenced by its claim. A later
-- call replaces its result. Without a result it is an undo. Answers as store_step.
create or replace function agent.open_step(_id int8, _claim int4, _name text, _nth int4, _result json
    , _in_order boolean default false) returns text
language sql volatile security definer
return agent.store_step(_id, _claim, _name, _nth, null, _result, '[]', '0', false, _in_order
    , case when _result is null then 'undo' else 'step' end);

-- Stores the result of a step in the transaction of a program that did its work there. _token is
-- stored by the worker with open_step: without it nothing is stored. _xact is the
-- transaction in which the work began. The event stays locked until the commit, so that no other
-- claim begins before it. Answers done; stale: the claim or the token no longer stands; ended: this
-- is another transaction. Raises 55P03 if the event stays locked for two seconds.
create or replace function agent.finish_step
( _id int8, _claim int4, _name text, _nth int4, _token text, _xact text, _arguments text, _result json
, _seconds float8
) returns text
language plpgsql volatile security definer
set lock_timeout = '2s' set enable_seqscan = off as $$
begin
    if pg_current_xact_id_if_assigned()::text is distinct from _xact then
        return 'ended';
    elsif not exists (
        select from agent.step as s
        where s.event_id = _id and s.name = _name and s.nth = _nth and s.finished_at is null
        and s.result ->> 'token' = _token)
    then
        return 'stale';
    end if;
    perform from agent.event where id = _id for no key update;
    return agent.store_step(_id, _claim, _name, _nth, _arguments, _result, '[]'
        , make_interval(secs => _seconds), true);
end $$;

-- Sets tags of a running event, fenced by its claim: {name: {"found_by", "value"}}. Null removes a
-- tag. found_by is the value, or a keyed hash of an encrypted one. Answers as store_step.
create or replace function agent.store_tags(_id int8, _claim int4, _tags jsonb) returns text
language plpgsql volatile security definer
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
    _now timestamptz := agent.clock();
    _held agent.event := agent.hold_running(_id, _claim);
begin
    if _held.id is null then
        return agent.unheld(_id, _claim);
    end if;
    delete from agent.step as s where s.event_id = _id and s.nth = -1 and _tags -> s.name = 'null';
    insert into agent.step as s (event_id, name, nth, sort, event_ts, arguments, result, attempt, started_at
        , finished_at)
    select _id, t.key, -1, 'step', _held.event_ts, t.value ->> 'found_by', (t.value -> 'value')::json
    , _held.attempts, _now, _now
    from jsonb_each(_tags) as t where t.value <> 'null'
    on conflict (event_id, name, nth) do update set arguments = excluded.arguments, result = excluded.result;
    if (select count(*) from agent.step as s where s.event_id = _id and s.nth = -1) > 10 then
        raise invalid_parameter_value using message = 'an event has at most 10 tags';
    end if;
    return 'done';
end $$;
