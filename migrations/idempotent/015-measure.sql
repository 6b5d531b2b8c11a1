-- How many heads of a kind are visible and how many will be later, and since when the oldest is: by
-- index alone. Counts each band lane by lane until there are 10,000 and takes its other lanes to be
-- like those, as events fall into lanes at random: exact below, within about two percent above. Of
-- parked events it counts up to 100,000 a priority.
create or replace function agent.count_heads(_kind text, _now timestamptz, out pending int8, out later int8, out oldest timestamptz)
language plpgsql stable
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
declare
    _band record;
    _lane record;
    _seen int4;
    _visible int8;
    _ahead int8;
begin
    pending := 0;
    later := 0;
    for _band in
        select 0 as first, 16 as lanes union all
        select 12 + 4 * b.band, 4 from (select distinct band from agent.band where kind = _kind and band > 0) as b union all
        select parked.lane, 1 from unnest(array[-1, -2, -3, -4]) as parked (lane) where exists (select from agent.kind_limit as l where l.kind = _kind)
    loop
        _seen := 0;
        _visible := 0;
        _ahead := 0;
        while _seen < _band.lanes and _visible + _ahead < 10000 loop
            select count(*) filter (where vt <= _now) as pending, count(*) filter (where vt > _now) as later, min(vt) filter (where vt <= _now) as oldest
            into _lane from (
                select vt from agent.event where head and lane = _band.first + _seen and kind = _kind limit case when _band.first < 0 then 100000 end
            ) as counted;
            _visible := _visible + _lane.pending;
            _ahead := _ahead + _lane.later;
            oldest := least(oldest, _lane.oldest);
            _seen := _seen + 1;
        end loop;
        pending := pending + round(_visible * _band.lanes::numeric / _seen);
        later := later + round(_ahead * _band.lanes::numeric / _seen);
    end loop;
end
$$;

-- What holds back vacuum the longest: a session's transaction, a prepared one or a replication
-- slot. No row: nothing does. A transaction of another database does so too once it has written, as
-- new snapshots wait for it. anchor is what it holds. state and since are null where they are
-- hidden from the owner of the schema: of other roles' sessions, to who is not a member of
-- pg_read_all_stats; a slot has no since.
create or replace function agent.vacuum_holder()
returns table (holder text, pid int4, application text, state text, since timestamptz, anchor text)
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
    select h.holder, h.pid, h.application, h.state, h.since, h.anchor::text
    from (
        select 'session' as holder, a.pid, coalesce(nullif(a.application_name, ''), a.backend_type, '') as application, a.state, a.xact_start as since
        , case when age(a.backend_xid) >= age(a.backend_xmin) or a.backend_xmin is null then a.backend_xid else a.backend_xmin end as anchor
        from pg_stat_activity as a
        where (a.backend_xid is not null or a.backend_xmin is not null and (a.datid is null or a.datname = current_database()))
        and a.pid <> pg_backend_pid() and not exists (select from pg_stat_progress_vacuum as v where v.pid = a.pid)
        union all
        select 'prepared', null, p.gid, 'prepared', p.prepared, p.transaction from pg_prepared_xacts as p
        union all
        select 'slot', s.active_pid, s.slot_name, case when s.active then 'active' else 'inactive' end, null, s.xmin
        from pg_replication_slots as s where s.xmin is not null
    ) as h
    order by age(h.anchor) desc, h.since limit 1
$$;

-- The figures that operators watch, at a cost that hardly grows with the queue. _last: the holder
-- of vacuum as it was seen before; where since when it holds is hidden, that is since when it has
-- been seen holding the same.
create or replace function agent.queue_figures(_last jsonb) returns jsonb
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    _now timestamptz := agent.clock();
    _holder jsonb;
begin
    select jsonb_build_object('holder', h.holder, 'pid', h.pid, 'application', h.application, 'state', h.state, 'anchor', h.anchor
        , 'since', coalesce(extract(epoch from h.since), case when _last ->> 'anchor' = h.anchor then (_last -> 'since')::numeric end
            , extract(epoch from _now)))
    into _holder from agent.vacuum_holder() as h;
    return jsonb_build_object
    ( 'kinds', (
        with running as materialized (
            select r.kind, count(*) as events, count(*) filter (where r.head) as heads
            from (select kind, head, claimed_by from agent.event where attempts > 0 and vt > _now order by vt limit 50000) as r
            where r.claimed_by is not null group by r.kind
        )
        select coalesce(jsonb_agg(jsonb_build_object('kind', k.kind, 'paused', k.paused, 'pending', c.pending
            , 'scheduled', greatest(c.later - coalesce(r.heads, 0), 0), 'running', coalesce(r.events, 0)
            , 'oldest_pending_age', coalesce(extract(epoch from _now - c.oldest), 0)) order by k.kind), '[]')
        from agent.kind as k cross join lateral agent.count_heads(k.kind, _now) as c left join running as r on r.kind = k.kind)
    , 'group_waiting', (select count(*) from (select from agent.event where not head and claimed_by is null limit 100000) as waiting)
    , 'workers', (select count(*) from agent.list_workers() as w where w.alive)
    , 'dead_rows', pg_stat_get_dead_tuples('agent.event'::regclass)
    , 'holder', _holder);
end
$$;

-- The queue's figures, measured once for all callers: again after 15 seconds, or later where
-- measuring takes long, so that it costs one percent of a processor at most, given up or not. Who
-- finds that it is time measures (fresh); who comes meanwhile gets what was measured before. Null:
-- nothing was yet. began and ended are when this call did, by the database's clock, for the caller
-- to compare its own with.
create or replace function agent.measure_queue() returns jsonb
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    _began timestamptz := agent.clock();
    _figures jsonb;
begin
    perform from agent.measurement where due <= _began for update skip locked;
    if found then
        begin
            _figures := agent.queue_figures((select figures -> 'holder' from agent.measurement));
        exception when query_canceled then
            null; -- Also back off after a timeout; otherwise the next caller repeats the wait.
        end;
        update agent.measurement set figures = coalesce(_figures, figures), measured_at = case when _figures is null then measured_at else _began end
        , due = _began + greatest(interval '15 seconds', 100 * (agent.clock() - _began));
    end if;
    return (
        select figures || jsonb_build_object('fresh', _figures is not null, 'measured_at', extract(epoch from measured_at)
            , 'began', extract(epoch from _began), 'ended', extract(epoch from agent.clock()))
        from agent.measurement where measured_at is not null);
end
$$;
