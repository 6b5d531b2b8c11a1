-- The figures that operators watch, at a cost that hardly grows with the queue. _last: the holder of vacuum as it was seen before; where since when it
-- holds is hidden, that is since when it has been seen holding the same.
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
    , 'workers', (select count(*) from agent.worker where agent.worker_alive(seen_at))
    , 'dead_rows', pg_stat_get_dead_tuples('agent.event'::regclass)
    , 'holder', _holder);
end
$$;
