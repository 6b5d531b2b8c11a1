-- What to claim with heads that are held: each head, then the visible members of its group, up to _limit and to the end of
-- the group that reaches it. A group whose lease lapsed is fenced, and its head comes alone. Members have no prior vt. Steps over
-- members that another transaction has locked; a lapsed group that cannot be fenced for one is left alone.
create or replace function agent.hold_members
( _heads tid[], _head_vts timestamptz[], _group_keys text[], _lapsed boolean[], _kinds text[], _limit int4, _max_attempts int4, _now timestamptz
, out places tid[], out vts timestamptz[]
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
as $$
declare
    _last text;
    _unfenced text[];
    _claimable text[] := array(select wanted from unnest(_kinds) as wanted where not exists (select from agent.kind where kind = wanted and paused));
    _most int4[] := agent.attempts_of(_claimable, _max_attempts);
begin
    select array_agg(m.place), array_agg(m.vt), (array_agg(m.group_key))[_limit] into places, vts, _last
    from (
        select batch.place, batch.vt, h.group_key
        from unnest(_heads, _head_vts, _group_keys, _lapsed) as h (place, vt, group_key, lapsed)
        cross join lateral (
            select h.place, h.vt
            union all
            select member.place, null from (select e.ctid as place from agent.event as e where h.group_key is not null and not h.lapsed and e.group_key = h.group_key and not e.head
             and e.claimed_by is null and e.vt <= _now and e.kind = any(_claimable)
             and e.attempts < coalesce(e.max_attempts, _most[array_position(_claimable, e.kind)]) and e.cancelled_by is null
             order by e.event_ts, e.id limit 100 for update skip locked) as member
        ) as batch
        limit _limit
    ) as m;
    if _last is not null and not _lapsed[array_position(_group_keys, _last)] then
        places := places || array(
            select batch.place from (
                select e.ctid as place from agent.event as e where e.group_key = _last and not e.head
                and e.claimed_by is null and e.vt <= _now and e.kind = any(_claimable)
                and e.attempts < coalesce(e.max_attempts, _most[array_position(_claimable, e.kind)]) and e.cancelled_by is null
                order by e.event_ts, e.id limit 100 for update skip locked) as batch
            where batch.place <> all(places));
    end if;
    if true = any(_lapsed) then
        _unfenced := agent.fence_members(array(
            select h.group_key from unnest(_heads, _group_keys, _lapsed) as h (place, group_key, lapsed)
            where h.lapsed and h.group_key is not null and h.place = any(places) order by h.group_key), _now);
        if _unfenced <> '{}' then
            select array_agg(held.place), array_agg(held.vt) into places, vts from unnest(places, vts) as held (place, vt)
            where held.place <> all(array(select h.place from unnest(_heads, _group_keys) as h (place, group_key) where h.group_key = any(_unfenced)));
        end if;
    end if;
end
$$;
