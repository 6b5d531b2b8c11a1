-- The groups of some events whose heads could be locked: a group changes in one transaction at a time. Skips the others.
create or replace function agent.hold_groups(_ids int8[]) returns text[]
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
declare
    _groups text[] := array(select distinct group_key from agent.event where id = any(_ids) and group_key is not null);
begin
    if _groups <> '{}' then
        _groups := array(select group_key from agent.event where group_key = any(_groups) and head order by group_key for update skip locked);
    end if;
    return _groups;
end
$$;

-- The fence. Of (id, claim) pairs, locks and returns the ids whose claim still stands; skips what another transaction
-- has locked. Where an id is given with several claims, only the latest can stand. A member of a group is held through its head.
create or replace function agent.hold_claims(_ids int8[], _claims int4[]) returns int8[]
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
declare
    _groups text[] := agent.hold_groups(_ids);
begin
    return array(
        -- One probe an item: a join would walk the whole index, dead rows and all, whenever the table was last seen empty.
        select e.id from (select id, max(claim) as claim from unnest(_ids, _claims) as given (id, claim) group by id order by id) as item
        cross join lateral (
            select id from agent.event where id = item.id and claimed_by is not null and cardinality(claimed) = item.claim
            and (group_key is null or group_key = any(_groups))
            for update skip locked
        ) as e);
end
$$;
