-- Who acts in this transaction: the person or program that begin_action named, else the role.
create or replace function agent.acting() returns text
language sql stable
set search_path = pg_catalog, pg_temp
return coalesce(case when has_function_privilege(session_user, 'agent.begin_action(text, text, text, text, jsonb)', 'execute')
    then nullif(current_setting('surelane.acting', true), '') end, session_user);

-- How long an attempt may go on after its event was asked to be cancelled. Then its claim lapses: a
-- worker that hangs is fenced, and the next sweep ends the event.
create or replace function agent.cancel_grace() returns interval
language sql immutable parallel safe
return interval '10 seconds';

-- Who asked to cancel an event while it ran, and why, where they said so.
create or replace function agent.why_cancelled(_id int8) returns text
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
begin
    return (
        select 'cancelled while running by ' || e.cancelled_by || coalesce(': ' || (change ->> 'reason'), '')
        from agent.event as e cross join lateral jsonb_path_query_first(e.changes, 'strict $[last to 0] ? (@.action == "cancelling")') as change
        where e.id = _id and e.cancelled_by is not null and (change ->> 'named')::boolean);
exception when others then
    return null;
end
$$;

-- Cancels an event by its item key. Answers 'cancelled' (in history now), 'running' (its handler is
-- stopped; if the attempt completes all the same, the event is completed), 'busy' (another
-- transaction has it locked: try again), or null: no such event is in the queue.
create or replace function agent.cancel_event(_item_key text) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
begin
    return agent.cancel_job((select id from agent.event where item_key = agent.bounded_key(_item_key)), null, null, false);
end
$$;

-- Cancels events by their ids; answers each as cancel_event does, or busy where another transaction
-- has it or its group locked. An unknown id is left out. In one pass, stepping over locks, so that
-- operators can cancel many in bounded steps. _by and _why say who asked for it and why. With
-- _children also what they wait for: the children of continuations, and theirs.
create or replace function agent.cancel_jobs(_ids int8[], _by text, _why text, _children boolean) returns table (id int8, answer text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    _now timestamptz := agent.clock();
    _who text := left(coalesce(_by, agent.acting()), 200);
    _held int8[];
    _running int8[];
begin
    if _children then
        _ids := array(
            with recursive below as (
                select unnest(_ids) as id union select e.id from below join agent.event as e on e.continuation_id = below.id
            )
            select below.id from below);
    end if;
    _held := agent.lock_for_sweep(_ids);
    _running := array(select e.id from agent.event as e where e.id = any(_held) and e.claimed_by is not null and e.vt > _now);
    -- Of a group the head's lease counts for all that are held with it.
    update agent.event set cancelled_by = _who, vt = case when head then least(vt, _now + agent.cancel_grace()) else vt end
    , changes = agent.add_change(changes, jsonb_strip_nulls(jsonb_build_object('action', 'cancelling', 'at', _now, 'by', _who, 'reason', left(_why, 1000)
        , 'named', _who <> session_user or _why is not null)))
    where id = any(_running) and cancelled_by is null;
    if _running <> '{}' then
        perform agent.note_parked(_running, false);
        -- A notification has less than 8,000 bytes; an empty one concerns all.
        perform pg_notify('agent_cancel', case when cardinality(_running) <= 300 then array_to_string(_running, ' ') else '' end);
    end if;
    return query select * from agent.end_waiting(_ids, _held, _running, 'cancelled', 'cancelled by ' || _who || coalesce(': ' || left(_why, 1000), ''));
end
$$;

-- Moves events that an operator names into history as expired; answers each: expired, running (it
-- was left alone), or busy, where another transaction has it or its group locked. An unknown id is
-- left out. _why says why.
create or replace function agent.expire_jobs(_ids int8[], _why text) returns table (id int8, answer text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    _held int8[] := agent.lock_for_sweep(_ids);
begin
    return query
    select * from agent.end_waiting(_ids, _held
        , array(select e.id from agent.event as e where e.id = any(_held) and e.claimed_by is not null and e.vt > agent.clock())
        , 'expired', 'expired by ' || left(agent.acting(), 200) || coalesce(': ' || left(_why, 1000), ''));
end
$$;

-- Ends those of _ids that the caller holds and that do not run: of _held all but _running. Answers
-- each that is in the queue: the outcome, running, or busy.
create or replace function agent.end_waiting(_ids int8[], _held int8[], _running int8[], _outcome text, _reason text)
returns table (id int8, answer text)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    _now timestamptz := agent.clock();
    _unfenced text[];
    _known int8[];
    _left int8[];
begin
    -- As where a claim finds them: members that were held with a head whose lease lapsed go back
    -- unspent. A head with a member that another transaction has locked stays.
    _unfenced := agent.fence_groups(array(
        select e.group_key from agent.event as e where e.id = any(_held) and e.head and e.claimed_by is not null and e.vt <= _now
        and e.group_key is not null order by e.group_key), _now);
    if _unfenced <> '{}' then
        _held := array(select e.id from agent.event as e where e.id = any(_held) and not (e.head and e.claimed_by is not null and e.vt <= _now
            and e.group_key is not null and e.group_key = any(_unfenced)));
    end if;
    _known := array(select e.id from agent.event as e where e.id = any(_ids));
    perform agent.archive_possible(array(select unnest(_held) except select unnest(_running)), _outcome, _reason);
    _left := array(select e.id from agent.event as e where e.id = any(_ids));
    return query
    select given, case when given = any(_running) then 'running' when given = any(_held) and given <> all(_left) then _outcome else 'busy' end
    from unnest(_ids) as given where given = any(_known);
end
$$;

-- Cancels an event by its id; answers as cancel_event does. Where another transaction has locked
-- the event or its group, it waits for two seconds, then answers busy.
create or replace function agent.cancel_job(_id int8, _by text, _why text, _children boolean) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
set enable_seqscan = off
set jit = off
as $$
begin
    begin
        perform agent.hold_group((select group_key from agent.event where id = _id));
        perform from agent.event where id = _id for update;
    exception when lock_not_available or deadlock_detected then
        return 'busy';
    end;
    return (select answer from agent.cancel_jobs(array[_id], _by, _why, _children) where id = _id);
end
$$;

-- The id of the live event with this natural key, else with this id.
create or replace function agent.live_event(_key text) returns int8
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
begin
    return coalesce((select id from agent.event where item_key = agent.bounded_key(_key))
        , case when _key ~ '^\d{1,18}$' then (select id from agent.event where id = _key::int8) end);
end
$$;

-- The same by the natural key or the id of a live event.
create or replace function agent.cancel_live(_key text, _by text, _why text, _children boolean) returns text
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$ select agent.cancel_job(agent.live_event(_key), _by, _why, _children) $$;

-- Moves an event to another time by its item key. Answers 'rescheduled', 'running' or 'waiting'
-- (for its children or an answer; nothing was changed), or null: no such event is in the queue.
create or replace function agent.reschedule_event(_item_key text, _run_at timestamptz) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    _found agent.event;
begin
    if _run_at is null or not isfinite(_run_at) then
        raise invalid_parameter_value using message = format('an event cannot be rescheduled to %s', coalesce(_run_at::text, 'null'));
    end if;
    perform agent.hold_group((select group_key from agent.event where item_key = agent.bounded_key(_item_key)));
    select * into _found from agent.event where item_key = agent.bounded_key(_item_key) for update;
    if not found then
        return null;
    elsif _found.claimed_by is not null and _found.vt > agent.clock() then
        return 'running';
    elsif _found.vt = 'infinity' then
        return 'waiting';
    end if;
    perform agent.move_event(_found, _run_at, _found.event, 'rescheduled', session_user);
    return 'rescheduled';
end
$$;

-- The row with which an ended event returns to the queue: its id, claims and errors, and all its
-- attempts before it.
create or replace function agent.requeued(_old agent.event_hist) returns agent.event
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    _new agent.event;
begin
    _new.id := _old.id;
    _new.event_ts := _old.event_ts;
    _new.vt := agent.clock();
    _new.claimed := _old.claimed;
    _new.event := _old.event;
    _new.kind := _old.kind;
    _new.item_key := _old.item_key;
    _new.group_key := _old.group_key;
    _new.max_attempts := _old.max_attempts;
    _new.lane := _old.lane;
    _new.enqueued_at := _old.enqueued_at;
    _new.enqueued_by := _old.enqueued_by;
    _new.errors := _old.errors;
    _new.traceparent := _old.traceparent;
    _new.changes := agent.add_change(_old.changes, jsonb_build_object('action', 'requeued', 'at', agent.clock(), 'by', agent.acting()
        , 'from', jsonb_build_object('outcome', _old.outcome, 'reason', _old.reason, 'attempts', _old.attempts)));
    return _new;
end
$$;

-- Moves events from history back into the queue, 500 in one statement. Returns the ids that were
-- moved. An event whose item key is live again stays in history. No continuation waits for a
-- requeued child. A call is one transaction, and others that enter its groups wait for it: give 500
-- ids at a time, as the clients do.
create or replace function agent.requeue_events(_ids int8[]) returns setof int8
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set jit = off
as $$
declare
    _found int8[];
    _rows agent.event[];
    _row agent.event;
    _moved int8[];
    _duplicate boolean;
begin
    perform agent.require_read_committed();
    for _first in 1..coalesce(cardinality(_ids), 0) by 500 loop
        -- They become visible in the order in which they happened.
        select array_agg(old.id order by (old.event).group_key, (old.event).item_key, old.id)
        , array_agg(old.event order by (old.event).group_key, (old.event).item_key, old.id) into _found, _rows
        from (
            select h.id, agent.requeued(h) as event from agent.event_hist as h where h.id = any(_ids[_first : _first + 499])
            order by h.event_ts, h.id for update skip locked
        ) as old;
        continue when _found is null;
        perform agent.register_kinds(array(select distinct (given).kind from unnest(_rows) as given));
        _moved := agent.add_new_jobs(_found, _rows);
        -- Few are left out: their keys are live, or they lost the race to be the first of their
        -- group.
        foreach _row in array _rows loop
            if _row.id <> all(_moved) then
                select duplicate into _duplicate from agent.add_event(_row, true, false);
                if not _duplicate then
                    _moved := _moved || _row.id;
                end if;
            end if;
        end loop;
        -- One that failed goes on after its stored steps; one that completed begins anew.
        delete from agent.step as s using agent.event_hist as h where h.id = any(_moved) and h.outcome = 'completed' and s.event_id = h.id;
        delete from agent.signal as s using agent.event_hist as h where h.id = any(_moved) and h.outcome = 'completed' and s.event_id = h.id;
        delete from agent.event_hist as h using agent.event as e where e.id = any(_moved) and h.id = e.id and h.event_ts = e.event_ts;
        perform agent.lead_with_first(_moved);
        return query select unnest(_moved);
    end loop;
end
$$;

-- The stored steps of an event as a replay from the step _from may keep them: in the order in which
-- they were stored, with the name that operators read, and whether each is kept. Kept is what was
-- done before _from was stored. What ctx.ask stores belongs together: a question without an answer
-- is asked again, and so is one of whose steps _from is one. A Stop button is a question that never
-- has an answer.
create or replace function agent.kept_steps(_id int8, _from text)
returns table (name text, nth int4, label text, kept boolean)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
begin
    return query
    with stored as (
        select s.name, s.nth, s.sort, coalesce(s.finished_at, s.started_at) as stored_at, s.finished_at
        , s.name || case when s.nth > 1 then format(' (%s)', s.nth) else '' end as label
        -- The names are those of surelane_worker.handling.asks.
        , (select q.question from (select left(a.name, -length(' asked')) as question from agent.step as a where a.event_id = _id and a.name like '%:% asked') as q
            where s.name in (q.question, q.question || ' asked', q.question || ' may', q.question || ' refused', q.question || ' closed')
            limit 1) as question
        -- Number 0 is the list of agent.gather.
        from agent.step as s where s.event_id = _id and s.nth > 0
    ), cut as (
        select min(s.stored_at) as at from stored as s
        where s.label = _from or s.question = (select f.question from stored as f where f.label = _from limit 1)
    ), before as (
        select s.*, s.stored_at < cut.at and (s.finished_at is not null or s.sort = 'sleep') as done from stored as s cross join cut
    )
    select b.name, b.nth, b.label
    , coalesce(b.done and (b.question is null or exists (
        select from before as f where f.question = b.question and f.done and (f.name = b.question || ' closed'
            or f.name = b.question and not exists (select from stored as j where j.name = b.question || ' may')))), false)
    from before as b order by b.stored_at, b.name, b.nth;
end
$$;

-- Runs an ended event again as a new event: with its kind, group, priority and payload (or
-- _payload), and with the steps that were stored before the step _from; without _from with none.
-- Signals that no wait had taken go with kept steps. The new event comes after what its group has,
-- waits for its own end alone, and knows the old one; the old one knows it. Answers replayed, with
-- the new event's id and key and the steps that were kept; live; unknown: no such event; no_step,
-- with the steps that there are. Raises 55P03 where the event stays locked for two seconds.
create or replace function agent.replay_event
( _id int8, _from text, _payload jsonb, out answer text, out replay int8, out key text, out steps text[]
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
set enable_seqscan = off
set jit = off
as $$
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
        -- A requeue that held the lock has moved it.
        answer := case when exists (select from agent.event where id = _id) then 'live' else 'unknown' end;
        return;
    end if;
    if octet_length(_payload::text) > 4000000 then
        raise invalid_parameter_value using message = 'the payload of a replay has at most four million bytes';
    elsif jsonb_typeof(_old.event) = 'object' and jsonb_typeof(_payload) <> 'object' then
        raise invalid_parameter_value using message = format('the payload of this event is a JSON object, not %s', jsonb_typeof(_payload));
    end if;
    if _from is not null then
        select array_agg(s.label) into steps from agent.kept_steps(_id, _from) as s;
        if _from <> all(coalesce(steps, '{}')) then
            answer := 'no_step';
            steps := coalesce(steps, '{}');
            return;
        end if;
    end if;
    select coalesce(array_agg(s.label) filter (where s.kept), '{}') into steps from agent.kept_steps(_id, _from) as s;
    answer := 'replayed';
    replay := nextval('agent.event_id_seq');
    _root := regexp_replace(coalesce(_old.item_key, _old.id::text), ':replay:\d+$', '');
    key := left(_root, 160) || ':replay:' || replay;
    _new.id := replay;
    _new.event_ts := _now;
    _new.vt := _now;
    _new.event := coalesce(_payload, _old.event);
    _new.kind := _old.kind;
    _new.item_key := key;
    _new.group_key := _old.group_key;
    _new.max_attempts := _old.max_attempts;
    _new.lane := _old.lane;
    _new.changes := case when _old.changes #> '{0,limit_key}' is null then '[]' else jsonb_build_array(_old.changes -> 0) end
        || jsonb_build_array(jsonb_strip_nulls(jsonb_build_object('action', 'replay of', 'at', _now, 'by', agent.acting(), 'id', _id
            , 'key', _old.item_key, 'from_step', _from, 'kept', cardinality(steps), 'payload', case when _payload is not null then 'another' end
            -- Whose children the replay of a continuation finds.
            , 'first', coalesce(agent.replayed_first(_old.changes), _id))));
    perform agent.add_event(_new, true, false);
    -- By its notes a first attempt knows that there are steps, and whose trace to link to.
    update agent.event set notes = jsonb_build_object('replay_of', jsonb_strip_nulls(jsonb_build_object('key', coalesce(_old.item_key, _id::text)
        , 'traceparent', _old.traceparent)))
    where id = replay;
    insert into agent.step (event_id, name, nth, sort, event_ts, arguments, result, errors, attempt, started_at, due_at, finished_at)
    select replay, s.name, s.nth, s.sort, _now, s.arguments, s.result, s.errors, s.attempt, s.started_at, s.due_at, s.finished_at
    from agent.step as s where s.event_id = _id
    -- The list of agent.gather stays: the replay gets the same events.
    and (s.nth = 0 or exists (select from agent.kept_steps(_id, _from) as k where k.kept and k.name = s.name and k.nth = s.nth));
    if _from is not null then
        insert into agent.signal (event_id, name, value, sent_at, sent_by)
        select replay, s.name, s.value, s.sent_at, s.sent_by from agent.signal as s
        where s.event_id = _id and s.taken_by is null
        -- An answer to a question is for the message that the old event posted.
        and not exists (select from agent.step as a where a.event_id = _id and a.name = s.name || ' asked')
        order by s.id;
    end if;
    update agent.event_hist set changes = agent.add_change(changes, jsonb_build_object('action', 'replayed as', 'at', _now, 'by', agent.acting()
        , 'id', replay, 'key', key))
    where id = _old.id and event_ts = _old.event_ts;
end
$$;

-- The first event of a chain of replays, by the changes of one of them; null: it is no replay.
create or replace function agent.replayed_first(_changes jsonb) returns int8
language plpgsql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    return (select (change -> 'first')::int8 from jsonb_array_elements(_changes) as change where change ->> 'action' = 'replay of' limit 1);
end
$$;

-- Pauses a kind: its waiting events are neither claimed nor expired until it is resumed; running
-- ones end as they would. They do not hold up other kinds of their groups: this call frees 1,000
-- such groups. The clients then call agent.free_groups until it frees none; else sweeps do.
create or replace function agent.pause_kind(_kind text) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    -- A kind that is new: inserts of its first events step over this transaction, and it waits for
    -- theirs.
    if not exists (select from agent.kind where kind = _kind) then
        perform pg_advisory_xact_lock(hashtextextended('agent.kind ' || _kind, 0));
    end if;
    insert into agent.kind (kind, paused, paused_at, paused_by) values (_kind, true, agent.clock(), agent.acting())
    on conflict (kind) do update set paused = true, paused_at = excluded.paused_at, paused_by = excluded.paused_by where not kind.paused;
    perform agent.sweep_groups();
end
$$;

-- Resumes a paused kind and wakes the workers.
create or replace function agent.resume_kind(_kind text) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    update agent.kind set paused = false, paused_at = null, paused_by = null where kind = _kind and paused;
    perform agent.sweep_groups();
    perform pg_notify('agent_event', '');
end
$$;

-- How many events of each kind are in each state, and since when the oldest of them is visible.
create or replace function agent.queue_stats()
returns table (kind text, paused boolean, pending int8, scheduled int8, running int8, oldest_pending timestamptz)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set jit = off
as $$
#variable_conflict use_column
declare
    _now timestamptz := agent.clock();
begin
    return query
    select k.kind, k.paused, count(e.id) filter (where e.vt <= _now), count(e.id) filter (where e.vt > _now and e.claimed_by is null)
    , count(e.id) filter (where e.vt > _now and e.claimed_by is not null), min(e.vt) filter (where e.vt <= _now)
    from agent.kind as k left join agent.event as e on e.kind = k.kind group by k.kind order by k.kind;
end
$$;

-- The schema's version, and the oldest version of the services that it serves.
create or replace function agent.schema_version(out version text, out min_compatible text)
language sql stable security definer
set search_path = pg_catalog, pg_temp
begin atomic
    select v.version::text, v.min_compatible::text from agent.version as v;
end;

-- The ids under a natural key, live ones first, then history from its newest; also takes an id as
-- text.
create or replace function agent.find_events(_key text) returns setof int8
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
begin
    return query select e.id from agent.event as e where e.item_key = agent.bounded_key(_key);
    return query select h.id from agent.event_hist as h where h.item_key = agent.bounded_key(_key) order by h.event_ts desc;
    if not found and _key ~ '^\d{1,18}$' then
        return query select j.id from agent.job as j where j.id = _key::int8;
    end if;
end
$$;

-- The newest ended events that a filter wants. Reads the last day, then 30 days, then all that is
-- left, until the page is full. The first two steps open the chunks of history in which their
-- events can be: those around their days, and those of outliers. They are planned with their
-- values, as one plan for all values would open every chunk (0036). The last step opens every
-- chunk, so it keeps its plan. Each filter has an index that is sorted by when events ended. The
-- planner expects few rows here, so it would rather sort all rows of several chunks than merge
-- their indexes: it must not sort.
create or replace function agent.list_ended
( _statuses text[], _kinds text[], _key text, _since timestamptz, _until timestamptz, _after timestamptz, _after_id int8, _limit int4
) returns setof agent.ended_job
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set jit = off
as $$
declare
    _outcomes text[] := array(
        select known from unnest(array['completed', 'failed', 'expired', 'cancelled']) as known where _statuses is null or known = any(_statuses));
    _wanted text[] := array(select kind from agent.kind where _kinds is null union select unnest(_kinds));
    _now timestamptz := agent.clock();
    _left int4 := _limit;
    _found int4;
    _days int4;
    -- The step's events ended from _from to before _to; their event_ts lie from _first to _last.
    _from timestamptz;
    _to timestamptz := least(_until, _after + interval '1 microsecond', 'infinity');
    _first timestamptz;
    _last timestamptz;
begin
    foreach _days in array array[1, 30, null] loop
        if _days is null then
            -- Until this function returns.
            perform set_config('plan_cache_mode', 'force_generic_plan', true);
        end if;
        _from := greatest(_since, coalesce(least(_to, _now) - make_interval(days => _days), '-infinity'));
        select least(_from - interval '168 hours', min(event_week)), greatest(_to, max(event_week)) + interval '168 hours'
        into _first, _last from agent.event_hist_outlier where finished_on > _from - interval '24 hours' and finished_on < _to;
        if _key is null then
            return query
            select h.* from unnest(_wanted) as wanted (kind) cross join unnest(_outcomes) as ending (outcome)
            cross join lateral (
                select e.* from agent.ended_job as e where e.kind = wanted.kind and e.status = ending.outcome
                and e.finished_at >= _from and e.finished_at < _to and (_after is null or (e.finished_at, e.id) < (_after, _after_id))
                and e.event_ts between _first and _last
                order by e.finished_at desc, e.id desc limit _left
            ) as h
            order by h.finished_at desc, h.id desc limit _left;
        else
            return query
            select h.*
            from (
                (select * from agent.ended_job where item_key = _key and event_ts between _first and _last)
                union all
                (select * from agent.ended_job where group_key = _key and item_key is distinct from _key
                 and finished_at >= _from and finished_at < _to and event_ts between _first and _last)
                union all
                (select * from agent.ended_job where dedupe_key = _key and item_key is distinct from _key and group_key is distinct from _key
                 and finished_at >= _from and finished_at < _to and event_ts between _first and _last)
            ) as h
            where h.status = any(_outcomes) and (_kinds is null or h.kind = any(_kinds))
            and h.finished_at >= _from and h.finished_at < _to and (_after is null or (h.finished_at, h.id) < (_after, _after_id))
            order by h.finished_at desc, h.id desc limit _left;
        end if;
        get diagnostics _found = row_count;
        _left := _left - _found;
        exit when _left = 0 or _from <= _since;
        _to := _from;
    end loop;
end
$$;

-- The ids of the live events with a key: their natural key, their group's or their dedupe key, each
-- by its index. Of a group all are read, and for a dedupe key all that run or have failed: a held
-- event is in no index of dedupe keys, as that would cost each claim.
create or replace function agent.live_events_of(_key text) returns setof int8
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
begin
    return query
    select e.id from agent.event as e where e.item_key = _key
    union all select e.id from agent.event as e where e.group_key = _key and e.head
    union all select e.id from agent.event as e where e.group_key = _key and not e.head and e.claimed_by is not null
    union all select e.id from agent.event as e where e.group_key = _key and not e.head and e.claimed_by is null
    union all select e.id from agent.event as e where e.dedupe_key = _key and e.claimed = '{}'
    union all select e.id from agent.event as e where e.dedupe_key = _key and e.claimed <> '{}' and e.claimed_by is null
    union all select e.id from agent.event as e where e.dedupe_key = _key and e.attempts > 0 and e.claimed_by is not null;
end
$$;

-- A page of events, newest first: live ones by id, then ended ones by when they ended. Every filter
-- may be null. The next page begins after the last row of this one: _after_id, and for an ended row
-- its finished_at as _after.
create or replace function agent.list_jobs
( _statuses text[] default null, _kinds text[] default null, _key text default null, _since timestamptz default null, _until timestamptz default null
, _after timestamptz default null, _after_id int8 default null, _limit int4 default 20
) returns setof agent.job
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
declare
    _left int4 := least(greatest(_limit, 1), 1000);
    _found int4;
    _row record;
begin
    if _after is not null or not _statuses && array['pending', 'scheduled', 'running'] then
        null; -- ended ones alone
    elsif _key is not null then
        return query
        select j.* from agent.live_job as j where j.id = any(array(select agent.live_events_of(_key)))
        and (_statuses is null or j.status = any(_statuses)) and (_kinds is null or j.kind = any(_kinds))
        and (_since is null or j.enqueued_at >= _since) and (_until is null or j.enqueued_at < _until)
        and (_after_id is null or j.id < _after_id)
        order by j.id desc limit _left;
        get diagnostics _found = row_count;
        _left := _left - _found;
    else
        for _row in
            select e.id from agent.event as e
            where (_statuses is null or case when e.vt <= now() then 'pending' when e.claimed_by is null then 'scheduled' else 'running' end = any(_statuses))
            and (_kinds is null or e.kind = any(_kinds))
            and (_since is null or e.enqueued_at >= _since) and (_until is null or e.enqueued_at < _until)
            and (_after_id is null or e.id < _after_id)
            order by e.id desc limit _left
        loop
            return query select j.* from agent.live_job as j where j.id = _row.id;
            _left := _left - 1;
        end loop;
    end if;
    if _left > 0 then
        return query select * from agent.list_ended(_statuses, _kinds, _key, _since, _until, _after, _after_id, _left);
    end if;
end
$$;

-- What people see of an event: its texts, names and ids, as far as Slack's payloads and jobs have
-- them.
create or replace function agent.seen_text(_event jsonb) returns text
language sql immutable parallel safe
return concat_ws(' ', _event ->> 'command', _event ->> 'text', _event #>> '{event,text}', _event #>> '{message,text}'
    , _event #>> '{actions,0,text,text}', _event #>> '{actions,0,selected_option,text,text}', _event #>> '{actions,0,action_id}'
    , _event #>> '{actions,0,value}', _event ->> 'callback_id', _event #>> '{view,title,text}', _event #>> '{view,callback_id}'
    , _event ->> 'user_name', _event #>> '{user,username}', _event #>> '{user,name}', _event ->> 'user_id', _event #>> '{user,id}'
    , _event #>> '{event,user}', _event ->> 'channel_name', _event #>> '{channel,name}', _event ->> 'channel_id', _event #>> '{channel,id}'
    , _event #>> '{event,channel}', _event #>> '{event,ts}', _event #>> '{message,ts}', _event #>> '{container,message_ts}'
    , _event #>> '{event,item,ts}', _event ->> 'trigger_id', _event ->> 'event_id');

-- Events in which people saw all of these words, in any case, newest first. Looks at the newest
-- 1,000 events of the kinds since a time.
create or replace function agent.search_jobs(_words text[], _kinds text[], _since timestamptz, _limit int4) returns setof agent.job
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set jit = off
as $$
begin
    return query
    select j.* from agent.list_jobs(null, _kinds, null, _since, null, null, null, 1000) as j
    where not exists (
        select from unnest(_words) as word
        where position(lower(word) in lower(concat_ws(' ', agent.seen_text(j.payload), j.item_key, j.group_key))) = 0)
    limit least(greatest(_limit, 1), 1000);
end
$$;

-- What the events of list_jobs are narrowed by in their payloads, errors and keys. Looks at _most
-- events from the cursor on, at most 1,000; returns those that match, and the last one that it
-- looked at, from which the next call goes on. _words are parts of keys, in any case, as _error is
-- of the error or the reason.
create or replace function agent.narrow_jobs
( _statuses text[], _kinds text[], _key text, _since timestamptz, _until timestamptz, _after timestamptz, _after_id int8, _most int4
, _workspace text, _channel text, _user text, _error text, _words text[]
) returns table (nth int8, matches boolean, job agent.job)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set jit = off
as $$
begin
    return query
    with looked as materialized (
        select row_number() over () as nth, j::agent.job as job from agent.list_jobs(_statuses, _kinds, _key, _since, _until, _after, _after_id, _most) as j
    ), judged as materialized (
        select l.nth, l.job
        , (_workspace is null or agent.event_workspace((l.job).payload) = _workspace)
            and (_channel is null or agent.event_channel((l.job).payload) = _channel)
            and (_user is null or agent.event_user((l.job).payload) = _user)
            and (_error is null or position(lower(_error) in lower(concat_ws(' ', (l.job).errors, (l.job).reason))) > 0)
            and not exists (
                select from unnest(_words) as word
                where position(lower(word) in lower(concat_ws(' ', (l.job).item_key, (l.job).group_key, (l.job).dedupe_key))) = 0) as matches
        from looked as l
    )
    select j.nth, j.matches, j.job from judged as j where j.matches or j.nth = (select max(l.nth) from looked as l) order by j.nth;
end
$$;

-- The events of a group: the newest _limit that ended, and the oldest _limit live ones.
create or replace function agent.group_jobs(_group_key text, _limit int4) returns setof agent.job
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
begin
    return query
    select j.* from (
        select e.id from agent.event as e where e.group_key = _group_key and e.head
        union all (select e.id from agent.event as e where e.group_key = _group_key and not e.head and e.claimed_by is not null limit _limit)
        union all (select e.id from agent.event as e where e.group_key = _group_key and not e.head and e.claimed_by is null order by e.event_ts, e.id limit _limit)
    ) as found join agent.live_job as j on j.id = found.id;
    return query select j.* from agent.ended_job as j where j.group_key = _group_key order by j.finished_at desc limit _limit;
end
$$;

-- The messages with which handlers replied to an event, the oldest first: at most 100 of them, as
-- the notes of its row say (surelane_worker.slack.notes). A reply stands in the event's channel,
-- unless its note names another.
create or replace function agent.list_replies(_id int8, _event_ts timestamptz) returns table (at timestamptz, channel text, ts text)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
set jit = off
as $$
begin
    return query
    select agent.to_timestamptz(r.ts::numeric), coalesce(n.notes #>> array['elsewhere', r.ordinal], agent.event_channel(n.event)), r.ts
    from (
        select e.event, e.notes from agent.event as e where e.id = _id
        union all select h.event, h.notes from agent.event_hist as h where h.id = _id and h.event_ts = _event_ts
        limit 1
    ) as n
    cross join lateral (
        select noted.key as ordinal, coalesce(noted.value ->> 'ts', noted.value #>> '{}') as ts
        from jsonb_each(coalesce(n.notes -> 'replies', '{}') || coalesce(n.notes -> 'streams', '{}')) as noted
    ) as r
    -- One that is being sent has no timestamp, nor has one through a response URL.
    where r.ts ~ '^\d{10}\.\d{6}$' order by 1 limit 100;
end
$$;

-- The events of a Slack message: those of its thread that happened with it. _thread is the ts of
-- the message that began the thread, where the message is a reply. Returns those of the first of
-- _teams that has one.
create or replace function agent.message_jobs(_teams text[], _channel text, _ts numeric, _thread text) returns setof int8
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
declare
    _at timestamptz := agent.to_timestamptz(_ts);
    _key text;
begin
    for _key in
        select agent.bounded_key(concat_ws(':', team, _channel, thread))
        from unnest(_teams) with ordinality as given (team, nth) cross join unnest(array[_thread, _ts::text, null]) with ordinality as threads (thread, place)
        where thread is not null or place = 3 order by nth, place
    loop
        return query
        select e.id from agent.event as e where e.group_key = _key and e.head and e.event_ts = _at
        union all select e.id from agent.event as e where e.group_key = _key and not e.head and e.claimed_by is null and e.event_ts = _at
        union all select e.id from agent.event as e where e.group_key = _key and not e.head and e.claimed_by is not null and e.event_ts = _at
        union all select h.id from (
            select j.id, j.event_ts from agent.event_hist as j where j.group_key = _key and j.finished_at >= _at - interval '1 minute'
            order by j.finished_at limit 2000) as h where h.event_ts = _at;
        exit when found;
    end loop;
end
$$;

-- The events that have waited the longest, at most three of a kind, and why each waits: those that
-- are visible, that wait for another attempt, or for an answer. Looks at the oldest 500 live
-- events, and at the oldest visible head of each kind.
create or replace function agent.longest_waiting(_limit int4)
returns table (id int8, kind text, group_key text, enqueued_at timestamptz, reason text, detail text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    _now timestamptz := agent.clock();
begin
    return query
    with oldest as materialized (
        select e.id, e.kind, e.vt, e.claimed_by, e.retrying from agent.event as e order by e.id limit 500
    ), found as (
        select o.id, o.kind from oldest as o
        where not (o.claimed_by is not null and o.vt > _now) and (o.vt <= _now or o.vt = 'infinity' or o.retrying
            or exists (select from agent.step as s where s.event_id = o.id and s.sort = 'wait' and s.finished_at is null))
        union
        select probe.id, k.kind from agent.kind as k
        cross join lateral (
            select first.id from generate_series(-4, 59) as lanes (number) cross join lateral (
                select e.id, e.vt from agent.event as e where e.head and e.lane = lanes.number and e.kind = k.kind and e.vt <= _now order by e.vt limit 1
            ) as first order by first.vt limit 1
        ) as probe
    ), ranked as (
        select f.id, row_number() over (partition by f.kind order by f.id) as nth from found as f
    )
    select e.id, e.kind, e.group_key, e.enqueued_at, w.reason, w.detail
    from (select r.id, r.nth from ranked as r where r.nth <= 3 order by r.nth, r.id limit _limit) as chosen
    join agent.event as e on e.id = chosen.id cross join lateral agent.why_waiting(e.id) as w
    where w.reason not in ('running', 'ended', 'future') order by e.enqueued_at;
end
$$;

-- Of each kind and outcome how many events ended in the last _minutes, and how long those of
-- attempts waited for their first claim and ran in the last one: the median and the 99th
-- percentile, in seconds. Looks at the newest _sample of each; where there are more, the rate is
-- that of these (counted is then null). Events that happened more than a week ago do not count.
create or replace function agent.recent_figures(_minutes int4, _sample int4)
returns table
( kind text, outcome text, per_minute float8, counted int8, wait_p50 float8, wait_p99 float8, run_p50 float8, run_p99 float8
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set jit = off
as $$
#variable_conflict use_column
declare
    _now timestamptz := agent.clock();
    _from timestamptz := _now - make_interval(mins => _minutes);
    _first timestamptz := _from - interval '168 hours';
    _last timestamptz := _now + interval '25 hours';
begin
    return query
    select k.kind, o.outcome
    , case when f.n >= _sample then 60 * f.n / greatest(extract(epoch from _now - f.since)::float8, 0.001) else f.n::float8 / _minutes end
    , case when f.n < _sample then f.n end, f.waits[1], f.waits[2], f.runs[1], f.runs[2]
    from agent.kind as k cross join unnest(array['completed', 'failed', 'expired', 'cancelled']) as o (outcome)
    cross join lateral (
        select count(*) as n, min(h.finished_at) as since
        , percentile_disc(array[0.5, 0.99]) within group (order by greatest(extract(epoch from h.claimed[array_lower(h.claimed, 1)] - h.enqueued_at), 0)::float8)
            filter (where array_lower(h.claimed, 1) = 1) as waits
        , percentile_disc(array[0.5, 0.99]) within group (order by greatest(extract(epoch from h.finished_at - h.claimed[array_upper(h.claimed, 1)]), 0)::float8)
            filter (where h.claimed <> '{}') as runs
        from (
            select e.finished_at, e.claimed, e.enqueued_at from agent.event_hist as e
            where e.kind = k.kind and e.outcome = o.outcome and e.finished_at >= _from and e.event_ts between _first and _last
            order by e.finished_at desc limit _sample
        ) as h
    ) as f
    where f.n > 0;
end
$$;

-- Whether an event waits for its workspace to install the app, and that is still so.
create or replace function agent.lacks_installation(_e agent.event) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
return exists (
    select from agent.install_wait as w where w.event_id = _e.id and not exists (
        select from agent.installation as i where i.owner_id = w.owner_id and i.enterprise_wide = w.enterprise_wide and i.user_id = ''));

-- Why an event is not running, in one word, and what that means here: running, ended, paused,
-- not_installed, no_key, waits_for_children, awaits_answer, suspended, debounced, future, retrying,
-- group_busy, group_waits, exhausted, no_worker, limited, due; null: no such event. Where its last
-- claim was rescued, also from which worker.
create or replace function agent.why_waiting(_id int8, _max_attempts int4 default null, out reason text, out detail text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    _now timestamptz := agent.clock();
    _e agent.event;
    _head agent.event;
    _most int4;
    _change jsonb;
    _rescued text;
    _lost text;
    _limited text;
begin
    select * into _e from agent.event where id = _id;
    if not found then
        select 'ended', 'ended as ' || outcome || coalesce(': ' || h.reason, '') || ' at ' || finished_at into reason, detail
        from agent.event_hist as h where h.id = _id order by finished_at desc limit 1;
        return;
    end if;
    _most := coalesce(_e.max_attempts, (agent.attempts_of(array[_e.kind], _max_attempts))[1]);
    select * into _head from agent.event where group_key = _e.group_key and head and id <> _id;
    _limited := agent.why_limited(_e, _now);
    _change := _e.changes -> -1;
    if _change ->> 'action' = 'rescued' then
        _rescued := format('worker %s died at %s', _change ->> 'worker', coalesce(_change ->> 'died_at', _change ->> 'at'));
    end if;
    select '; this worker''s session is gone: it counts as dead unless it comes back within seconds' into _lost
    from agent.list_workers() as w where w.name = _e.claimed_by and w.state in ('lost', 'died');
    if _lost is null and _e.heartbeat_at < _now - interval '2 minutes' then
        _lost := format('; without a heartbeat since %s, so the claim ends within a minute after %s', _e.heartbeat_at, _e.heartbeat_at + interval '5 minutes');
    end if;
    select c.reason, c.detail into reason, detail from (values
        (_e.claimed_by is not null and _e.vt > _now, 'running', format('held by %s since %s', _e.claimed_by, _e.claimed[array_upper(_e.claimed, 1)])
            || coalesce(_lost, '; retried because ' || case when (_change ->> 'claim')::int4 < array_upper(_e.claimed, 1) then _rescued end, '')),
        (exists (select from agent.kind where kind = _e.kind and paused), 'paused', format('kind %s is paused', _e.kind)),
        (_e.claimed_by is null and _e.vt > _now and agent.lacks_installation(_e), 'not_installed'
            , (select format('%s until %s; tried again at %s', w.owner_id, w.until, _e.vt) from agent.install_wait as w where w.event_id = _id)),
        (_e.claimed_by is null and _e.vt > _now and _e.notes #>> '{calls,no_key}' is not null, 'no_key'
            , format('%s; tried again at %s', _e.notes #>> '{calls,no_key}', _e.vt)),
        (_e.waits_for > 0, 'waits_for_children', format('%s children have not ended', _e.waits_for)),
        (_e.vt = 'infinity', 'awaits_answer', format('until %s', _e.deadline)),
        (_e.claimed_by is null and _e.vt > _now and agent.suspended_for(_id) is not null, 'suspended', agent.suspended_for(_id)),
        (_e.vt > _now and _e.retrying and _e.attempts = 0, 'debounced', format('waits for more of its group until %s', _e.vt)),
        (_e.vt > _now and _e.retrying, 'retrying', format('attempt %s begins at %s', _e.attempts + 1, _e.vt)),
        (_e.vt > _now, 'future', format('scheduled for %s', _e.vt)),
        (_e.attempts >= _most, 'exhausted', format('%s of %s attempts; the next sweep expires it', _e.attempts, _most) || coalesce('; ' || _rescued, '')),
        (_head.claimed_by is not null and _head.vt > _now, 'group_busy', format('event %s of its group is held by %s', _head.id, _head.claimed_by)),
        (_head.id is not null, 'group_waits', format('event %s of its group comes first', _head.id)),
        (not exists (select from agent.list_workers() as w where _e.kind = any(w.kinds) and w.state = 'alive'), 'no_worker'
            , format('no running worker handles kind %s', _e.kind) || coalesce('; ' || _rescued, '')),
        (_limited is not null, 'limited', _limited),
        (true, 'due', 'visible; a worker claims it next' || coalesce('; ' || _rescued, ''))
    ) as c (holds, reason, detail) where c.holds limit 1;
end
$$;

-- Whether a worker that last announced itself at that time counts as alive.
create or replace function agent.worker_alive(_seen_at timestamptz) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
return _seen_at > agent.clock() - agent.alive_for();

-- The first key of the advisory locks that are workers' sessions (pg_locks.classid).
create or replace function agent.session_class() returns int4
language sql immutable parallel safe
return 1937077859;

-- The sessions of workers that are open on this database. Every role may read pg_locks.
create or replace function agent.open_sessions() returns int4[]
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set jit = off
as $$
begin
    return array(
        select l.objid::int8::int4 from pg_locks as l
        where l.locktype = 'advisory' and l.classid = agent.session_class()::oid and l.objsubid = 2 and l.granted
        and l.database = (select d.oid from pg_database as d where d.datname = current_database()));
end
$$;

-- Opens a worker's session on this connection, where it has none: a lock that PostgreSQL drops as
-- the connection ends, under a key of its own. Others see by it that the worker lives. It is
-- shared, so that another connection of the worker may hold it as well (join_session). A worker
-- that opens one again after its connection broke keeps its claims, unless it has been taken for
-- dead meanwhile. _starts: this process has had none before. A process of the same name whose
-- session is gone was its predecessor, and its claims end. Returns whether the session is recorded:
-- not where another transaction has the worker's row locked. Then call it again.
create or replace function agent.open_session(_name text, _version text, _starts boolean) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '100ms'
as $$
declare
    _session int4 := nullif(current_setting('surelane.session', true), '');
begin
    if _session is null then
        _session := nextval('agent.worker_session');
        perform pg_advisory_lock_shared(agent.session_class(), _session);
        perform set_config('surelane.session', _session::text, false);
    end if;
    begin
        if _starts then
            perform agent.rescue_worker(_name, (select session from agent.worker where name = _name), interval '0', _name);
            insert into agent.worker (name, kinds, version) values (_name, '{}', _version) on conflict (name) do nothing;
        end if;
        -- Of one that was forgotten, nothing: it announces itself again, with its session.
        update agent.worker set session = _session, died_at = null, seen_at = agent.clock() where name = _name;
        return true;
    exception when lock_not_available then
        return false;
    end;
end
$$;

-- Holds a worker's session on this connection, too, over which the worker sends its second claims:
-- the session is gone when both connections have ended. Returns false, and holds nothing, where no
-- other connection holds it: then its worker may have been taken for dead. This connection's end is
-- seen within half a minute though the network is lost, so that it keeps no dead worker alive.
create or replace function agent.join_session(_session int4) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if not pg_try_advisory_lock_shared(agent.session_class(), _session) then
        return false;
    end if;
    if not exists (
        select from pg_locks as l
        where l.locktype = 'advisory' and l.classid = agent.session_class()::oid and l.objid = _session::oid and l.objsubid = 2 and l.granted
        and l.database = (select d.oid from pg_database as d where d.datname = current_database()) and l.pid <> pg_backend_pid())
    then
        perform pg_advisory_unlock_shared(agent.session_class(), _session);
        return false;
    end if;
    perform set_config('tcp_keepalives_idle', '10', false), set_config('tcp_keepalives_interval', '5', false)
    , set_config('tcp_keepalives_count', '3', false), set_config('tcp_user_timeout', '25000', false);
    return true;
end
$$;

-- Puts a worker on the list, with the kinds that it handles and with those that keep their thread's
-- order (order_kinds), and how many handlers it runs at once; announce_worker says the rest. A
-- worker calls it on each new connection before it claims there, because ingest waits for the
-- answers of listed workers alone. Returns false where another transaction has the worker's row
-- locked. Then call it again.
create or replace function agent.introduce_worker
( _name text, _version text, _kinds text[], _ordered text[], _slots int4, _interactive_slots int4
) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '100ms'
as $$
begin
    insert into agent.worker (name, kinds, version, ordered, slots, interactive_slots, started_at, seen_at)
    values (_name, _kinds, _version, _ordered, _slots, _interactive_slots, agent.clock(), agent.clock())
    on conflict (name) do update set kinds = excluded.kinds, version = excluded.version, ordered = excluded.ordered
    , slots = excluded.slots, interactive_slots = excluded.interactive_slots, seen_at = agent.clock();
    return true;
exception when lock_not_available then
    return false;
end
$$;

-- The workers, and in which state each is: alive; drained, so it claims nothing; lost, as its
-- session is gone and it may come back; died, as it did not; silent, as it has announced nothing
-- for too long. A worker behind a transaction pooler has no session: alive, drained or silent.
create or replace function agent.list_workers()
returns table
( name text, kinds text[], version text, state text, alive boolean, started_at timestamptz, seen_at timestamptz, died_at timestamptz
, clock_offset interval, max_attempts int4
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set jit = off
as $$
#variable_conflict use_column
declare
    _open int4[] := agent.open_sessions();
begin
    return query
    select w.name, w.kinds, w.version, s.state, s.state in ('alive', 'drained'), w.started_at, w.seen_at, w.died_at, w.clock_offset, w.max_attempts
    from agent.worker as w cross join lateral (
        select case when w.died_at is not null then 'died' when w.session is not null and w.session <> all(_open) then 'lost'
            when not agent.worker_alive(w.seen_at) then 'silent' when w.drained_at is not null then 'drained' else 'alive' end as state
    ) as s
    order by w.name;
end
$$;

-- One look at all sessions, by worker _name: which workers have lost theirs and have not been taken
-- for dead (by name, with the key), and how many workers have one or had.
-- server_since changes as the server starts: sessions that were lost before say nothing.
create or replace function agent.watch_sessions
( _name text, out names text[], out sessions int4[], out known int4, out server_since timestamptz
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set jit = off
as $$
declare
    _open int4[];
begin
    -- A session's lock is older than its row: so the rows are read first.
    select array_agg(w.name), array_agg(w.session) into names, sessions from agent.worker as w where w.session is not null and w.died_at is null;
    _open := agent.open_sessions();
    known := coalesce(cardinality(names), 0);
    select coalesce(array_agg(given.name), '{}'), coalesce(array_agg(given.session), '{}') into names, sessions
    from unnest(names, sessions) as given (name, session) where given.session <> all(_open);
    server_since := pg_postmaster_start_time();
end
$$;

-- Records that a worker is alive and which kinds it handles, and its session, where it has opened
-- one on this connection. Groups that waited behind a kind without a worker, or behind one that it
-- handles, get their heads accordingly. _max_attempts: what its events without a maximum of their
-- own may have. One that has been silent for a day is forgotten. _clock_offset: its clock less
-- ours.
create or replace function agent.announce_worker
( _name text, _kinds text[], _version text, _clock_offset interval, _max_attempts int4
) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    _known boolean := exists (select from agent.worker where name = _name and kinds = _kinds);
    _session int4 := nullif(current_setting('surelane.session', true), '');
begin
    insert into agent.worker as w (name, kinds, version, clock_offset, max_attempts, started_at, seen_at, session)
    values (_name, _kinds, _version, _clock_offset, _max_attempts, agent.clock(), agent.clock(), _session)
    on conflict (name) do update set kinds = excluded.kinds, version = excluded.version, clock_offset = excluded.clock_offset
    , max_attempts = excluded.max_attempts, seen_at = agent.clock(), session = excluded.session
    , died_at = case when w.session is not distinct from excluded.session then w.died_at end;
    delete from agent.worker where seen_at < agent.clock() - interval '1 day';
    perform agent.register_kinds(_kinds);
    -- Of several settings for a kind, that of the worker which started last holds: so a change of
    -- it prevails as workers roll.
    update agent.kind set max_attempts = _max_attempts
    where kind in (
        select k.kind from agent.kind as k where k.kind = any(_kinds) and k.max_attempts is distinct from _max_attempts
        and not exists (select from agent.worker as w where k.kind = any(w.kinds) and w.max_attempts is not null and w.name <> _name
            and w.started_at > (select started_at from agent.worker where name = _name))
        order by k.kind for update skip locked)
    and _max_attempts is not null;
    if not _known then
        perform agent.sweep_groups();
    end if;
end
$$;

-- Removes a worker that ends. Its kinds count as handled as long as if it were alive; another may
-- take its place. Does nothing while claims stand under its name: rescue_worker ends them once its
-- session is gone, and needs its row for that.
create or replace function agent.retire_worker(_name text) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    _now timestamptz := agent.clock();
    _kinds text[];
begin
    if exists (select from agent.event where attempts > 0 and vt > _now and claimed_by = _name) then
        return;
    end if;
    delete from agent.worker where name = _name returning kinds into _kinds;
    -- Does not wait for an operator who is just pausing a kind.
    update agent.kind set handled_at = agent.clock()
    where kind in (select kind from agent.kind where kind = any(_kinds) order by kind for no key update skip locked);
end
$$;

-- Drains a worker: it claims nothing until it is resumed, or its process ends. false: there is none
-- of that name.
create or replace function agent.drain_worker(_name text, _drained boolean) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    update agent.worker set drained_at = case when _drained then coalesce(drained_at, agent.clock()) end where name = _name;
    return found;
end
$$;

-- Whether a worker is drained. It asks with each poll.
create or replace function agent.worker_drained(_name text) returns boolean
language sql stable security definer
set search_path = pg_catalog, pg_temp
begin atomic
    select exists (select from agent.worker where name = _name and drained_at is not null);
end;

-- How long kept actions stay.
create or replace function agent.actions_kept() returns interval
language sql immutable parallel safe
return interval '400 days';

-- Begins an action of an operator: keeps who does what, and names them for what this transaction
-- changes. A work of many transactions calls it in the first one, and continue_action in the
-- others. Returns the action's id. Actions that are older than actions_kept go, some at a time.
create or replace function agent.begin_action(_who text, _via text, _action text, _target text, _detail jsonb) returns int8
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    _id int8;
begin
    delete from agent.operator_action
    where id in (
        select id from (select id, at from agent.operator_action order by id limit 100) as oldest
        where at < agent.clock() - agent.actions_kept() for update skip locked);
    insert into agent.operator_action (at, who, via, role, action, target, detail)
    values (agent.clock(), left(coalesce(nullif(_who, ''), session_user), 200), _via, session_user, left(_action, 100), left(_target, 300), coalesce(_detail, '{}'))
    returning id into _id;
    perform set_config('surelane.acting', left(_who, 200), true);
    return _id;
end
$$;

-- Stores what an action has done so far, and names who acts for what this transaction changes.
-- _over: it has ended. Nothing can be added to one that has.
create or replace function agent.continue_action(_id int8, _result jsonb, _over boolean) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    update agent.operator_action set result = coalesce(_result, result), seen_at = agent.clock(), finished_at = case when _over then agent.clock() end
    where id = _id and finished_at is null;
    perform set_config('surelane.acting', (select who from agent.operator_action where id = _id), true);
end
$$;

-- A page of kept actions, newest first: those before _before, of one target or of all.
create or replace function agent.list_actions(_before int8, _target text, _limit int4) returns setof agent.operator_action
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
set jit = off
as $$
begin
    return query
    select a.* from agent.operator_action as a
    where (_before is null or a.id < _before) and (_target is null or a.target = _target)
    order by a.id desc limit least(greatest(_limit, 1), 1000);
end
$$;

-- One kept action.
create or replace function agent.read_action(_id int8) returns setof agent.operator_action
language sql stable security definer
set search_path = pg_catalog, pg_temp
begin atomic
    select * from agent.operator_action where id = _id;
end;

-- How many events a filter finds, up to _most; list_jobs has the filter.
create or replace function agent.count_jobs
( _statuses text[], _kinds text[], _key text, _since timestamptz, _until timestamptz, _most int4
) returns int4
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set jit = off
as $$
declare
    _counted int4 := 0;
    _page int4;
    _found int4;
    _after timestamptz;
    _after_id int8;
begin
    loop
        _page := least(1000, _most - _counted);
        exit when _page <= 0;
        -- The last row of the page has the smallest id of those that have not ended, or else the
        -- earliest end.
        select count(*), (array_agg(j.id order by j.finished_at nulls last, j.id))[1], min(j.finished_at) into _found, _after_id, _after
        from (select id, finished_at from agent.list_jobs(_statuses, _kinds, _key, _since, _until, _after, _after_id, _page)) as j;
        _counted := _counted + _found;
        exit when _found < _page;
    end loop;
    return _counted;
end
$$;
