-- A page of events, newest first: live ones by id, then ended ones by when they ended. Every filter may be null. The next page
-- begins after the last row of this one: _after_id, and for an ended row its finished_at as _after.
create or replace function agent.list_jobs
( _statuses text[] default null, _kinds text[] default null, _key text default null, _since timestamptz default null, _until timestamptz default null
, _after timestamptz default null, _after_id int8 default null, _limit int4 default 20
) returns setof agent.job
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set jit = off
as $$
declare
    _left int4 := least(greatest(_limit, 1), 1000);
    _count int4;
    _live constant text[] := array['pending', 'scheduled', 'running'];
begin
    if _after is null and (_statuses is null or _statuses && _live) then
        return query
        select j.* from agent.job as j
        where j.status = any(_live) and (_statuses is null or j.status = any(_statuses)) and (_kinds is null or j.kind = any(_kinds))
        and (_key is null or _key in (j.item_key, j.group_key, j.dedupe_key)) and (_since is null or j.enqueued_at >= _since)
        and (_until is null or j.enqueued_at < _until) and (_after_id is null or j.id < _after_id) and j.finished_at is null
        order by j.id desc limit _left;
        get diagnostics _count = row_count;
        _left := _left - _count;
    end if;
    if _left > 0 and (_statuses is null or not _statuses <@ _live) then
        return query
        select j.* from agent.job as j
        where j.finished_at is not null and (_statuses is null or j.status = any(_statuses)) and (_kinds is null or j.kind = any(_kinds))
        and (_key is null or _key in (j.item_key, j.group_key, j.dedupe_key)) and (_since is null or j.finished_at >= _since)
        and (_until is null or j.finished_at < _until) and (_after is null or (j.finished_at, j.id) < (_after, _after_id))
        order by j.finished_at desc, j.id desc limit _left;
    end if;
end
$$;
