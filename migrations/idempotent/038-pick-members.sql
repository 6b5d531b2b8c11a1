-- The ids to claim with heads that were picked: each head, then the visible members of its group, up to _limit and to the
-- end of the group that reaches it. A group whose lease lapsed is fenced, and its head comes alone.
create or replace function agent.pick_members
( _heads int8[], _group_keys text[], _lapsed boolean[], _kinds text[], _limit int4, _max_attempts int4, _now timestamptz
) returns int8[]
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
as $$
declare
    _ids int8[];
    _last text;
    _claimable text[] := array(select wanted from unnest(_kinds) as wanted where not exists (select from agent.kind where kind = wanted and paused));
begin
    select array_agg(m.id), (array_agg(m.group_key))[_limit] into _ids, _last
    from (
        select batch.id, p.group_key
        from unnest(_heads, _group_keys, _lapsed) as p (id, group_key, lapsed)
        cross join lateral (
            select p.id
            union all
            (select e.id from agent.event as e where p.group_key is not null and not p.lapsed and e.group_key = p.group_key and not e.head
             and e.claimed_by is null and e.vt <= _now and e.kind = any(_claimable)
             and e.attempts < coalesce(e.max_attempts, _max_attempts) and e.cancelled_by is null
             order by e.event_ts, e.id limit 100)
        ) as batch
        limit _limit
    ) as m;
    if _last is not null and not _lapsed[array_position(_group_keys, _last)] then
        _ids := _ids || array(
            select batch.id from (
                select e.id from agent.event as e where e.group_key = _last and not e.head
                and e.claimed_by is null and e.vt <= _now and e.kind = any(_claimable)
             and e.attempts < coalesce(e.max_attempts, _max_attempts) and e.cancelled_by is null
                order by e.event_ts, e.id limit 100) as batch
            where batch.id <> all(_ids));
    end if;
    if true = any(_lapsed) then
        perform agent.fence_members(array(
            select p.group_key from unnest(_heads, _group_keys, _lapsed) as p (id, group_key, lapsed)
            where p.lapsed and p.group_key is not null and p.id = any(_ids) order by p.group_key), _now);
    end if;
    return _ids;
end
$$;
