-- Durable handlers: their steps, and what operators see of them.
--   store_step, cut_step, stored_steps, step_result, end_sleeps: a handler's steps; workers
--   list_steps: operators
--   open_step: undos and progress; workers
--   finish_step: a step in a team's own transaction; workers, programs
--   store_tags: by which operators find a running event; workers

-- Stores a step of a running handler, fenced by its claim: its result and the errors of failed
-- tries. If it is _done it is not run again: without a result it has failed for good. A second call
-- changes nothing. After a new result, attempts count anew. _in_order is the column's. _opens: the
-- sort of a step that begins (open_step). Answers done; stale: the claim no longer stands; busy:
-- another transaction has locked the event.
create or replace function agent.store_step
( _id int8, _claim int4, _name text, _nth int4, _arguments text, _result json, _errors jsonb, _took interval
, _done boolean, _in_order boolean default false, _opens text default null) returns text
language plpgsql security definer set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare _now timestamptz := agent.clock(); _held agent.event := agent.hold_running(_id, _claim);
begin
    if _held.id is null then return agent.unheld(_id, _claim); end if;
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
-- passed, or its task was cancelled. Replaces a result of the same moment, and frees the signal
-- that the wait took. Answers as store_step.
create or replace function agent.cut_step
( _id int8, _claim int4, _name text, _nth int4, _sort text, _arguments text, _took interval
, _in_order boolean) returns text
language plpgsql security definer set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare _now timestamptz := agent.clock(); _held agent.event := agent.hold_running(_id, _claim);
begin
    if _held.id is null then return agent.unheld(_id, _claim); end if;
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

-- The steps that earlier attempts stored, in the order in which they ended. Of a step without a
-- result: whether that is final, its tries, the last error, and the seconds until it is tried
-- again; of a sleep, whether its end is stored; of a sleep or a wait that was cut off, {"cut":
-- true}. A result of more than _most bytes is null: step_result reads it.
create or replace function agent.stored_steps(_id int8, _most int4 default null)
returns table (name text, nth int4, sort text, arguments text, result json, done boolean, in_order boolean)
language plpgsql stable security definer set enable_seqscan = off as $$
declare _now timestamptz := agent.clock();
begin
    return query select s.name, s.nth, case s.sort when 'undo' then 'step' else s.sort end, s.arguments
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
    or s.sort = 'sleep' and s.due_at <= _now, s.in_order
    -- Number 0 is the list of agent.gather.
    from agent.step as s where s.event_id = _id and s.nth > 0
    order by s.finished_at, s.due_at, s.name, s.nth;
end $$;

create or replace function agent.step_result(_id int8, _name text, _nth int4) returns json
language sql stable security definer set enable_seqscan = off
as $$ select s.result from agent.step as s where s.event_id = _id and s.name = _name and s.nth = _nth $$;

-- Stores that the sleeps whose time has passed are over, fenced by the claim: later attempts find
-- the same order of ends. Answers as store_step does.
create or replace function agent.end_sleeps(_id int8, _claim int4) returns text
language plpgsql security definer set enable_seqscan = off as $$
declare _now timestamptz := agent.clock(); _held agent.event := agent.hold_running(_id, _claim);
begin
    if _held.id is null then return agent.unheld(_id, _claim); end if;
    update agent.step as s set finished_at = _now
    where s.event_id = _id and s.sort = 'sleep' and s.finished_at is null and s.due_at <= _now;
    return 'done';
end $$;

-- Returns the steps, signals, tags and progress of an event, live or ended, as a JSON array in the
-- order of time, for operators. It leaves out the results of steps, which may be large.
create or replace function agent.list_steps(_id int8) returns jsonb
language sql stable security definer set enable_seqscan = off
return (
    select coalesce(jsonb_agg(what.happened order by what.at), '[]')
    from (
        select s.started_at as at, jsonb_build_object(
            'sort', case s.sort when 'undo' then 'step' else s.sort end, 'name', s.name, 'nth', s.nth
            , 'attempt', s.attempt, 'errors', s.errors
            , 'started_at', s.started_at, 'due_at', s.due_at, 'finished_at', s.finished_at
            , 'failed', s.sort in ('step', 'undo') and s.finished_at is not null and s.result is null
            -- What ctx.ask posted (surelane_worker.handling.asks).
            , 'posted', case when s.name like '%:% asked' then jsonb_build_object(
                'channel', s.result -> 'channel', 'ts', s.result -> 'ts') end) as happened
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
        select s.sent_at, jsonb_build_object('sort', 'signal', 'name', s.name, 'started_at', s.sent_at
            , 'by', s.sent_by, 'nth', s.taken_by)
        from agent.signal as s where s.event_id = _id
    ) as what);

-- Stores a step that is not done, or the progress of a running event, fenced by its claim. A later
-- call replaces its result. Without a result it is an undo.
create or replace function agent.open_step
( _id int8, _claim int4, _name text, _nth int4, _result json, _in_order boolean default false) returns text
language sql security definer
return agent.store_step(_id, _claim, _name, _nth, null, _result, '[]', '0', false, _in_order
    , case when _result is null then 'undo' else 'step' end);

-- Stores the result of a step in the transaction of a program that did its work there. _token: the
-- worker stored it with open_step; without it nothing is stored. _xact: the transaction in which
-- the work began. The event stays locked until the commit: no other claim begins before it. Answers
-- done; stale: the claim or the token no longer stands; ended: this is another transaction. Raises
-- 55P03 if the event stays locked for two seconds.
create or replace function agent.finish_step
( _id int8, _claim int4, _name text, _nth int4, _token text, _xact text, _arguments text, _result json
, _seconds float8) returns text
language plpgsql security definer set lock_timeout = '2s' set enable_seqscan = off as $$ begin
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
language plpgsql security definer set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare _now timestamptz := agent.clock(); _held agent.event := agent.hold_running(_id, _claim);
begin
    if _held.id is null then return agent.unheld(_id, _claim); end if;
    delete from agent.step as s where s.event_id = _id and s.nth = -1 and _tags -> s.name = 'null';
    insert into agent.step as s (event_id, name, nth, sort, event_ts, arguments, result, attempt, started_at
        , finished_at)
    select _id, t.key, -1, 'step', _held.event_ts, t.value ->> 'found_by', (t.value -> 'value')::json
    , _held.attempts, _now, _now from jsonb_each(_tags) as t where t.value <> 'null'
    on conflict (event_id, name, nth) do update set arguments = excluded.arguments, result = excluded.result;
    if (select count(*) from agent.step as s where s.event_id = _id and s.nth = -1) > 10 then
        raise invalid_parameter_value using message = 'an event has at most 10 tags';
    end if;
    return 'done';
end $$;
