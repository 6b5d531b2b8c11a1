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
            select id from agent.event where id = item.id and claimed_by is not null and array_upper(claimed, 1) = item.claim
            and (group_key is null or group_key = any(_groups))
            for update skip locked
        ) as e);
end
$$;

-- Of some events that are about to end, the continuations that wait for them: those that could be locked with the heads of their
-- groups, and with what would end along with them. Also those that are gone. Never waits: several batches may count off one continuation.
create or replace function agent.hold_continuations(_ids int8[], _outcome text) returns int8[]
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
declare
    _wanted int8[] := array(select distinct continuation_id from agent.event where id = any(_ids) and continuation_id is not null);
    _groups text[];
    _held int8[];
    _failing int8[];
    _above int8[];
begin
    if _wanted = '{}' then
        return _wanted;
    end if;
    _groups := agent.hold_groups(_wanted);
    _held := array(
        select id from agent.event where id = any(_wanted) and (group_key is null or group_key = any(_groups)) order by id for update skip locked);
    if _outcome <> 'completed' then
        _failing := array(select id from agent.event where id = any(_held) and fails_with_children and continuation_id is not null);
        if _failing <> '{}' then
            _above := agent.hold_continuations(_failing, _outcome);
            _held := array(select id from agent.event where id = any(_held) and (id <> all(_failing) or continuation_id = any(_above)));
        end if;
    end if;
    return _held || array(select wanted from unnest(_wanted) as wanted where not exists (select from agent.event where id = wanted));
end
$$;

-- Of held events, without those of _ending whose continuations could not be locked: those are busy.
create or replace function agent.hold_endings(_held int8[], _ending int8[], _outcome text) returns int8[]
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
declare
    _continuations int8[];
begin
    if not exists (select from agent.event where id = any(_ending) and continuation_id is not null) then
        return _held;
    end if;
    _continuations := agent.hold_continuations(_ending, _outcome);
    return array(
        select id from agent.event where id = any(_held)
        and (id <> all(_ending) or continuation_id is null or continuation_id = any(_continuations)));
end
$$;
