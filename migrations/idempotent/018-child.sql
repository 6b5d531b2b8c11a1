-- Children, continuations, and answers of remote agents.
--   children_ended: counts children off; all that end events
--   run_child: a handler starts a child and takes its end; workers
--   child_of, if_failed, child_end: whose child an event is, and how it ended; run_child
--   event_hist_child: trigger: a parent hears how its child ended
--   live_children, end_children: its children end before a handler undoes; with_undos, workers
--   start_workflow, fan_out: children and their continuation; settle_fanned_out, a program
--   settle_fanned_out: a handler, under the fence
--   continue_anew: a held event ends, and its successor begins; settle_fanned_out
--   answer_event, answer_dispatch: the answer comes; programs, ingest

-- Counts children that ended (one entry each) off the continuations that wait for them. The last
-- child makes a continuation visible. A continuation that fails with its children ends at once when
-- _outcome is not completed. The youngest first, as its end counts off an older one: all lock inner
-- continuations before outer ones.
create or replace function agent.children_ended(_continuations int8[], _outcome text) returns void
language plpgsql security definer as $$ declare _ended record; _waiting agent.event;
begin
    for _ended in select id, count(*)::int4 as children from unnest(_continuations) as id group by id
        order by id desc loop
        perform agent.hold_group((select group_key from agent.event where id = _ended.id));
        update agent.event set waits_for = greatest(waits_for - _ended.children, 0)
        where id = _ended.id and waits_for > 0 returning * into _waiting;
        continue when not found;
        if _waiting.fails_with_children and _outcome <> 'completed' then
            perform agent.archive_events(array[_waiting.id], 'failed', 'child_' || _outcome);
        elsif _waiting.waits_for = 0 then
            update agent.event set vt = agent.clock() where id = _waiting.id;
            perform agent.note_parked(array[_waiting.id], false);
            perform agent.reelect(array[_waiting.group_key]);
            perform pg_notify('agent_event', '');
        end if;
    end loop;
end $$;

-- Whose child an event is, for a handler that awaits it: an array of the change {"action": "child
-- of", "id", "name"}; otherwise an empty one. name: of the parent's wait.
create or replace function agent.child_of(_changes jsonb) returns jsonb language sql immutable parallel safe
return jsonb_path_query_array(_changes, '$[*] ? (@.action == "child of")');

-- What becomes of a child whose parent fails, expires or is cancelled: cancel, await or leave.
create or replace function agent.if_failed(_changes jsonb) returns text language sql immutable parallel safe
return case when agent.child_of(_changes) = '[]' then 'leave'
    else coalesce(agent.child_of(_changes) #>> '{0,if_failed}', 'cancel') end;

create or replace function agent.child_end(_child agent.event_hist) returns json language sql stable
return json_build_object('id', _child.id, 'kind', agent.base_kind(_child.kind, _child.notes)
    , 'key', _child.item_key, 'outcome', _child.outcome, 'reason', _child.reason
    , 'error', (_child.errors -> -1) - 'traceback', 'result', _child.result);

create or replace function agent.event_hist_child() returns trigger
language plpgsql security definer as $$ begin
    perform agent.send_signal(new.continuation_id, agent.child_of(new.changes) #>> '{0,name}'
        , agent.child_end(new), false, coalesce(new.item_key, new.id::text));
    return null;
end $$;

-- Starts a child of a running handler, fenced by its claim, unless an earlier attempt has; or takes
-- its end. _name: of the parent's wait, such as "child part:1", which is stored with _arguments, a
-- hash of the payload. The child's key is the parent's with the rest of that name. A child that
-- completed while its parent was in history is found. _if_failed: see that function. Answers as
-- take_signal.
create or replace function agent.run_child
( _id int8, _claim int4, _name text, _arguments text, _job jsonb, _in_order boolean default false
, _if_failed text default 'cancel', out answer text, out signal json)
language plpgsql security definer set enable_seqscan = off as $$
declare
    _held agent.event; _child agent.event := agent.given_job(_job);
    _past agent.event_hist; _added record;
begin
    select taken.answer, taken.signal into answer, signal
    from agent.take_signal(_id, _claim, _name, 1, null) as taken;
    if answer <> 'pending' then return; end if;
    select * into _held from agent.event where id = _id;
    if _held.cancelled_by is not null then
        answer := 'busy'; -- its handler is being stopped, and the children have been
        return;
    end if;
    _child.item_key := agent.bounded_key(coalesce(_held.item_key, _id::text) || ':'
        || substr(_name, length('child ') + 1));
    if exists (select from agent.step as s where s.event_id = _id and s.name = _name and s.nth = 1) then
        if exists (select from agent.event where item_key = _child.item_key and continuation_id = _id)
        or exists (select from agent.event
            where continuation_id = _id and agent.child_of(changes) #>> '{0,name}' = _name) then
            return;
        end if;
        select * into _past from agent.event_hist where continuation_id = _id and outcome = 'completed'
        and agent.child_of(changes) #>> '{0,name}' = _name order by finished_at desc limit 1;
        if found then
            perform agent.send_signal(_id, _name, agent.child_end(_past), false
                , coalesce(_past.item_key, _past.id::text));
            select taken.answer, taken.signal into answer, signal
            from agent.take_signal(_id, _claim, _name, 1, null) as taken;
            return;
        end if;
    end if;
    _child.continuation_id := _id;
    _child.changes := coalesce(_child.changes, '[]') || jsonb_build_array(jsonb_build_object(
        'action', 'child of', 'at', agent.clock(), 'id', _id, 'name', _name, 'if_failed', _if_failed));
    _added := agent.add_event(_child, true, false);
    if _added.duplicate and not exists (select from agent.event
        where id = _added.id and continuation_id = _id) then
        raise unique_violation using message = format(
            'a child under item key %L is in the queue already', _child.item_key);
    end if;
    insert into agent.step (event_id, name, nth, sort, event_ts, arguments, attempt, started_at, in_order)
    values (_id, _name, 1, 'wait', _held.event_ts, _arguments, _held.attempts, agent.clock(), _in_order)
    on conflict do nothing;
    -- That it has children at all shows operators its tree.
    update agent.event set waits_for = coalesce(waits_for, 0), attempts = least(attempts, 1)
    where id = _id and (waits_for is null or attempts > 1);
end $$;

-- The live children of a handler that end before its undos begin: all that are not left alone.
create or replace function agent.live_children(_id int8) returns table (id int8, name text, if_failed text)
language sql stable security definer set enable_seqscan = off as $$
    select e.id, agent.child_of(e.changes) #>> '{0,name}', agent.if_failed(e.changes)
    from agent.event as e where e.continuation_id = _id and agent.if_failed(e.changes) <> 'leave' $$;

-- Cancels the live children of a handler that begins its undos, fenced by its claim; awaited ones
-- run on. Returns the names of the waits for all that still live, for the handler to wait; null:
-- the claim no longer stands. It locks no parent: an end of a child does.
create or replace function agent.end_children(_id int8, _claim int4) returns text[]
language plpgsql security definer set enable_seqscan = off as $$ begin
    if agent.unheld(_id, _claim) = 'stale' then return null; end if;
    perform agent.cancel_jobs(array(select c.id from agent.live_children(_id) as c
            where c.if_failed = 'cancel')
        , null, 'event ' || _id || ' has failed, or was cancelled');
    return array(select c.name from agent.live_children(_id) as c order by c.id);
end $$;

-- Starts children (a JSON array of jobs) and the continuation that runs once, when all of them have
-- ended in any way. {"fails_with_children": true} on the continuation makes it fail with the first
-- child that does not complete. Returns the continuation's id. _continues: the continuation that
-- waits for this one; no program may name it.
create or replace function agent.start_workflow(_children jsonb, _continuation jsonb, _continues int8)
returns int8 language plpgsql security definer as $$
declare
    _waiting agent.event := agent.given_job(_continuation);
    _child agent.event; _given record; _id int8;
    -- Taken beforehand: children are added in the order of their keys, but known by theirs.
    _ids int8[] := array(select nextval('agent.event_id_seq')
        from generate_series(1, jsonb_array_length(_children)));
begin
    -- 50,000 took 47 s, and a statement of a service has 30.
    if cardinality(_ids) > 10000 then
        raise invalid_parameter_value using message = format('a fan-out has at most 10000 children, not %s'
            , cardinality(_ids)), hint = 'Let some children start others.';
    end if;
    _waiting.continuation_id := _continues;
    _waiting.fails_with_children := coalesce((_continuation ->> 'fails_with_children')::boolean, false);
    _waiting.waits_for := cardinality(_ids);
    if _ids <> '{}' then _waiting.vt := 'infinity'; end if;
    select added.id into _id from agent.add_event(_waiting, true, false) as added where not added.duplicate;
    if _id is null then
        raise unique_violation using message = format(
            'a continuation under item key %L is in the queue already', _waiting.item_key);
    end if;
    for _given in
        -- Read in the order given: their times follow it.
        select read.job, read.nth
        from (select agent.given_job(g.job) as job, g.nth
            from jsonb_array_elements(_children) with ordinality as g (job, nth)) as read
        order by (read.job).group_key, (read.job).item_key, read.nth
    loop
        _child := _given.job; _child.id := _ids[_given.nth]; _child.continuation_id := _id;
        _child.dedupe_key := null;
        if (select added.duplicate from agent.add_event(_child, true, false) as added) then
        raise unique_violation using message = format(
            'a child under item key %L is in the queue already', _child.item_key);
        end if;
    end loop;
    perform agent.lead_with_first(_ids);
    return _id;
end $$;

-- The same for a program. No other continuation waits for its own.
create or replace function agent.fan_out(_children jsonb, _continuation jsonb) returns int8
language sql security definer as $$ select agent.start_workflow(_children, _continuation, null) $$;

-- Completes an event that the caller holds, and stores its successor: with its keys, group, kind,
-- priority and trace, another payload and no steps. The successor takes the event's place in its
-- group and in a workflow, and the signals that no wait has taken. Answers to questions and ends of
-- children stay. Each of the two knows the other, and the successor for which events its signals
-- were encrypted.
create or replace function agent.continue_anew(_id int8, _payload jsonb) returns void
language plpgsql security definer set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
    _now timestamptz := agent.clock(); _new agent.event;
    _sent int8[] := array(
        select s.id from agent.signal as s
        where s.event_id = _id and s.taken_by is null and s.name !~ ':[0-9]+$');
    _sealed_for int8[];
begin
    select * into strict _new from agent.event where id = _id;
    _sealed_for := array(
        select jsonb_path_query(_new.changes, '$[*] ? (@.action == "continuation of").signals_of[*]')::int8
        where _sent <> '{}'
        union select _id from agent.signal as s where s.id = any(_sent) and s.sent_at >= _new.enqueued_at);
    _new.id := nextval('agent.event_id_seq');
    _new.kind := agent.base_kind(_new.kind, _new.notes);
    update agent.event set continuation_id = null, changes = agent.add_change(changes, jsonb_build_object(
        'action', 'continued as', 'at', _now, 'id', _new.id))
    where id = _id;
    perform agent.archive_events(array[_id], 'completed');
    _new.vt := _now;
    _new.event_ts := least(_now, (select min(event_ts) - interval '1 microsecond' from agent.event
            where group_key = _new.group_key));
    _new.event := _payload; _new.claimed := '{}'; _new.enqueued_at := _now;
    _new.errors := '[]'; _new.deadline := null; _new.dedupe_key := null;
    _new.waits_for := null; _new.fails_with_children := false;
    _new.changes := case when _new.changes #> '{0,limit_key}' is null then '[]'
        else jsonb_build_array(_new.changes -> 0) end
        || agent.child_of(_new.changes) || jsonb_build_array(jsonb_strip_nulls(jsonb_build_object(
            'action', 'continuation of', 'at', _now, 'id', _id
            , 'signals_of', case when _sealed_for <> '{}' then to_jsonb(_sealed_for) end)));
    perform agent.add_event(_new, true, false);
    update agent.signal set event_id = _new.id where id = any(_sent);
    -- The end has made the next member the head. Held ones stay until their worker gives them back.
    perform agent.reelect(array[group_key]) from agent.event as n
    where id = _new.id and not head and exists (select from agent.event as h
        where h.group_key = n.group_key and h.head and h.claimed_by is null);
end $$;

-- Completes a claim and starts its children and their continuation at once, fenced: they start
-- once. The continuation takes the event's place: what waited for the event waits for it. Busy also
-- where a group cannot be entered at once. {"anew": true}: the continuation's payload is the
-- successor's. Returns the id if it was settled.
create or replace function agent.settle_fanned_out(_id int8, _claim int4, _fan jsonb) returns int8[]
language plpgsql security definer set lock_timeout = '100ms' as $$
declare _held int8[]; _continues int8; _continuation int8;
begin
    perform agent.end_cancelled(array[_id], array[_claim]);
    _held := agent.hold_claims(array[_id], array[_claim]);
    _continues := (select continuation_id from agent.event where id = any(_held));
    if _held <> '{}' and _fan ? 'anew' then
        perform agent.continue_anew(_id, _fan #> '{continuation,payload}');
        set constraints agent.member_joins immediate;
    elsif _held <> '{}' then
        _continuation := agent.start_workflow(_fan -> 'children', _fan -> 'continuation', _continues);
        -- Each of the two knows the other: operators find the workflow from any event of it.
        update agent.event set continuation_id = null, changes = agent.add_change(changes, jsonb_build_object(
            'action', 'fanned out', 'at', agent.clock(), 'id', _continuation
            , 'children', jsonb_array_length(_fan -> 'children')))
        where id = _id;
        update agent.event set changes = agent.add_change(
            changes || (select agent.child_of(e.changes) from agent.event as e where e.id = _id)
            , jsonb_build_object('action', 'continues', 'at', enqueued_at, 'id', _id))
        where id = _continuation;
        perform agent.archive_events(_held, 'completed', null, _held, null, array[_fan -> 'result']);
        -- At once, not at commit: waiting for a head is bounded here.
        set constraints agent.member_joins immediate;
    end if;
    return _held;
end $$;

-- Ends an event that awaits an answer, as completed with the answer as its result. Answers 'done';
-- 'running' when its attempt has not parked it yet, or another transaction has locked it for half a
-- second (try again); or 'unknown': it awaits nothing, or its deadline has passed.
create or replace function agent.answer_event(_id int8, _result jsonb) returns text
language plpgsql security definer set lock_timeout = '500ms' set enable_seqscan = off as $$
declare _found agent.event;
begin
    perform agent.hold_group((select group_key from agent.event where id = _id));
    select * into _found from agent.event where id = _id for update;
    if not found or _found.deadline < agent.clock() then
        return 'unknown';
    elsif _found.claimed_by is not null then
        return 'running';
    elsif _found.vt < 'infinity' or _found.waits_for > 0 then
        return 'unknown';
    end if;
    perform agent.archive_events(array[_id], 'completed', null, array[_id], null, array[_result]);
    return 'done';
exception when lock_not_available or deadlock_detected then return 'running';
end $$;

-- As answer_event, for callers that may answer only what was dispatched to these remote agents.
create or replace function agent.answer_dispatch(_id int8, _agents text[], _result jsonb) returns text
language sql security definer set enable_seqscan = off
return case when exists (select from agent.event
        where id = _id and kind = 'dispatch-execute' and event ->> 'agent' = any(_agents))
    then agent.answer_event(_id, _result) else 'unknown' end;
