-- Adds jobs in one statement, in the order given, each under its id, once its group has been entered. Returns the ids of those
-- that it added. Left out: a job whose item key or dedupe key is taken, in the queue or earlier in the batch, and the first
-- job of a group that another transaction is just giving a head.
create or replace function agent.add_new_jobs(_ids int8[], _jobs agent.event[]) returns int8[]
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
declare
    _added int8[];
begin
    with added as (
        insert into agent.event (id, event_ts, vt, event, kind, item_key, dedupe_key, group_key, head, lane, max_attempts, deadline
            , enqueued_at, enqueued_by, traceparent)
        select _ids[nth], (job).event_ts, (job).vt, (job).event, (job).kind, (job).item_key, (job).dedupe_key, (job).group_key
        , (job).group_key is null or not agent.enter_group((job).group_key, (job).kind, (job).vt), agent.lane((job).group_key)
        , (job).max_attempts, (job).deadline, agent.clock(), coalesce((job).enqueued_by, session_user), (job).traceparent
        from (select unnest(_jobs) as job, generate_subscripts(_jobs, 1) as nth) as given
        order by nth
        on conflict do nothing returning id
    )
    select coalesce(array_agg(id), '{}') into _added from added;
    return _added;
end
$$;

-- Enqueues a batch of jobs, a JSON array of what enqueue takes, in one transaction; answers each by its place. Locks are
-- taken in one order: new kinds, then jobs by the keys that are stored, so batches that overlap wait for each other and do
-- not deadlock. Two batches that pair the same keys differently (item key 1 with dedupe key 2, and 2 with 1) still can.
create or replace function agent.enqueue_jobs(_jobs jsonb, _on_duplicate text default 'skip')
returns table (ordinal int4, id int8, duplicate boolean)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    _new agent.event[];
    _ids int8[];
    _nths int4[];
    _added int8[] := '{}';
    _place int4;
    _job agent.event;
begin
    if _on_duplicate not in ('skip', 'replace', 'earliest') then
        raise invalid_parameter_value using message = format('on a duplicate: skip, replace or earliest, not %L', _on_duplicate);
    end if;
    perform agent.require_read_committed();
    -- Times and ids are given in the order of the batch, so that jobs of one group are handed over in it.
    select array_agg(read.job order by (read.job).group_key, (read.job).item_key, (read.job).dedupe_key, nth)
    , array_agg(read.new_id order by (read.job).group_key, (read.job).item_key, (read.job).dedupe_key, nth)
    , array_agg(nth order by (read.job).group_key, (read.job).item_key, (read.job).dedupe_key, nth)
    into _new, _ids, _nths
    from (
        select agent.job_from_json(g.job) as job, nextval('agent.event_id_seq') as new_id, g.nth::int4 as nth
        from jsonb_array_elements(_jobs) with ordinality as g (job, nth)
    ) as read;
    insert into agent.kind (kind)
    select kind from (select distinct j.kind from unnest(_new) as j) as given
    where not exists (select from agent.kind where kind = given.kind) order by kind on conflict do nothing;

    -- Batches that move duplicates take turns in a group: one that lost the race to be its first holds the head for key share,
    -- and two that raise that lock deadlock. 1,024 turns, as each is a lock of the server's table of locks.
    if _on_duplicate <> 'skip' then
        perform pg_advisory_xact_lock(hashtext('agent.enqueue_jobs'), turn)
        from (select distinct hashtext(j.group_key) & 1023 as turn from unnest(_new) as j where j.group_key is not null order by turn) as turns;
    end if;
    -- A duplicate that is to be moved is locked in its place in the order: jobs that may meet one go one by one.
    if _on_duplicate = 'skip' or not exists (select from unnest(_new) as j where j.item_key is not null or j.dedupe_key is not null) then
        _added := agent.add_new_jobs(_ids, _new);
    end if;
    return query select g.nth, g.id, false from unnest(_nths, _ids) as g (nth, id) join unnest(_added) as a (id) on a.id = g.id;
    if cardinality(_added) = cardinality(_ids) then
        return;
    end if;
    for _place in
        select g.place from unnest(_ids) with ordinality as g (id, place)
        where not exists (select from unnest(_added) as a (id) where a.id = g.id) order by g.place
    loop
        _job := _new[_place];
        ordinal := _nths[_place];
        id := null;
        duplicate := true;
        if _on_duplicate = 'skip' then
            -- Looks before it enters a group: that would take a lock out of order.
            id := coalesce((select e.id from agent.event as e where e.item_key = _job.item_key)
                , (select e.id from agent.event as e where e.dedupe_key = _job.dedupe_key and e.claimed = '{}'));
        end if;
        if id is null then
            select added.id, added.duplicate into id, duplicate from agent.enqueue_job(_job, _on_duplicate) as added;
        end if;
        return next;
    end loop;
end
$$;
