-- Ended events run again.
--   rerun_row, rerun_batch, rerun_events: ended events run again; operators
--   kept_steps, rerun_as_new: a new event runs an ended one again; operators
--   rerun_chain: which events a new one runs again; workers, operators

create or replace function agent.rerun_row(_old agent.event_hist) returns agent.event
language plpgsql as $$ declare _new agent.event;
begin
    _new.id := _old.id; _new.event_ts := _old.event_ts; _new.vt := agent.clock();
    _new.claimed := _old.claimed; _new.event := _old.event;
    _new.kind := case when _old.outcome = 'completed' then agent.base_kind(_old.kind, _old.notes)
        else _old.kind end;
    _new.item_key := _old.item_key; _new.group_key := _old.group_key;
    _new.max_attempts := _old.max_attempts; _new.lane := _old.lane;
    _new.enqueued_at := _old.enqueued_at; _new.enqueued_by := _old.enqueued_by;
    _new.errors := _old.errors; _new.traceparent := _old.traceparent;
    _new.changes := agent.add_change(_old.changes
        , jsonb_build_object('action', 'requeued', 'at', agent.clock(), 'by', agent.acting()
        , 'from', jsonb_build_object(
            'outcome', _old.outcome, 'reason', _old.reason, 'attempts', _old.attempts)));
    return _new;
end $$;

-- Moves events from history back into the queue, 500 in one statement. Returns the moved ids. An
-- event whose item key is live again stays in history. No continuation waits for a child that runs
-- again. Others that enter the groups wait for this transaction: give 500 ids at a time.
create or replace function agent.rerun_events(_ids int8[]) returns setof int8
language plpgsql security definer set jit = off as $$ declare _moved int8[];
begin
    perform agent.require_read_committed();
    for _first in 1..coalesce(cardinality(_ids), 0) by 500 loop
        _moved := agent.rerun_batch(_ids[_first : _first + 499], cardinality(_ids) = 1);
        return query select unnest(_moved);
    end loop;
end $$;

-- The same for a batch. A refused event stays, with a warning; with _alone its error is raised.
create or replace function agent.rerun_batch(_ids int8[], _alone boolean) returns int8[]
language plpgsql security definer set jit = off as $$
declare
    _found int8[]; _rows agent.event[]; _row agent.event; _moved int8[];
    _half int4 := cardinality(_ids) / 2;
begin
    -- They become visible in the order in which they happened.
    select array_agg(old.id order by (old.event).group_key, (old.event).item_key, old.id)
    , array_agg(old.event order by (old.event).group_key, (old.event).item_key, old.id) into _found, _rows
    from (
        select h.id, agent.rerun_row(h) as event from agent.event_hist as h where h.id = any(_ids)
        order by h.event_ts, h.id for update skip locked) as old;
    if _found is null then return '{}'; end if;
    perform agent.register_kinds(array(select distinct (given).kind from unnest(_rows) as given));
    _moved := agent.add_new_jobs(_found, _rows);
    -- Few are left out: their keys are live, or they lost the race to lead their group.
    foreach _row in array _rows loop
        if _row.id <> all(_moved) then
            _moved := _moved || case when not (agent.add_event(_row, true, false)).duplicate
                then array[_row.id] end;
        end if;
    end loop;
    -- A failed event goes on after its stored steps, and asks again what its end has closed in
    -- Slack. A completed or undone one begins anew, with its tags. What is asked or started
    -- again may come before stored steps, so these are no longer in order.
    update agent.step as s set in_order = false
    from (
        select moved as id from unnest(_moved) as moved
        where exists (select from agent.open_questions(moved)) or exists (
            select from agent.step as c where c.event_id = moved and c.name ~ '^child .*:[0-9]+$'
            and c.result #>> '{value,outcome}' <> 'completed')) as again
    where s.event_id = again.id and s.in_order;
    delete from agent.signal as s using unnest(_moved) as moved cross join agent.open_questions(moved) as q
    where s.event_id = moved and s.name = q.question;
    delete from agent.step as s using unnest(_moved) as moved cross join agent.open_questions(moved) as q
    where s.event_id = moved and s.name in (q.question, q.question || ' asked', q.question || ' may'
        , q.question || ' refused');
    update agent.event as e set notes = jsonb_build_object('version', h.notes ->> 'version')
    from agent.event_hist as h
    where e.id = any(_moved) and h.id = e.id and h.event_ts = e.event_ts and h.outcome <> 'completed'
    and h.notes ? 'version';
    -- Children that did not complete start anew.
    delete from agent.signal as s where s.event_id = any(_moved) and s.name ~ '^child .*:[0-9]+$'
    and s.value ->> 'outcome' <> 'completed';
    delete from agent.step as s where s.event_id = any(_moved) and s.name ~ '^child .*:[0-9]+$'
    and s.sort = 'wait' and s.result #>> '{value,outcome}' <> 'completed';
    delete from agent.step as s using agent.event_hist as h
    where h.id = any(_moved) and (h.outcome = 'completed' or h.notes ? 'undone') and s.event_id = h.id
    and s.nth >= 0;
    delete from agent.signal as s using agent.event_hist as h
    where h.id = any(_moved) and (h.outcome = 'completed' or h.notes ? 'undone') and s.event_id = h.id;
    delete from agent.event_hist as h using agent.event as e
    where e.id = any(_moved) and h.id = e.id and h.event_ts = e.event_ts;
    perform agent.lead_with_first(_moved);
    return _moved;
exception when others then
    if _alone or agent.is_outage(sqlstate) then
        raise;
    elsif _half > 0 then
        return agent.rerun_batch(_ids[:_half], false) || agent.rerun_batch(_ids[_half + 1:], false);
    end if;
    raise warning 'event % cannot run again: SQLSTATE %', _ids[1], sqlstate;
    return '{}';
end $$;

-- The stored steps of an event in their order, with the name that operators read, and whether a new
-- run from the step _from keeps each: it was done before _from was stored. What ctx.ask stores
-- belongs together: a question is asked again if it has no answer, or if _from is one of its steps.
-- A Stop button has no answer; it is done once it is gone. An event that was undone keeps no step.
create or replace function agent.kept_steps(_id int8, _from text)
returns table (name text, nth int4, label text, kept boolean)
language sql stable security definer set enable_seqscan = off as $$ with stored as (
        select s.name, s.nth, s.sort, coalesce(s.finished_at, s.started_at) as stored_at, s.finished_at
        , s.name || case when s.nth > 1 then format(' (%s)', s.nth) else '' end as label
        -- The names are those of surelane_worker.handling.asks.
        , (select q.question from (select left(a.name, -length(' asked')) as question from agent.step as a
                where a.event_id = _id and a.name like '%:% asked') as q
            where s.name in (q.question, q.question || ' asked', q.question || ' may'
                , q.question || ' refused', q.question || ' closed')
            limit 1) as question
        -- Number 0 is the list of agent.gather.
        from agent.step as s where s.event_id = _id and s.nth > 0
    ), cut as (
        select min(s.stored_at) as at from stored as s
        where (select h.notes ? 'undone' from agent.event_hist as h where h.id = _id
            order by h.finished_at desc limit 1) is not true and s.label = _from
        or s.question = (select f.question from stored as f where f.label = _from limit 1)
    ), before as (
        select s.*, s.stored_at < cut.at and (s.finished_at is not null or s.sort = 'sleep') as done
        from stored as s cross join cut)
    select b.name, b.nth, b.label
    , coalesce(b.done and (b.question is null or exists (
        select from before as f where f.question = b.question and f.done and (f.name = b.question || ' closed'
            or f.name = b.question and not exists (select from stored as j
                where j.name = b.question || ' may')))), false)
    from before as b order by b.stored_at, b.name, b.nth $$;

-- Runs an ended event again as a new event: with its kind, group, priority and payload (or
-- _payload), and with the steps that were stored before the step _from; without _from with none.
-- Signals that no wait had taken go with kept steps. The new event comes last in its group, and
-- both events know each other. Answers rerun, with the new event's id and key and the kept steps;
-- live; unknown; no_step, with all steps. Raises 55P03 after two seconds of a lock.
create or replace function agent.rerun_as_new
( _id int8, _from text, _payload jsonb, out answer text, out rerun int8, out key text, out steps text[])
language plpgsql security definer set lock_timeout = '2s' set enable_seqscan = off as $$
declare _now timestamptz := agent.clock(); _old agent.event_hist; _new agent.event; _root text;
begin
    if exists (select from agent.event where id = _id) then answer := 'live'; return; end if;
    select * into _old from agent.event_hist where id = _id order by finished_at desc limit 1 for update;
    if not found then
        -- Another transaction that held the lock has moved it.
        answer := case when exists (select from agent.event where id = _id) then 'live' else 'unknown' end;
        return;
    end if;
    if octet_length(_payload::text) > 4000000 then
        raise invalid_parameter_value using message = 'the new payload has at most four million bytes';
    elsif jsonb_typeof(_old.event) = 'object' and jsonb_typeof(_payload) <> 'object' then
        raise invalid_parameter_value using message = format(
            'the payload of this event is a JSON object, not %s', jsonb_typeof(_payload));
    end if;
    if _from is not null then
        select array_agg(s.label) into steps from agent.kept_steps(_id, _from) as s;
        if _from <> all(steps) then
            -- A question, as its handler names it: ask, or ask (2).
            _from := regexp_replace(case when _from ~ ' [(][0-9]+[)]$' then _from else _from || ' (1)' end
                , ' [(]([0-9]+)[)]$', E':\\1 asked');
        end if;
        if _from <> all(coalesce(steps, '{}')) then
            answer := 'no_step';
            steps := coalesce(steps, '{}');
            return;
        end if;
    end if;
    select coalesce(array_agg(s.label) filter (where s.kept), '{}') into steps
    from agent.kept_steps(_id, _from) as s;
    answer := 'rerun';
    rerun := nextval('agent.event_id_seq');
    _root := regexp_replace(coalesce(_old.item_key, _old.id::text), ':rerun:[0-9]+$', '');
    key := left(_root, 160) || ':rerun:' || rerun;
    _new.id := rerun; _new.event_ts := _now; _new.vt := _now; _new.event := coalesce(_payload, _old.event);
    _new.kind := case when steps = '{}' then agent.base_kind(_old.kind, _old.notes) else _old.kind end;
    _new.item_key := key; _new.group_key := _old.group_key;
    _new.max_attempts := _old.max_attempts; _new.lane := _old.lane;
    _new.changes := case when _old.changes #> '{0,limit_key}' is null then '[]'
        else jsonb_build_array(_old.changes -> 0) end
        || jsonb_build_array(jsonb_strip_nulls(jsonb_build_object('action', 'replay of', 'at', _now
            , 'by', agent.acting(), 'id', _id, 'key', _old.item_key, 'from_step', _from
            , 'kept', cardinality(steps), 'payload', case when _payload is not null then 'another' end
            -- A continuation that runs again finds the children of this event.
            , 'first', coalesce(agent.rerun_first(_old.changes), _id))));
    perform agent.add_event(_new, true, false);
    -- By its notes a first attempt knows that there are steps, and whose trace to link to.
    update agent.event set notes = jsonb_strip_nulls(jsonb_build_object('replay_of', jsonb_build_object(
        'key', coalesce(_old.item_key, _id::text), 'traceparent', _old.traceparent)
        , 'version', case when steps <> '{}' then _old.notes ->> 'version' end)) where id = rerun;
    insert into agent.step (event_id, name, nth, sort, event_ts, arguments, result, errors, attempt
        , started_at, due_at, finished_at)
    select rerun, s.name, s.nth, s.sort, _now, s.arguments, s.result, s.errors, s.attempt, s.started_at
    , s.due_at, s.finished_at from agent.step as s where s.event_id = _id
    -- The list of agent.gather stays: the new event gets the same events.
    and (s.nth = 0 and s.name = 'events' or exists (select from agent.kept_steps(_id, _from) as k
            where k.kept and k.name = s.name and k.nth = s.nth));
    if _from is not null then
        insert into agent.signal (event_id, name, value, sent_at, sent_by)
        select rerun, s.name, s.value, s.sent_at, s.sent_by from agent.signal as s
        where s.event_id = _id and s.taken_by is null
        -- An answer to a question is for the message that the old event posted.
        and not exists (select from agent.step as a where a.event_id = _id and a.name = s.name || ' asked')
        and s.name !~ '^child .*:[0-9]+$' -- nor does the new event have the old one's children
        order by s.id;
    end if;
    update agent.event_hist set changes = agent.add_change(changes
        , jsonb_build_object('action', 'replayed as', 'at', _now, 'by', agent.acting()
        , 'id', rerun, 'key', key)) where id = _old.id and event_ts = _old.event_ts;
end $$;

-- The events that an event runs again, newest first: its steps and signals may be theirs. Includes
-- the first, also where history was dropped, and events that it continues and whose signals it has.
create or replace function agent.rerun_chain(_id int8) returns int8[]
language sql stable security definer set enable_seqscan = off
return array(
    with recursive run (id) as (
        select _id
        union
        select unnest(case change ->> 'action'
                when 'replay of' then array[(change ->> 'id')::int8, (change ->> 'first')::int8]
            else array(select jsonb_array_elements(change -> 'signals_of')::int8) end) from run
        cross join lateral jsonb_array_elements((agent.job_of(run.id)).changes) as change
        where change ->> 'action' in ('replay of', 'continuation of'))
    select run.id from run where run.id <> _id);
