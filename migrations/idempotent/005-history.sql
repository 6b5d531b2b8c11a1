-- History: look-ups, the one way into it, and the views of both tables.
--   find_in_history, keys_in_history, messages_in_history: duplicates that ended; inserts
--   history_is_hypertable: whether TimescaleDB keeps it; retention, erasing
--   end_events: moves events to history, under the fence if asked; settles, archive_events
--   archive_events: the same for events that the caller has locked; settles, sweeps, operators
--   event_hist_outlier: trigger: it ended far from its event_ts
--   event_hist_failed: trigger: a job for the hook of an event that ended failed or expired
--   open_questions, event_hist_close: trigger: a worker closes what is open in Slack
--   live_job, ended_job, job: every event under one status; operators' lists
--   schedule_queue: the same under a schedule's names; people

-- The id of an event in history by its item key. An exact event_ts narrows the search to one chunk;
-- else the last 25 hours are searched (Slack retries for 24), for webhooks three days. Planned at
-- each call: one plan for all values would open every chunk (ADR 0001).
create or replace function agent.find_in_history(_item_key text, _event_ts timestamptz, _exact boolean)
returns int8 language plpgsql security definer set plan_cache_mode = force_custom_plan as $$
declare
    _now timestamptz := case when _exact then agent.clock() else _event_ts end;
    _first timestamptz := _event_ts; _last timestamptz := _event_ts;
begin
    -- A timestamp more than a day ahead is replaced, and the same one is not a little later. As it
    -- then lies ahead still, or only just behind, older ones need not be searched for.
    if _event_ts > _now - interval '1 hour' then
        _first := _now - case when _item_key like 'webhook:%' then interval '3 days'
            else interval '25 hours' end;
        _last := greatest(_event_ts, _now + interval '1 hour');
    end if;
    return (select id from agent.event_hist where item_key = _item_key and event_ts between _first and _last
        limit 1);
end $$;

-- Which of _item_keys history has in a range of time. Planned anew.
create or replace function agent.keys_in_history(_item_keys text[], _first timestamptz, _last timestamptz)
returns text[] language plpgsql security definer set plan_cache_mode = force_custom_plan as $$ begin
    return array(select item_key from agent.event_hist
        where item_key = any(_item_keys) and event_ts between _first and _last);
end $$;

create or replace function agent.messages_in_history(_addresses text[], _first timestamptz, _last timestamptz)
returns text[] language plpgsql security definer set plan_cache_mode = force_custom_plan as $$ begin
    return array(
        select dedupe_key from agent.event_hist
        where dedupe_key = any(_addresses) and event_ts between _first and _last);
end $$;

-- Moves events to history, each locked, copied and deleted in one pass. Returns their ids, and the
-- continuations that waited for them. _claims is the fence: an event moves only if its claim
-- stands, no other has it locked, and no request to cancel it outlasted its lease. Without, the
-- caller holds the locks. Members and children move only with _groups and _continuations, which the
-- caller has locked.
create or replace function agent.end_events
( _ids int8[], _claims int4[], _groups text[], _outcome text, _reasons text[], _results jsonb[]
, _continuations int8[], out ended int8[], out continuations int8[])
language plpgsql security definer set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
    _now timestamptz := agent.clock();
    _worker text := nullif(current_setting('surelane.worker', true), ''); -- once a batch
    _freed text[];
begin
    with moved as (
        insert into agent.event_hist
        ( id, event_ts, attempts, vt, claimed, event, kind, item_key, dedupe_key, group_key, head, lane
        , max_attempts, deadline, enqueued_at, enqueued_by, claimed_by, heartbeat_at, retrying, cancelled_by
        , errors, notes, traceparent, continuation_id, waits_for
        , fails_with_children, changes, outcome, reason, result, finished_at, finished_by)
        select e.id, e.event_ts, e.attempts, e.vt, e.claimed, e.event, e.kind, e.item_key, e.dedupe_key
        , e.group_key, e.head, e.lane, e.max_attempts, e.deadline, e.enqueued_at, e.enqueued_by, e.claimed_by
        , e.heartbeat_at, e.retrying, e.cancelled_by, e.errors, e.notes, e.traceparent, e.continuation_id
        , e.waits_for, e.fails_with_children, e.changes, _outcome, item.reason, item.result, _now
        , coalesce(e.claimed_by, session_user)
        from unnest(_ids, _claims, _reasons, _results) as item (id, claim, reason, result)
        -- One probe an item: a join would walk the whole index where the table was last seen empty.
        cross join lateral (
            select * from agent.event where id = item.id and (_claims is null
                or agent.claim_stands(claimed_by, claimed, item.claim, _worker)
                and (cancelled_by is null or vt > _now)
            and (group_key is null or group_key = any(_groups))
            and (continuation_id is null or continuation_id = any(_continuations))) for update skip locked
        ) as e
        returning id, continuation_id, case
            when lane < 0 and claimed_by is not null
            then array[kind, changes #>> '{0,limit_key}'] end as freed)
    select array_agg(id), array_agg(continuation_id) filter (where continuation_id is not null)
    , array_agg(freed) filter (where freed is not null)
    into ended, continuations, _freed from moved;
    delete from agent.event where id = any(ended);
    if _freed is not null then perform agent.note_freed(_freed[:][1:1], _freed[:][2:2]); end if;
end $$;

-- Moves events whose locks the caller holds to history: one reason for all, or reasons and results
-- by position in _of. Of an event that does not complete, undos run first (agent.undo_first).
create or replace function agent.archive_events
( _ids int8[], _outcome text, _reason text default null, _of int8[] default null, _reasons text[] default null
, _results jsonb[] default null) returns void language plpgsql security definer as $$
declare _of_each text[]; _result_of_each jsonb[]; _undoing int8[]; _ended record;
begin
    if cardinality(_ids) = 0 then return; end if;
    if _reason is not null or _reasons is not null or _outcome = 'cancelled' then
        _of_each := array(
            select coalesce(_reasons[array_position(_of, id)]
                , case when _outcome = 'cancelled' then agent.why_cancelled(id) end, _reason)
            from unnest(_ids) as id);
    end if;
    _undoing := case when _outcome <> 'completed' then agent.with_undos(_ids) end;
    if _undoing <> '{}' then
        perform agent.undo_first(id, _outcome, _of_each[array_position(_ids, id)])
        from unnest(_undoing) as id;
        perform agent.archive_events(array(select id from unnest(_ids) as id where id <> all(_undoing))
            , _outcome, _reason, _of, _reasons, _results);
        return;
    end if;
    if _results is not null then
        _result_of_each := array(select _results[array_position(_of, id)] from unnest(_ids) as id);
    end if;
    _ended := agent.end_events(_ids, null, null, _outcome, _of_each, _result_of_each, null);
    if _ended.continuations is not null then
        perform agent.children_ended(_ended.continuations, _outcome);
    end if;
end $$;

create or replace function agent.history_is_hypertable() returns boolean
language plpgsql stable security definer as $$ declare _is boolean := false;
begin
    if to_regclass('_timescaledb_catalog.hypertable') is not null then
        execute 'select exists (select from _timescaledb_catalog.hypertable'
            ' where schema_name = ''agent'' and table_name = ''event_hist'')' into _is;
    end if;
    return _is;
end $$;

-- Notes a day on which an event ended, and the week of its event_ts, where these lie far apart.
create or replace function agent.event_hist_outlier() returns trigger language plpgsql security definer as $$
declare
    _day timestamptz := date_bin('1 day', new.finished_at, 'epoch');
    _week timestamptz := date_bin('7 days', new.event_ts, 'epoch');
begin
    insert into agent.event_hist_outlier (finished_on, event_week) select _day, _week
    where not exists (select from agent.event_hist_outlier where finished_on = _day and event_week = _week);
    return new;
end $$;

-- Stores the failure hook's job, if a worker ever announced one, for an event that failed or
-- expired: its payload, with its end under "failure". It expires after a day.
create or replace function agent.event_hist_failed() returns trigger language plpgsql security definer as $$
declare _kind text := 'surelane.failed:' || agent.base_kind(new.kind, new.notes); _job agent.event;
begin
    if exists (select from agent.kind where kind = _kind) then
        _job := agent.job_from_json(jsonb_build_object('kind', 'failing'
            , 'enqueued_by', coalesce(new.item_key, new.id::text)
            , 'traceparent', new.traceparent, 'deadline', agent.clock() + interval '1 day'
            , 'payload', new.event || jsonb_build_object('failure', jsonb_build_object('id', new.id
                , 'key', new.item_key, 'outcome', new.outcome, 'reason', new.reason, 'errors', new.errors))));
        -- Given above, it would be refused: nothing else may store such a job (agent.require_kind).
        _job.kind := _kind;
        perform agent.enqueue_job(_job, 'skip');
    end if;
    return new;
end $$;

-- The questions and Stop buttons of an event that still have buttons in Slack: none was answered
-- or closed. asked is what the step stored. surelane_worker.handling.asks has the names.
create or replace function agent.open_questions(_id int8) returns table (question text, asked jsonb)
language sql stable security definer set enable_seqscan = off begin atomic
    select q.name, a.result::jsonb
    from agent.step as a cross join lateral (select left(a.name, -length(' asked')) as name) as q
    where a.event_id = _id and a.name like '%:% asked' and a.finished_at is not null
    and not exists (select from agent.step as c
        where c.event_id = _id and c.name = q.name || ' closed' and c.finished_at is not null)
    and not exists (select from agent.signal as s where s.event_id = _id and s.name = q.name and s.decides);
end;

-- Stores a job for each streamed reply, question and Stop button that is left open: a worker closes
-- it (surelane_worker.builtin.questions). The click that stopped the event closes its button.
create or replace function agent.event_hist_close() returns trigger
language plpgsql security definer as $$ declare _left jsonb; _job agent.event;
begin
    for _left in
        select noted.value from jsonb_each(new.notes -> 'streams') as noted
        where noted.value @> '{"stopped": false}'
        union all
        -- The worker decrypts a field of this name.
        select jsonb_build_object('value', q.asked) || jsonb_strip_nulls(jsonb_build_object(
            'team_id', q.asked -> 'team_id', 'enterprise_id', q.asked -> 'enterprise_id'
            , 'is_enterprise_install', case when q.asked ? 'enterprise_id' then true end))
        from agent.open_questions(new.id) as q
        where q.question not like 'stop button:%' or new.reason is null
        or new.reason not like '%: stopped in Slack'
    loop
        -- What an erasure leaves open is erased once it is closed (agent.find_named).
        _job := agent.job_from_json(jsonb_build_object('kind', 'closing', 'payload', _left
            || case when new.reason like '%: erased' then '{"erased": true}' else '{}' end::jsonb
            , 'enqueued_by', coalesce(new.item_key, new.id::text)));
        -- Given above, it would be refused: nothing else may store such a job (agent.require_kind).
        _job.kind := 'surelane.close';
        perform agent.enqueue_job(_job, 'skip');
    end loop;
    return new;
end $$;

-- Makes history a hypertable once TimescaleDB can be had, with the rows it has by then. Without it,
-- or where it refuses a row, history stays a plain table with the same indexes.
do $$
begin
    if exists (select from pg_available_extensions where name = 'timescaledb' and installed_version is null)
    -- A setting of its loader shows that it is preloaded: shared_preload_libraries is hidden.
    and current_setting('timescaledb.max_background_workers', true) is not null then
        begin
            -- Not into agent, the first schema of the path: its functions are everybody's.
            create extension if not exists timescaledb schema public;
        exception when insufficient_privilege or invalid_schema_name then
            raise notice using message = 'TimescaleDB is available, but this role may not create the'
                ' extension in schema public; history stays a plain table';
        end;
    end if;
    if exists (select from pg_extension where extname = 'timescaledb') and not agent.history_is_hypertable()
    then
        begin
            -- The Apache edition has this function; the shorthand table option needs 2.20.
            execute (
                select format(
                    'select %1$I.create_hypertable(''agent.event_hist'', %1$I.by_range(''event_ts'')'
                    ', create_default_indexes => false, migrate_data => true)', n.nspname)
                from pg_extension as x join pg_namespace as n on n.oid = x.extnamespace
                where x.extname = 'timescaledb');
        exception when others then
            if agent.is_outage(sqlstate) then raise; end if;
            raise warning using message = format('history stays a plain table, as TimescaleDB refuses it'
                ' with SQLSTATE %s: %s. Latest row: event %s. Correct the cause; apply --again'
                , sqlstate, sqlerrm, (select format('%s, of %s', id, event_ts) from agent.event_hist
                    order by event_ts desc limit 1));
        end;
    end if;
end $$;

-- A publication of all tables refuses updates and deletes of a table without a key, or another
-- replica identity. Full costs nothing unless wal_level is logical: the old row is logged then.
do $$
declare _table record;
begin
    for _table in
        select * from (values
            ('event_hist', 'i', 'using index event_hist_id'), ('event_hist_outlier', 'f', 'full')
            , ('band', 'f', 'full'), ('limit_note', 'f', 'full'), ('limit_state', 'f', 'full')
            , ('version', 'f', 'full')) as wanted (name, identity, clause)
        where (select relreplident from pg_class where oid = to_regclass('agent.' || name)) <> identity
    loop
        execute format('alter table agent.%I replica identity %s', _table.name, _table.clause);
    end loop;
end $$;

-- The two halves of agent.job, for functions that look in one: agent.job opens history's chunks.
create or replace view agent.live_job as
select id, kind, case when vt <= now() then 'pending' when claimed_by is null then 'scheduled'
    else 'running' end as status
, event as payload, attempts, max_attempts, claimed_by as locked_by
, case when claimed_by is not null and vt > now() then claimed[array_upper(claimed, 1)] else vt end as run_at
, errors -> -1 ->> 'message' as error, errors, null::jsonb as result, null::text as reason, dedupe_key
, item_key, group_key, event_ts, enqueued_at, enqueued_by, claimed, heartbeat_at, deadline
, null::timestamptz as finished_at, null::text as finished_by, traceparent, changes, continuation_id
, waits_for, case when claimed_by is not null and vt > now() then vt end as lease_until
, agent.priority_of(lane) as priority from agent.event;

create or replace view agent.ended_job as
select id, kind, outcome as status, event as payload, attempts, max_attempts, claimed_by as locked_by
, case when claimed_by is null then vt else claimed[array_upper(claimed, 1)] end as run_at
, errors -> -1 ->> 'message' as error, errors, result, reason, dedupe_key, item_key, group_key, event_ts
, enqueued_at, enqueued_by, claimed, heartbeat_at, deadline, finished_at, finished_by, traceparent, changes
, continuation_id, waits_for, null::timestamptz as lease_until, agent.priority_of(lane) as priority
from agent.event_hist;

-- Every event, live or in history, under one status: pending, scheduled, running, or its outcome.
-- run_at is when it is due or, of one that runs or ended in an attempt, when that attempt began.
create or replace view agent.job with (security_barrier) as
select * from agent.live_job union all select * from agent.ended_job;

create or replace view agent.schedule_queue with (security_barrier) as
select id as schedule_queue_item_id, enqueued_at as enqueued_on, enqueued_by, finished_at as dequeued_on
, finished_by as dequeued_by, case when claimed = '{}' then run_at else event_ts end as schedule_on
, payload as data, item_key, greatest(attempts - 1, 0) as redeliver_count
, claimed[array_upper(claimed, 1)] as claimed_on, locked_by as claimed_by, group_key from agent.job;
