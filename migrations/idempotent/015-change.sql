-- What operators and programs change: they cancel and reschedule events, run them again, and pause
-- kinds.
--
--   acting: who changes something; functions that note it
--   cancel_event, cancel_jobs, cancel_job, cancel_live: cancel; operators, programs
--   live_messages, replace_message: an edited or deleted message's turn; workers
--   cancel_grace, why_cancelled, with_live_children, end_waiting: parts of these
--   expire_jobs, reschedule_event: operators, programs
--   rerun_row, rerun_batch, rerun_events: ended events run again; operators
--   kept_steps, rerun_as_new: a new event runs an ended one again; operators
--   rerun_chain: which events a new one runs again; workers, operators
--   requeue_events, replay_event: the same for operators' services of 0.2.0
--   pause_kind, resume_kind: operators

-- Who acts in this transaction: the person or program that begin_action named, else the role.
create or replace function agent.acting() returns text
language sql stable
set search_path = pg_catalog, pg_temp
return coalesce(case when has_function_privilege(session_user
        , 'agent.begin_action(text, text, text, text, jsonb)', 'execute')
    then nullif(current_setting('surelane.acting', true), '') end, session_user);

-- How long an attempt may go on after its event was asked to be cancelled. Then its claim lapses.
create or replace function agent.cancel_grace() returns interval
language sql immutable parallel safe
return interval '10 seconds';

-- Who asked to cancel an event while it ran, and why, where they said so.
create or replace function agent.why_cancelled(_id int8) returns text
language plpgsql stable security definer as $$
begin
    return (
        select 'cancelled while running by ' || e.cancelled_by || coalesce(': ' || (change ->> 'reason'), '')
        from agent.event as e cross join lateral jsonb_path_query_first(e.changes
            , 'strict $[last to 0] ? (@.action == "cancelling")') as change
        where e.id = _id and e.cancelled_by is not null and (change ->> 'named')::boolean);
exception when others then
    return null;
end $$;

-- Some events with all live children that handlers await, and with _all those of continuations.
create or replace function agent.with_live_children(_ids int8[], _all boolean) returns int8[]
language sql stable security definer
set enable_seqscan = off
return array(
    with recursive below as (
        select unnest(_ids) as id
        union
        select e.id from below join agent.event as e
        on e.continuation_id = below.id and (_all or agent.if_failed(e.changes) = 'cancel')
    )
    select below.id from below);

-- Cancels events by their ids; answers each as cancel_event does, or busy where another transaction
-- has it or its group locked. An unknown id is left out. It steps over locks, so operators can
-- cancel many in bounded steps. _by and _why: who asked for it, and why. Includes the children that
-- handlers await; with _children also those of continuations, and theirs.
create or replace function agent.cancel_jobs(_ids int8[], _by text default null, _why text default null
    , _children boolean default false) returns table (id int8, answer text)
language plpgsql volatile security definer
set enable_seqscan = off as $$
declare
    _now timestamptz := agent.clock();
    _who text := left(coalesce(_by, agent.acting()), 200);
    _held int8[];
    _running int8[];
begin
    _ids := agent.with_live_children(_ids, _children);
    _held := agent.lock_for_sweep(_ids);
    _running := array(
        select e.id from agent.event as e
        where e.id = any(_held) and (e.claimed_by is not null and e.vt > _now or e.notes ? 'undo'));
    -- Of a group the head's lease counts for all that are held with it.
    update agent.event as e set cancelled_by = _who
    , vt = case when e.head then least(e.vt, _now + agent.cancel_grace()) else e.vt end
    , changes = agent.add_change(e.changes
        , jsonb_strip_nulls(jsonb_build_object('action', 'cancelling', 'at', _now, 'by', _who, 'reason'
            , left(_why, 1000)
        , 'named', _who <> session_user or _why is not null)))
    where e.id = any(_running) and e.cancelled_by is null and (e.notes ? 'undo') is not true;
    if _running <> '{}' then
        perform agent.note_parked(_running, false);
        -- A notification has less than 8,000 bytes; an empty one concerns all.
        perform pg_notify('agent_cancel'
            , case when cardinality(_running) <= 300 then array_to_string(_running, ' ') else '' end);
    end if;
    return query select * from agent.end_waiting(_ids, _held, _running, 'cancelled'
        , 'cancelled by ' || _who || coalesce(': ' || left(_why, 1000), ''));
end $$;

-- Moves events into history as expired, and says _why; answers each: expired, running (it was left
-- alone, or begins its undos), or busy, where it or its group is locked. An unknown id is left out.
-- An event whose undos no worker runs ends by this alone.
create or replace function agent.expire_jobs(_ids int8[], _why text) returns table (id int8, answer text)
language plpgsql volatile security definer
set enable_seqscan = off as $$
declare
    _held int8[] := agent.lock_for_sweep(_ids);
begin
    return query
    select * from agent.end_waiting(_ids, _held
        , array(select e.id from agent.event as e
            where e.id = any(_held) and e.claimed_by is not null and e.vt > agent.clock())
        , 'expired', 'expired by ' || left(agent.acting(), 200) || coalesce(': ' || left(_why, 1000), ''));
end $$;

-- Ends the events of _ids that the caller holds and that do not run: all of _held but _running.
-- Answers each that is in the queue: the outcome, running, or busy.
create or replace function agent.end_waiting(_ids int8[], _held int8[], _running int8[], _outcome text
    , _reason text)
returns table (id int8, answer text)
language plpgsql volatile as $$
declare
    _now timestamptz := agent.clock();
    _unfenced text[];
    _known int8[];
    _left int8[];
begin
    -- As where a claim finds them: members that were held with a lapsed head go back unspent. A
    -- head with a member that another transaction has locked stays.
    _unfenced := agent.fence_lapsed(_held);
    if _unfenced <> '{}' then
        _held := array(select e.id from agent.event as e
            where e.id = any(_held) and not (e.head and e.claimed_by is not null and e.vt <= _now
            and e.group_key is not null and e.group_key = any(_unfenced)));
    end if;
    _known := array(select e.id from agent.event as e where e.id = any(_ids));
    perform agent.archive_possible(array(select unnest(_held) except select unnest(_running)), _outcome
        , _reason);
    _left := array(select e.id from agent.event as e where e.id = any(_ids));
    _running := _running || array(select e.id from agent.event as e
        where e.id = any(_held) and e.notes ? 'undo');
    return query
    select given, case when given = any(_running) then 'running'
        when given = any(_held) and given <> all(_left) then _outcome else 'busy' end
    from unnest(_ids) as given where given = any(_known);
end $$;

-- Cancels an event by its id, as cancel_event does. Answers busy after two seconds of a lock.
create or replace function agent.cancel_job(_id int8, _by text default null, _why text default null
    , _children boolean default false) returns text
language plpgsql volatile security definer
set lock_timeout = '2s' set enable_seqscan = off as $$
begin
    begin
        perform agent.hold_group((select group_key from agent.event where id = _id));
        perform from agent.event where id = _id for update;
        -- Its children, too, so that none is passed over.
        perform from agent.event where id = any(agent.with_live_children(array[_id], _children)) order by id
        for update;
    exception when lock_not_available or deadlock_detected then
        return 'busy';
    end;
    return (select answer from agent.cancel_jobs(array[_id], _by, _why, _children) where id = _id);
end $$;

-- Cancels an event by its item key. Answers 'cancelled' (in history now), 'running' (its handler is
-- stopped; if the attempt completes all the same, so does the event; or it runs its undos first),
-- 'busy' (it is locked: try again), or null: it is not in the queue.
create or replace function agent.cancel_event(_item_key text) returns text
language sql volatile security definer
set enable_seqscan = off
as $$ select agent.cancel_job((select id from agent.event where item_key = agent.bounded_key(_item_key)), null
    , null, false) $$;

-- The same by its natural key or its id.
create or replace function agent.cancel_live(_key text, _by text, _why text, _children boolean) returns text
language sql volatile security definer
as $$ select agent.cancel_job(agent.live_event(_key), _by, _why, _children) $$;

-- The live events about the message of an event, with its text at the time, unless they are being
-- cancelled.
create or replace function agent.live_messages(_event jsonb)
returns table (id int8, kind text, event_ts timestamptz, claimed timestamptz[], held boolean, event jsonb)
language plpgsql stable security definer
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
    _group_key text := agent.event_group_key(_event);
    _ts text := agent.slack_event(_event) ->> 'ts';
begin
    return query
    select e.id, e.kind, e.event_ts, e.claimed, e.claimed_by is not null, e.event from (
        select * from agent.event as h where h.group_key = _group_key and h.head
        union all select * from agent.event as h
        where h.group_key = _group_key and not h.head and h.claimed_by is not null
        union all select * from agent.event as h
        where h.group_key = _group_key and not h.head and h.claimed_by is null
    ) as e
    where e.cancelled_by is null and agent.slack_event(e.event) ->> 'ts' = _ts
    and (e.kind = 'slack.app_mention' or starts_with(e.kind, 'slack.message'));
end $$;

-- Cancels the turn of a message that a person edited or deleted, and with _restart stores _event
-- under _item_key. _event is the message as it is now, in Slack's envelope, at the edit's time.
-- So of two edits the later one counts, in either order. A turn is an event that no handler has
-- begun, or that has a step named _step. Answers as cancel_job does, busy also where a worker holds
-- the event and it may become a turn yet; null: there is no turn.
create or replace function agent.replace_message(_event jsonb, _item_key text, _step text, _restart boolean
    , _by text, _why text) returns text
language plpgsql volatile security definer
set enable_seqscan = off as $$
declare
    _kind text := agent.event_kind(_event);
    _at timestamptz := (agent.event_time(_event, agent.clock())).event_ts;
    _id int8;
    _turn boolean;
    _held boolean;
    _new agent.event;
    _answer text;
begin
    select e.id, e.held
    , e.claimed = '{}' or exists (select from agent.step as s where s.event_id = e.id and s.name = _step)
    into _id, _held, _turn
    from agent.live_messages(_event) as e where e.kind = _kind and e.event_ts < _at order by e.id limit 1;
    if not _turn then
        return case when _held then 'busy' end;
    end if;
    _answer := agent.cancel_job(_id, _by, _why);
    if _restart and _answer in ('cancelled', 'running') then
        _new := agent.slack_row(_event, null, _item_key);
        _new.dedupe_key := null; -- the message is stored already
        perform agent.add_event(_new, true, false);
    end if;
    return _answer;
end $$;

-- Moves an event to another time by its item key, or its id. Answers 'rescheduled', 'running' or
-- 'waiting' (for its children or an answer; nothing was changed), or null: no such event is in the
-- queue.
create or replace function agent.reschedule_event(_item_key text, _run_at timestamptz) returns text
language plpgsql volatile security definer
set enable_seqscan = off as $$
declare
    _found agent.event;
    _id int8 := agent.live_event(_item_key);
begin
    if coalesce(_run_at >= '10000-01-01 00:00:00+00' or _run_at = '-infinity', true) then
        raise invalid_parameter_value using message = format('an event cannot be rescheduled to %s'
            , coalesce(_run_at::text, 'null'));
    end if;
    perform agent.hold_group((select group_key from agent.event where id = _id));
    select * into _found from agent.event where id = _id for update;
    if not found then
        return null;
    elsif _found.claimed_by is not null and _found.vt > agent.clock() then
        return 'running';
    elsif _found.vt = 'infinity' then
        return 'waiting';
    end if;
    perform agent.move_event(_found, _run_at, _found.event, 'rescheduled', session_user);
    return 'rescheduled';
end $$;

-- The row with which an ended event returns: its id, claims and errors, and all its attempts before
-- it. Its changes are named as in 0.2.0, whose services read them.
create or replace function agent.rerun_row(_old agent.event_hist) returns agent.event
language plpgsql volatile as $$
declare
    _new agent.event;
begin
    _new.id := _old.id;
    _new.event_ts := _old.event_ts;
    _new.vt := agent.clock();
    _new.claimed := _old.claimed;
    _new.event := _old.event;
    _new.kind := case when _old.outcome = 'completed' then agent.base_kind(_old.kind, _old.notes)
        else _old.kind end;
    _new.item_key := _old.item_key;
    _new.group_key := _old.group_key;
    _new.max_attempts := _old.max_attempts;
    _new.lane := _old.lane;
    _new.enqueued_at := _old.enqueued_at;
    _new.enqueued_by := _old.enqueued_by;
    _new.errors := _old.errors;
    _new.traceparent := _old.traceparent;
    _new.changes := agent.add_change(_old.changes
        , jsonb_build_object('action', 'requeued', 'at', agent.clock(), 'by', agent.acting()
        , 'from', jsonb_build_object('outcome', _old.outcome, 'reason', _old.reason, 'attempts'
            , _old.attempts)));
    return _new;
end $$;

-- Moves events from history back into the queue, 500 in one statement. Returns the ids that were
-- moved. An event whose item key is live again stays in history. No continuation waits for a child
-- that runs again. Others that enter the groups wait for this transaction: give 500 ids at a time.
create or replace function agent.rerun_events(_ids int8[]) returns setof int8
language plpgsql volatile security definer
set jit = off as $$
declare
    _moved int8[];
begin
    perform agent.require_read_committed();
    for _first in 1..coalesce(cardinality(_ids), 0) by 500 loop
        _moved := agent.rerun_batch(_ids[_first : _first + 499], cardinality(_ids) = 1);
        return query select unnest(_moved);
    end loop;
end $$;

-- Does so for a batch. An event that what others added to a table refuses stays in history, with a
-- warning. Alone (_alone), it raises the error.
create or replace function agent.rerun_batch(_ids int8[], _alone boolean) returns int8[]
language plpgsql volatile security definer
set jit = off as $$
declare
    _found int8[];
    _rows agent.event[];
    _row agent.event;
    _moved int8[];
    _half int4 := cardinality(_ids) / 2;
begin
    -- They become visible in the order in which they happened.
    select array_agg(old.id order by (old.event).group_key, (old.event).item_key, old.id)
    , array_agg(old.event order by (old.event).group_key, (old.event).item_key, old.id) into _found, _rows
    from (
        select h.id, agent.rerun_row(h) as event from agent.event_hist as h where h.id = any(_ids)
        order by h.event_ts, h.id for update skip locked
    ) as old;
    if _found is null then
        return '{}';
    end if;
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
            select from agent.step as c
            where c.event_id = moved and c.name ~ '^child .*:[0-9]+$'
            and c.result #>> '{value,outcome}' <> 'completed')
    ) as again
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
    and s.sort = 'wait'
    and s.result #>> '{value,outcome}' <> 'completed';
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

-- The stored steps of an event as a new run from the step _from may keep them: in the order of
-- their storing, with the name that operators read, and whether each is kept: it was done before
-- _from was stored. What ctx.ask stores belongs together: a question without an answer is asked
-- again, and so is one of whose steps _from is one. A Stop button has no answer; it is done once it
-- is gone. Of an event that was undone no step is kept.
create or replace function agent.kept_steps(_id int8, _from text)
returns table (name text, nth int4, label text, kept boolean)
language sql stable security definer
set enable_seqscan = off as $$
    with stored as (
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
        from stored as s cross join cut
    )
    select b.name, b.nth, b.label
    , coalesce(b.done and (b.question is null or exists (
        select from before as f where f.question = b.question and f.done and (f.name = b.question || ' closed'
            or f.name = b.question and not exists (select from stored as j
                where j.name = b.question || ' may')))), false)
    from before as b order by b.stored_at, b.name, b.nth
$$;

-- Runs an ended event again as a new event: with its kind, group, priority and payload (or
-- _payload), and with the steps that were stored before the step _from; without _from with none.
-- Signals that no wait had taken go with kept steps. The new event comes after what its group has,
-- and both events know each other. Answers rerun, with the new event's id and key and the steps
-- that were kept; live; unknown: no such event; no_step, with the steps that there are. Raises
-- 55P03 where the event stays locked for two seconds.
create or replace function agent.rerun_as_new
( _id int8, _from text, _payload jsonb, out answer text, out rerun int8, out key text, out steps text[]
)
language plpgsql volatile security definer
set lock_timeout = '2s' set enable_seqscan = off as $$
declare
    _now timestamptz := agent.clock();
    _old agent.event_hist;
    _new agent.event;
    _root text;
begin
    if exists (select from agent.event where id = _id) then
        answer := 'live';
        return;
    end if;
    select * into _old from agent.event_hist where id = _id order by finished_at desc limit 1 for update;
    if not found then
        -- Another transaction that held the lock has moved it.
        answer := case when exists (select from agent.event where id = _id) then 'live' else 'unknown' end;
        return;
    end if;
    if octet_length(_payload::text) > 4000000 then
        raise invalid_parameter_value using message = 'the new payload has at most four million bytes';
    elsif jsonb_typeof(_old.event) = 'object' and jsonb_typeof(_payload) <> 'object' then
        raise invalid_parameter_value
            using message = format('the payload of this event is a JSON object, not %s'
            , jsonb_typeof(_payload));
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
    _root := regexp_replace(coalesce(_old.item_key, _old.id::text), ':(replay|rerun):[0-9]+$', '');
    key := left(_root, 160) || ':rerun:' || rerun;
    _new.id := rerun;
    _new.event_ts := _now;
    _new.vt := _now;
    _new.event := coalesce(_payload, _old.event);
    _new.kind := case when steps = '{}' then agent.base_kind(_old.kind, _old.notes) else _old.kind end;
    _new.item_key := key;
    _new.group_key := _old.group_key;
    _new.max_attempts := _old.max_attempts;
    _new.lane := _old.lane;
    _new.changes := case when _old.changes #> '{0,limit_key}' is null then '[]'
        else jsonb_build_array(_old.changes -> 0) end
        || jsonb_build_array(jsonb_strip_nulls(jsonb_build_object('action', 'replay of', 'at', _now, 'by'
                , agent.acting(), 'id', _id
            , 'key', _old.item_key, 'from_step', _from, 'kept', cardinality(steps), 'payload'
            , case when _payload is not null then 'another' end
            -- Whose children a continuation finds that runs again.
            , 'first', coalesce(agent.rerun_first(_old.changes), _id))));
    perform agent.add_event(_new, true, false);
    -- By its notes a first attempt knows that there are steps, and whose trace to link to.
    update agent.event set notes = jsonb_strip_nulls(jsonb_build_object('replay_of'
            , jsonb_build_object('key', coalesce(_old.item_key, _id::text)
        , 'traceparent', _old.traceparent), 'version', case
        when steps <> '{}' then _old.notes ->> 'version' end))
    where id = rerun;
    insert into agent.step (event_id, name, nth, sort, event_ts, arguments, result, errors, attempt
        , started_at, due_at, finished_at)
    select rerun, s.name, s.nth, s.sort, _now, s.arguments, s.result, s.errors, s.attempt, s.started_at
    , s.due_at, s.finished_at
    from agent.step as s where s.event_id = _id
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
        , 'id', rerun, 'key', key))
    where id = _old.id and event_ts = _old.event_ts;
end $$;

-- The events that an event runs again, the last one first: its steps and signals may be theirs. Of
-- those whose history was dropped, the first one is known. Includes those that it continues and
-- whose signals it has.
create or replace function agent.rerun_chain(_id int8) returns int8[]
language sql stable security definer
set enable_seqscan = off
return array(
    with recursive run (id) as (
        select _id
        union
        select unnest(case change ->> 'action'
                when 'replay of' then array[(change ->> 'id')::int8, (change ->> 'first')::int8]
            else array(select jsonb_array_elements(change -> 'signals_of')::int8) end) from run
        cross join lateral jsonb_array_elements((agent.job_of(run.id)).changes) as change
        where change ->> 'action' in ('replay of', 'continuation of')
    )
    select run.id from run where run.id <> _id);

-- The names by which operators' services of 0.2.0 call rerun_events and rerun_as_new.
create or replace function agent.requeue_events(_ids int8[]) returns setof int8
language sql volatile security definer
as $$ select agent.rerun_events(_ids) $$;

create or replace function agent.replay_event
( _id int8, _from text, _payload jsonb, out answer text, out replay int8, out key text, out steps text[]
)
language sql volatile security definer
as $$ select replace(r.answer, 'rerun', 'replayed'), r.rerun, r.key, r.steps
    from agent.rerun_as_new(_id, _from, _payload) as r $$;

-- Pauses a kind: its waiting events are neither claimed nor expired until it is resumed. They do
-- not hold up other kinds of their groups: this frees 1,000 such groups; sweeps and clients
-- (agent.free_groups) free more. Raises 55P03 where another transaction adds or changes the kind
-- for two seconds.
create or replace function agent.pause_kind(_kind text) returns void
language plpgsql volatile security definer
set lock_timeout = '2s' as $$
begin
    insert into agent.kind (kind, paused, paused_at, paused_by)
    values (_kind, true, agent.clock(), agent.acting())
    on conflict (kind) do update set paused = true, paused_at = excluded.paused_at
    , paused_by = excluded.paused_by where not kind.paused;
    perform agent.free_groups();
end $$;

-- Resumes a paused kind and wakes the workers.
create or replace function agent.resume_kind(_kind text) returns void
language sql volatile security definer as $$
    update agent.kind set paused = false, paused_at = null, paused_by = null where kind = _kind and paused;
    select agent.free_groups(), pg_notify('agent_event', '')
$$;
