-- The newest ended events that a filter wants, by id and when they ended. Each filter has an index that is sorted by when events
-- ended: a page costs the same however long history is.
create or replace function agent.list_ended
( _statuses text[], _kinds text[], _key text, _since timestamptz, _until timestamptz, _after timestamptz, _after_id int8, _limit int4
) returns table (id int8, finished_at timestamptz)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    _outcomes text[] := array(
        select known from unnest(array['completed', 'failed', 'expired', 'cancelled']) as known where _statuses is null or known = any(_statuses));
    _first timestamptz := coalesce(_since, '-infinity');
    _end timestamptz := coalesce(_until, 'infinity');
    _last timestamptz := coalesce(_after, 'infinity');
begin
    if _key is not null then
        return query
        select h.id, h.finished_at
        from (
            (select * from agent.event_hist where item_key = _key)
            union all
            (select * from agent.event_hist where group_key = _key and item_key is distinct from _key
             and finished_at >= _first and finished_at < _end and finished_at <= _last)
            union all
            (select * from agent.event_hist where dedupe_key = _key and item_key is distinct from _key and group_key is distinct from _key
             and finished_at >= _first and finished_at < _end and finished_at <= _last)
        ) as h
        where h.outcome = any(_outcomes) and (_kinds is null or h.kind = any(_kinds))
        and h.finished_at >= _first and h.finished_at < _end and (_after is null or (h.finished_at, h.id) < (_after, _after_id))
        order by h.finished_at desc, h.id desc limit _limit;
    elsif _kinds is not null then
        return query
        select h.id, h.finished_at from (select distinct given from unnest(_kinds) as given) as wanted (kind) cross join unnest(_outcomes) as ending (outcome)
        cross join lateral (
            select e.id, e.finished_at from agent.event_hist as e where e.kind = wanted.kind and e.outcome = ending.outcome
            and e.finished_at >= _first and e.finished_at < _end and e.finished_at <= _last
            and (_after is null or (e.finished_at, e.id) < (_after, _after_id))
            order by e.finished_at desc, e.id desc limit _limit
        ) as h
        order by h.finished_at desc, h.id desc limit _limit;
    else
        return query
        select h.id, h.finished_at from unnest(_outcomes) as ending (outcome)
        cross join lateral (
            select e.id, e.finished_at from agent.event_hist as e where e.outcome = ending.outcome
            and e.finished_at >= _first and e.finished_at < _end and e.finished_at <= _last
            and (_after is null or (e.finished_at, e.id) < (_after, _after_id))
            order by e.finished_at desc, e.id desc limit _limit
        ) as h
        order by h.finished_at desc, h.id desc limit _limit;
    end if;
end
$$;

-- A page of events, newest first: live ones by id, then ended ones by when they ended. Every filter may be null. The next page
-- begins after the last row of this one: _after_id, and for an ended row its finished_at as _after.
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
    _row record;
begin
    if _after is null and (_statuses is null or _statuses && array['pending', 'scheduled', 'running']) then
        for _row in
            select e.id from agent.event as e
            where (_statuses is null or case when e.vt <= now() then 'pending' when e.claimed_by is null then 'scheduled' else 'running' end = any(_statuses))
            and (_kinds is null or e.kind = any(_kinds)) and (_key is null or _key in (e.item_key, e.group_key, e.dedupe_key))
            and (_since is null or e.enqueued_at >= _since) and (_until is null or e.enqueued_at < _until)
            and (_after_id is null or e.id < _after_id)
            order by e.id desc limit _left
        loop
            return query select j.* from agent.job as j where j.id = _row.id and j.finished_at is null;
            _left := _left - 1;
        end loop;
    end if;
    if _left > 0 then
        for _row in select * from agent.list_ended(_statuses, _kinds, _key, _since, _until, _after, _after_id, _left) loop
            return query select j.* from agent.job as j where j.id = _row.id and j.finished_at = _row.finished_at limit 1;
        end loop;
    end if;
end
$$;
