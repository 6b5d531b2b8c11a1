-- Workflows as operators see them: trees of events.
--   rerun_first: the first event that an event runs again; reruns, and below
--   children: their outcomes; the continuation's handler
--   workflow_event, with_children, job_of: parts of the next three
--   workflow, workflow_below, list_workflows: operators

-- The first event that an event runs again, directly or through others, by its changes; null: none.
create or replace function agent.rerun_first(_changes jsonb) returns int8 language sql immutable parallel safe
return (select (change -> 'first')::int8 from jsonb_array_elements(_changes) as change
    where change ->> 'action' = 'replay of' limit 1);

-- The children of a continuation and how they ended, in the order they were started. Of a
-- continuation that runs again as a new event: the first event's.
create or replace function agent.children(_continuation_id int8)
returns table (id int8, kind text, item_key text, payload jsonb, status text, result jsonb, reason text
, error text) language plpgsql stable security definer set jit = off as $$
declare
    _first int8 := coalesce(agent.rerun_first((agent.job_of(_continuation_id)).changes), _continuation_id);
begin
    return query select j.id, j.kind, j.item_key, j.payload, j.status, j.result, j.reason, j.error
    from agent.job as j where j.continuation_id = _first order by j.id;
end $$;

-- An event of a workflow as a row of its tree. continues: the event that fanned out, whose place a
-- continuation took. first: the event that a continuation runs again, whose children it has.
create or replace function agent.workflow_event(_job agent.job) returns jsonb
language sql stable security definer
return jsonb_build_object('id', _job.id, 'kind', _job.kind, 'status', _job.status
    , 'attempts', _job.attempts, 'item_key', _job.item_key, 'locked_by', _job.locked_by
    , 'run_at', case when isfinite(_job.run_at) then _job.run_at end, 'enqueued_at', _job.enqueued_at
    , 'finished_at', _job.finished_at, 'reason', left(_job.reason, 300)
    , 'error', _job.errors -> -1 ->> 'type', 'continuation_id', _job.continuation_id
    , 'waits_for', _job.waits_for
    , 'continues', jsonb_path_query_first(_job.changes, '$[*] ? (@.action == "continues").id')
    , 'first', agent.rerun_first(_job.changes));

-- Adds children to rows of a tree: how many events a continuation waits for or waited for, by
-- status, up to about _most; null: it is none. In one statement, which is planned with the time
-- from which on the children came, by which history's chunks are found.
create or replace function agent.with_children(_rows jsonb[], _most int4) returns setof jsonb
language plpgsql stable security definer
set plan_cache_mode = force_custom_plan set enable_seqscan = off as $$
declare
    _from timestamptz := (
        select min(case when r ->> 'first' is null then (r ->> 'enqueued_at')::timestamptz - interval '1 hour'
                else '-infinity' end)
        from unnest(_rows) as r where r ->> 'waits_for' is not null);
begin
    return query select given.r || jsonb_build_object('children', case
        when given.r ->> 'waits_for' is not null then coalesce(counted.children, '{}') end)
    from unnest(_rows) with ordinality as given (r, nth)
    cross join lateral (select coalesce(given.r ->> 'first', given.r ->> 'id')::int8 as id
        where given.r ->> 'waits_for' is not null
        union all select null where given.r ->> 'waits_for' is null) as parent
    cross join lateral (
        select jsonb_object_agg(s.status, s.events) as children from (
            select c.status, count(*) as events from (
                (select l.status from agent.live_job as l where l.continuation_id = parent.id limit _most)
                union all
                (select h.status from agent.ended_job as h
                where h.continuation_id = parent.id and h.event_ts >= _from limit _most)) as c
            group by c.status) as s ) as counted
    order by given.nth;
end $$;

-- An event, live or the last that ended under this id.
create or replace function agent.job_of(_id int8) returns agent.job
language plpgsql stable security definer set enable_seqscan = off as $$ declare _found agent.job;
begin
    select * into _found from agent.live_job as l where l.id = _id;
    if not found then
        select * into _found from agent.ended_job as h where h.id = _id order by h.finished_at desc limit 1;
    end if;
    return _found;
end $$;

-- An event as a row of its workflow's tree, with the continuations that wait for its end: path, the
-- outermost first. It has at most 50. Of an event that fanned out: its continuation's row.
create or replace function agent.workflow(_id int8) returns jsonb
language plpgsql stable security definer set enable_seqscan = off as $$
declare
    _job agent.job := agent.job_of(_id);
    _fanned int8 := (jsonb_path_query_first(_job.changes, '$[*] ? (@.action == "fanned out").id'))::int8;
    _row jsonb; _path jsonb := '[]';
begin
    if _fanned is not null then _job := coalesce(agent.job_of(_fanned), _job); end if;
    if _job.id is null then return null; end if;
    _row := (select agent.with_children(array[agent.workflow_event(_job)], 10001));
    while _job.continuation_id is not null and jsonb_array_length(_path) < 50 loop
        _job := agent.job_of(_job.continuation_id);
        exit when _job.id is null;
        _path := jsonb_build_array(jsonb_build_object('id', _job.id, 'kind', _job.kind, 'status', _job.status
                , 'item_key', _job.item_key)) || _path;
    end loop;
    return _row || jsonb_build_object('path', _path);
end $$;

-- A page of the tree's rows below an event: ids above _after, in the order they were stored. An
-- event that runs again as a new event has the first event's rows. No row is older than its event,
-- by which history's chunks are found, except below such a new event.
create or replace function agent.workflow_below(_id int8, _after int8, _limit int4) returns setof jsonb
language plpgsql stable security definer
set plan_cache_mode = force_custom_plan set enable_seqscan = off as $$
declare
    _job agent.job := agent.job_of(_id); _first int8 := agent.rerun_first(_job.changes);
    _from timestamptz := case when _first is null then _job.enqueued_at - interval '1 hour'
        else '-infinity' end;
    _most int4 := least(greatest(_limit, 1), 500);
begin
    if _job.waits_for is null then return; end if;
    _first := coalesce(_first, _id);
    _after := coalesce(_after, 0);
    return query select * from agent.with_children(array(
        select agent.workflow_event(row(b.*)::agent.job) from (
            (select * from agent.live_job as l where l.continuation_id = _first and l.id > _after
            order by l.id limit _most)
            union all
            (select * from agent.ended_job as h
            where h.continuation_id = _first and h.event_ts >= _from and h.id > _after order by h.id
            limit _most)
        ) as b order by b.id limit _most), 200);
end $$;

-- A page of workflows, newest first, as rows of their trees' roots: live ones by id, then those
-- that ended in the last 30 days. The next page begins after the last row of this one: _after_id,
-- and for an ended row its finished_at as _after.
create or replace function agent.list_workflows(_after timestamptz, _after_id int8, _limit int4)
returns setof jsonb language plpgsql stable security definer
set plan_cache_mode = force_custom_plan set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    _left int4 := least(greatest(_limit, 1), 200); _rows jsonb[] := '{}';
    _from timestamptz := agent.clock() - interval '30 days';
    _first timestamptz := (
        select least(_from - interval '168 hours', min(o.event_week)) from agent.event_hist_outlier as o
        where o.finished_on > _from - interval '24 hours');
begin
    if _after is null then
        _rows := array(
            select agent.workflow_event(row(e.*)::agent.job) from agent.live_job as e
            where e.waits_for is not null and e.continuation_id is null
            and (_after_id is null or e.id < _after_id) order by e.id desc limit _left);
    end if;
    if cardinality(_rows) < _left then
        _rows := _rows || array(
            select agent.workflow_event(row(e.*)::agent.job) from agent.ended_job as e
            where e.waits_for is not null and e.continuation_id is null
            and e.finished_at >= _from and e.event_ts >= _first
            and (_after is null or (e.finished_at, e.id) < (_after, _after_id))
            order by e.finished_at desc, e.id desc limit _left - cardinality(_rows));
    end if;
    return query select * from agent.with_children(_rows, 1000);
end $$;
