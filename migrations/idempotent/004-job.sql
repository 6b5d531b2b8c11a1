-- Stores the jobs of programs, handlers and webhooks, and moves them.
--   require_kind: refuses kinds that stand for a person; jobs
--   is_producer, stored_by_caller: what a program may change; duplicates, signals
--   job_from_json: a job as a row; given_job, schedules, webhooks
--   given_job: a caller's job as a row; enqueue, fan-outs, children
--   require_same_kind: a key belongs to one kind; enqueue_job, enqueue_jobs
--   enqueue_job: stores or moves one job; enqueue, schedules
--   move_event: another time for a waiting event; enqueue_job, reschedule_event
--   enqueue: a program stores a job
--   add_new_jobs: the new ones of a batch in one statement; enqueue_jobs, rerun_events
--   enqueue_jobs: Queue.enqueue, for one job or many
--   fire_trigger: ingest, for a webhook's call

-- Refuses kinds that the caller may not store. Slack's events and answers to questions stand for a
-- person: ingest stores them, and of programs workers. Jobs that close a message or call a failure
-- hook are stored by the end of an event alone.
create or replace function agent.require_kind(_kind text) returns void language plpgsql stable as $$ begin
    if _kind = 'surelane.close' or starts_with(_kind, 'surelane.failed:') then
        raise insufficient_privilege using message = format(
            'a job of kind %s is stored by the end of an event alone', left(_kind, 200));
    elsif (_kind = 'surelane.answer' or _kind like 'slack.%')
    and not has_function_privilege(session_user, 'agent.send_signal(int8, text, json, boolean, text)'
        , 'execute') then
        raise insufficient_privilege
            using message = format('role %s may not act for a person: events of kind %s come from Slack'
            , session_user, left(_kind, 200));
    end if;
end $$;

-- Whether the session is a program's that may enqueue, but neither works nor operates.
create or replace function agent.is_producer() returns boolean
language sql stable set search_path = pg_catalog, pg_temp
return has_function_privilege(session_user, 'agent.enqueue_jobs(jsonb, text)', 'execute')
    and not has_function_privilege(session_user, 'agent.cancel_live(text, text, text, boolean)', 'execute');

-- Whether the caller may change an event, by its enqueued_by: a program only what its role stored.
create or replace function agent.stored_by_caller(_enqueued_by text) returns boolean
language sql stable set search_path = pg_catalog, pg_temp
return _enqueued_by = session_user or starts_with(_enqueued_by, session_user || ': ')
    or not agent.is_producer();

-- A job in JSON, with the names of enqueue's parameters, as a row: {"kind": …, "payload": …, …}.
create or replace function agent.job_from_json(_job jsonb) returns agent.event
language plpgsql as $$ declare _new agent.event;
begin
    _new.kind := _job ->> 'kind';
    if _new.kind is null or _new.kind = '' or length(_new.kind) > 200 then
        raise invalid_parameter_value using message = 'a kind has 1 to 200 characters';
    end if;
    perform agent.require_kind(_new.kind);
    _new.enqueued_at := agent.clock();
    _new.vt := greatest((_job ->> 'run_at')::timestamptz, _new.enqueued_at);
    -- Clients read no later year. A deadline may be infinite: there is none.
    if _new.vt >= '10000-01-01 00:00:00+00' then
        raise invalid_parameter_value
            using message = format('a job cannot run at %s: give a time before the year 10000', _new.vt);
    end if;
    _new.deadline := (_job ->> 'deadline')::timestamptz;
    if isfinite(_new.deadline)
    and _new.deadline not between '0001-01-02 00:00:00+00' and '9999-12-31 23:59:59.999999+00' then
        raise invalid_parameter_value using message = format(
            'a job cannot expire at %s: give a time between the years 1 and 10000', _new.deadline);
    end if;
    -- A job happens when it is due: so a group hands over due jobs in order.
    _new.event_ts := _new.vt;
    _new.event := coalesce(nullif(_job -> 'payload', 'null'), '{}');
    _new.dedupe_key := agent.bounded_key(_job ->> 'dedupe_key');
    _new.item_key := agent.bounded_key(_job ->> 'item_key');
    _new.group_key := agent.bounded_key(_job ->> 'group_key');
    _new.max_attempts := (_job ->> 'max_attempts')::int4;
    -- The constraint's own error would quote the row in PostgreSQL's log.
    if _new.max_attempts < 1 then
        raise invalid_parameter_value using message = 'max_attempts is at least 1';
    end if;
    if _job ->> 'priority' not in ('0', '1', '2', '3') then
        raise invalid_parameter_value using message = format('priority is 0, 1, 2 or 3, not %s'
            , left(_job ->> 'priority', 40));
    end if;
    -- The first lane of its band: the row gets its own as it is added.
    _new.lane := case _job ->> 'priority' when '0' then 16 when '2' then 20 when '3' then 24 else 0 end;
    if _job ->> 'limit_key' is not null then
        _new.changes := jsonb_build_array(jsonb_build_object(
            'limit_key', agent.bounded_key('given:' || (_job ->> 'limit_key'))));
    end if;
    _new.enqueued_by := _job ->> 'enqueued_by'; _new.traceparent := _job ->> 'traceparent';
    return _new;
end $$;

-- A job that a program or handler gives, as a row. Refuses the keys of schedules, webhooks, Slack
-- and events that run again, which would find the job and store nothing. A schedule counts the jobs
-- of its group, too. A hash may stand for such a key. What a program notes as its requester follows
-- its role.
create or replace function agent.given_job(_job jsonb) returns agent.event language plpgsql as $$
declare
    _new agent.event := agent.job_from_json(_job);
    _item text := _job ->> 'item_key'; _group text := _job ->> 'group_key';
    _dedupe text := _job ->> 'dedupe_key';
    -- A message of this address (agent.message_key) would be a duplicate of the job.
    _address constant text := '^(message|mention):.*:[0-9]+[.][0-9]+$';
    _kept text;
begin
    -- Most jobs have no keys. One expression: as a query it took longer than all else.
    if coalesce(_item, _group, _dedupe) is not null then
        _kept := case
            when _item like 'cron:%' or _item
                ~ '^(webhook:|event:(cron|webhook):|trigger:[0-9a-f]{64}$|Ev[0-9A-Z]{9,}$)|:rerun:[0-9]+$'
            then _item
            when _group like 'cron:%' then _group
            when _dedupe ~ _address then _dedupe
            when (_item like 'sha256:%' or _item ~ _address) and agent.is_producer() then _item
            when _group like 'sha256:%' and agent.is_producer() then _group end;
    end if;
    if _kept is not null then
        raise invalid_parameter_value using message = format(
            'the key %s is kept for schedules, webhooks, Slack and events that run again', left(_kept, 200))
            , hint = 'Put a word of your own before it, such as report:.';
    elsif (_new.enqueued_by is null and _new.kind <> 'trigger-fire') or not agent.is_producer() then
        return _new;
    elsif _new.kind = 'trigger-fire' then
        raise insufficient_privilege using message = format(
            'role %s may not act for a webhook: events of kind trigger-fire come from ingest', session_user);
    end if;
    _new.enqueued_by := session_user || ': ' || _new.enqueued_by;
    return _new;
end $$;

-- Refuses a new job whose key belongs to an event of another kind: the job would be lost, or the
-- other one get its payload. Jobs that an event's end stores pass: nothing may prevent that end.
create or replace function agent.require_same_kind(_id int8, _new agent.event) returns void
language plpgsql stable as $$ declare _found agent.event;
begin
    select e.* into _found from agent.event as e where e.id = _id;
    if _new.kind not in (_found.kind, agent.base_kind(_found.kind, _found.notes))
    and _new.kind <> 'surelane.close' and not starts_with(_new.kind, 'surelane.failed:') then
        raise unique_violation
            using message = format('event %s of kind %s has the %s %L: give a job of kind %s a key of its own'
            , _id, agent.base_kind(_found.kind, _found.notes)
            , case when _found.item_key = _new.item_key then 'item key' else 'dedupe key' end
            , case when _found.item_key = _new.item_key then _new.item_key else _new.dedupe_key end
            , _new.kind);
    end if;
end $$;

-- Adds a job, or finds the pending job with its dedupe key (or the live one with its item key).
-- That is left (skip), gets the new payload, time, priority and limit key (replace), or the earlier
-- time (earliest).
create or replace function agent.enqueue_job
( _new agent.event, _on_duplicate text, out id int8, out duplicate boolean)
language plpgsql security definer as $$ declare _found agent.event; _limit_key text;
begin
    if _on_duplicate not in ('skip', 'replace', 'earliest') then
        raise invalid_parameter_value
            using message = format('on a duplicate: skip, replace or earliest, not %L', _on_duplicate);
    end if;
    loop
        -- For update at once: adding locks the head for key share, and two that raise it deadlock.
        if _on_duplicate <> 'skip' then perform agent.hold_group(_new.group_key); end if;
        select added.id, added.duplicate into id, duplicate from agent.add_event(_new, true, false) as added;
        exit when not duplicate;
        perform agent.require_same_kind(id, _new);
        exit when _on_duplicate = 'skip';
        perform agent.hold_group((select t.group_key from agent.event as t where t.id = enqueue_job.id));
        select e.* into _found from agent.event as e where e.id = enqueue_job.id for update;
        -- Gone, or claimed meanwhile, which frees its dedupe key: look again.
        continue when not found or (_found.claimed <> '{}' and (_found.item_key = _new.item_key) is not true);
        -- A job that is running, or waits for its children or an answer, stays as it is.
        perform agent.require_kind(_found.kind);
        if not agent.stored_by_caller(_found.enqueued_by) then
            raise insufficient_privilege
                using message = format('role %s may not change event %s, which another role stored'
                , session_user, _found.id);
        end if;
        if isfinite(_found.vt) and (_found.claimed_by is null or _found.vt <= agent.clock()) then
            if _on_duplicate = 'replace' and agent.priority_of(_new.lane) <> agent.priority_of(_found.lane)
            then
                _found.lane := agent.lane_for(
                    _found.kind, agent.priority_of(_new.lane), _found.group_key, _new.event);
            end if;
            if _on_duplicate = 'replace' then
                _limit_key := _new.changes #>> '{0,limit_key}';
                if _found.lane < 0 then
                    _limit_key := agent.limit_key(_found.kind, _new.event, _limit_key);
                end if;
                update agent.event as e set changes = agent.with_limit_key(e.changes, _limit_key)
                where e.id = _found.id and _limit_key is not null;
            end if;
            perform agent.move_event(_found
                , case when _on_duplicate = 'earliest' then least(_new.vt, _found.vt) else _new.vt end
                , case when _on_duplicate = 'replace' then _new.event else _found.event end
                , case when _on_duplicate = 'replace' then 'replaced' else 'rescheduled' end
                , coalesce(_new.enqueued_by, session_user));
        end if;
        exit;
    end loop;
end $$;

-- Gives an event that does not run another time, and perhaps another payload and the lane in _old,
-- and records it; a lapsed claim ends. The caller holds its lock and its head's.
create or replace function agent.move_event
( _old agent.event, _vt timestamptz, _event jsonb, _action text, _by text) returns void
language plpgsql security definer as $$ declare _new_vt timestamptz := greatest(_vt, agent.clock());
begin
    perform agent.fence_lapsed(array[_old.id]);
    update agent.event set vt = _new_vt, event = _event, lane = _old.lane
    , retrying = false, claimed_by = null, heartbeat_at = null
    -- By their event_ts history is searched for Slack's and bare events and webhooks.
    , event_ts = case when _old.kind like 'slack.%' or _old.kind = 'event' or _old.item_key like 'webhook:%'
        then event_ts else _new_vt end
    , changes = agent.add_change(agent.after_lapse(changes, claimed_by, vt)
        , jsonb_build_object('action', _action, 'at', agent.clock(), 'by', _by
        , 'from', jsonb_build_object('run_at', _old.vt), 'to', jsonb_build_object('run_at', _new_vt)))
    where id = _old.id;
    perform agent.note_parked(array[_old.id], true);
    perform agent.reelect(array[_old.group_key]);
    perform pg_notify('agent_event', '');
end $$;

-- Enqueues a job; returns its id, or the id of the job that has its dedupe key or item key
-- (_on_duplicate: see enqueue_job). _priority: 0 (first) to 3 (last); null is 1. It has no default,
-- or calls of the form below would be ambiguous.
create or replace function agent.enqueue
( _kind text, _payload jsonb, _priority int4, _dedupe_key text default null, _run_at timestamptz default null
, _max_attempts int4 default null, _group_key text default null, _item_key text default null
, _enqueued_by text default null, _deadline timestamptz default null, _traceparent text default null
, _on_duplicate text default 'skip') returns int8 language sql security definer
return (
    select id from agent.enqueue_job(agent.given_job(jsonb_build_object('kind', _kind, 'payload', _payload
        , 'dedupe_key', _dedupe_key, 'run_at', _run_at, 'max_attempts', _max_attempts
        , 'group_key', _group_key, 'item_key', _item_key, 'enqueued_by', _enqueued_by
        , 'deadline', _deadline, 'traceparent', _traceparent, 'priority', _priority)), _on_duplicate));

create or replace function agent.enqueue
( _kind text, _payload jsonb default '{}', _dedupe_key text default null, _run_at timestamptz default null
, _max_attempts int4 default null, _group_key text default null, _item_key text default null
, _enqueued_by text default null, _deadline timestamptz default null, _traceparent text default null
, _on_duplicate text default 'skip') returns int8 language sql security definer
return agent.enqueue(_kind, _payload, null::int4, _dedupe_key, _run_at, _max_attempts, _group_key, _item_key
    , _enqueued_by, _deadline, _traceparent, _on_duplicate);

-- Adds jobs in one statement, in the order given, each under its id. Returns the ids that it added.
-- Left out: a job whose item key or dedupe key is taken, and the first job of a group that another
-- transaction is just giving a head.
create or replace function agent.add_new_jobs(_ids int8[], _jobs agent.event[]) returns int8[]
language plpgsql security definer set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
    _added int8[];
    _shared text[] := array(select kind from agent.band where workspace is not null)
        || array(select kind from agent.kind_limit where parks)
        || array(select kind from agent.kind where exists (select from agent.arriving));
begin
    with added as (
        insert into agent.event (id, event_ts, vt, event, kind, item_key, dedupe_key, group_key, head, lane
            , max_attempts, deadline, enqueued_at, enqueued_by, traceparent, claimed, errors, changes)
        select _ids[job.ordinality], event_ts, vt, event, kind, item_key, dedupe_key
        , group_key, group_key is null or not agent.enter_group(group_key)
        , case when lane not between 0 and 15 or kind = any(_shared)
            then agent.lane_for(kind, agent.priority_of(lane), group_key, event)
            else agent.lane_in(0, group_key) end
        , max_attempts, deadline, coalesce(enqueued_at, agent.clock())
        , coalesce(enqueued_by, session_user), traceparent
        , coalesce(claimed, '{}'), coalesce(errors, '[]'), coalesce(changes, '[]')
        from unnest(_jobs) with ordinality as job order by job.ordinality
        on conflict do nothing returning id)
    select coalesce(array_agg(id), '{}') into _added from added;
    return _added;
end $$;

-- Enqueues a JSON array of jobs as enqueue does, in one transaction; answers each by its place.
-- Locks are taken in the order of groups and keys, so overlapping batches do not deadlock, unless
-- they pair the same keys differently.
create or replace function agent.enqueue_jobs(_jobs jsonb, _on_duplicate text default 'skip')
returns table (ordinal int4, id int8, duplicate boolean) language plpgsql security definer as $$
declare
    _new agent.event[]; _ids int8[]; _nths int4[]; _keyed boolean; _added int8[] := '{}';
    _place int4; _job agent.event;
begin
    if _on_duplicate not in ('skip', 'replace', 'earliest') then
        raise invalid_parameter_value
            using message = format('on a duplicate: skip, replace or earliest, not %L', _on_duplicate);
    end if;
    perform agent.require_read_committed();
    -- Times and ids follow the order of the batch, in which a group hands over its jobs.
    select array_agg(read.job order by nth), array_agg(read.new_id order by nth), array_agg(nth order by nth)
    , bool_or(coalesce((read.job).group_key, (read.job).item_key, (read.job).dedupe_key) is not null)
    into _new, _ids, _nths, _keyed
    from (
        select agent.given_job(g.job) as job, nextval('agent.event_id_seq') as new_id, g.nth::int4 as nth
        from jsonb_array_elements(_jobs) with ordinality as g (job, nth)) as read;
    if _keyed then
        select array_agg(job order by (job).group_key, (job).item_key, (job).dedupe_key, nth)
        , array_agg(new_id order by (job).group_key, (job).item_key, (job).dedupe_key, nth)
        , array_agg(nth order by (job).group_key, (job).item_key, (job).dedupe_key, nth)
        into _new, _ids, _nths
        from (select unnest(_new) as job, unnest(_ids) as new_id, unnest(_nths) as nth) as read;
    end if;
    perform agent.register_kinds(array(select j.kind from unnest(_new) as j));

    -- Batches that move duplicates take turns in a group. Two batches may both try to store its
    -- first member. The later one then holds the head for key share; two such batches that both
    -- want more than that deadlock. There are 1,024 turns, as each is a lock. After two seconds a
    -- batch goes on: at worst one of two is rolled back, and sent again.
    if _on_duplicate <> 'skip' then
        for _place in select distinct hashtext(j.group_key) & 1023 as turn from unnest(_new) as j
            where j.group_key is not null order by turn loop
            exit when not agent.await_turn('enqueue_jobs ' || _place, '2s');
        end loop;
    end if;
    if not _keyed then
        _added := agent.add_new_jobs(_ids, _new); -- nothing can be a duplicate
    -- A duplicate that moves is locked in its place: jobs that may meet one go singly.
    elsif _on_duplicate = 'skip' or not exists (select from unnest(_new) as j
        where j.item_key is not null or j.dedupe_key is not null) then
        -- A job that was left out without a duplicate lost the race to be the first of its group.
        -- Going back to it would take a lock out of order: the batch is stored again.
        for _turn in 1..10 loop
            begin
                _added := agent.add_new_jobs(_ids, _new);
                exit when cardinality(_added) = cardinality(_ids) or _turn = 10;
                exit when not exists (
                    select from unnest(_ids) with ordinality as g (id, place)
                    cross join lateral (select (_new[g.place]).*) as job
                    where g.id <> all(_added)
                    and not exists (select from agent.event as e where e.item_key = job.item_key)
                    and not exists (select from agent.event as e
                        where e.dedupe_key = job.dedupe_key and e.claimed = '{}'));
                raise sqlstate 'SL001';
            exception when sqlstate 'SL001' then
                _added := '{}';
            end;
        end loop;
    end if;
    if not _keyed and cardinality(_added) = cardinality(_ids) then
        return query select g.nth, g.id, false from unnest(_nths, _ids) as g (nth, id);
        return;
    end if;
    return query select g.nth, g.id, false from unnest(_nths, _ids) as g (nth, id)
        join unnest(_added) as a (id) on a.id = g.id;
    for _place in
        select g.place from unnest(_ids) with ordinality as g (id, place)
        where not exists (select from unnest(_added) as a (id) where a.id = g.id) order by g.place
    loop
        _job := _new[_place]; ordinal := _nths[_place]; id := null; duplicate := true;
        if _on_duplicate = 'skip' then
            -- Looks before it enters a group: that would take a lock out of order.
            id := coalesce((select e.id from agent.event as e where e.item_key = _job.item_key)
                , (select e.id from agent.event as e
                    where e.dedupe_key = _job.dedupe_key and e.claimed = '{}'));
            perform agent.require_same_kind(id, _job);
        end if;
        if id is null then
            select added.id, added.duplicate into id, duplicate
            from agent.enqueue_job(_job, _on_duplicate) as added;
            if not duplicate then _added := _added || id; end if;
        end if;
        return next;
    end loop;
    -- Without keys they went in as they were given.
    if exists (select from unnest(_new) as j
        where j.group_key is not null and (j.item_key is not null or j.dedupe_key is not null)) then
        perform agent.lead_with_first(_added);
    end if;
end $$;

-- Stores a webhook's call as an event of kind trigger-fire; a repeated delivery finds the first by
-- its key: a hash where name and id are too long, or a colon could make two calls equal.
create or replace function agent.fire_trigger
( _name text, _webhook_id text, _payload jsonb, _traceparent text default null, out id int8
, out duplicate boolean) language plpgsql security definer as $$
declare
    _plain boolean := strpos(_name, ':') = 0 and length(_name || _webhook_id) <= 191;
    _call text := case when _plain then _name || ':' || _webhook_id
        else ':' || encode(sha256(convert_to(
            jsonb_build_array(_name, _webhook_id)::text, 'UTF8')), 'hex') end;
    _new agent.event := agent.job_from_json(jsonb_build_object('kind', 'trigger-fire'
        , 'traceparent', _traceparent, 'item_key', 'webhook:' || _call, 'enqueued_by', 'webhook:' || _name
        , 'payload', jsonb_build_object('trigger', _name, 'webhook_id', _webhook_id, 'payload', _payload)));
begin
    select added.id, added.duplicate into id, duplicate from agent.add_event(_new, false, true) as added;
end $$;
