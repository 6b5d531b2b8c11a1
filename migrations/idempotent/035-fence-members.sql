-- After a group's lease lapsed: its other held members go back unspent and their claims no longer stand, so that the head
-- is tried alone and an event that kills its worker exhausts alone. The caller has locked the heads. Steps over members that
-- another transaction has locked, and returns their groups.
create or replace function agent.fence_members(_group_keys text[], _now timestamptz) returns text[]
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
declare
    _members int8[];
begin
    if coalesce(_group_keys, '{}') = '{}' then
        return '{}';
    end if;
    _members := array(
        select id from agent.event where group_key = any(_group_keys) and not head and claimed_by is not null for update skip locked);
    update agent.event set claimed_by = null, heartbeat_at = null, vt = _now
    -- One that was asked to be cancelled keeps its attempt, by which the sweep finds it.
    , attempts = case when cancelled_by is null then greatest(attempts - 1, 0) else attempts end
    where id = any(_members);
    return array(select distinct group_key from agent.event where group_key = any(_group_keys) and not head and claimed_by is not null);
end
$$;

-- Where an event is a head whose lease lapsed, and leaves or moves: the members that were held with it go back unspent. The
-- caller holds its lock.
create or replace function agent.fence_behind(_id int8) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    _now timestamptz := agent.clock();
begin
    perform agent.fence_members(array[group_key], _now)
    from agent.event where id = _id and group_key is not null and head and claimed_by is not null and vt <= _now;
end
$$;
