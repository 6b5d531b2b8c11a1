-- The fence of a claim's number, and the locks of all that ends with an event.
--   hold_groups, hold_claims: the fence: lock what still stands; all below, sweeps
--   hold_continuations, hold_endings: lock who waits for what ends; settles
--   latest_claims, settle_answers: the answers done, stale, busy; settles, heartbeats
--   lock_for_sweep: locks what no other transaction has locked; sweeps, operators
--   hold_running, unheld: the fence of a running event; steps, signals, gather

-- Locks the heads of the groups of some events, and returns the groups that it could lock.
create or replace function agent.hold_groups(_ids int8[]) returns text[]
language plpgsql security definer set plan_cache_mode = force_generic_plan as $$
declare
    _groups text[] := array(select distinct group_key from agent.event
        where id = any(_ids) and group_key is not null);
begin
    if _groups <> '{}' then
        _groups := array(select group_key from agent.event where group_key = any(_groups) and head
            order by group_key for update skip locked);
    end if;
    return _groups;
end $$;

-- The fence. Of (id, claim) pairs, locks and returns the ids whose claim still stands: of an id,
-- only the latest can. Skips locked rows. A member of a group is held through its head.
create or replace function agent.hold_claims(_ids int8[], _claims int4[]) returns int8[]
language plpgsql security definer set plan_cache_mode = force_generic_plan as $$
declare _groups text[] := agent.hold_groups(_ids);
begin
    return array(
        -- One probe an item: a join would walk the whole index if the table was last seen empty.
        select e.id from (select id, max(claim) as claim from unnest(_ids, _claims) as given (id, claim)
            group by id order by id) as item
        cross join lateral (
            select id from agent.event where id = item.id
            and agent.claim_stands(claimed_by, claimed, item.claim)
            and (group_key is null or group_key = any(_groups)) for update skip locked) as e);
end $$;

-- The continuations that wait for some events that are about to end, as far as they, the heads of
-- their groups, and all that would end with them could be locked. Includes continuations that are
-- gone. Never waits: several batches may count off one continuation.
create or replace function agent.hold_continuations(_ids int8[], _outcome text) returns int8[]
language plpgsql security definer as $$
declare
    _wanted int8[] := array(select distinct continuation_id from agent.event
        where id = any(_ids) and continuation_id is not null);
    _held int8[]; _failing int8[]; _above int8[];
begin
    if _wanted = '{}' then return _wanted; end if;
    _held := agent.lock_for_sweep(_wanted);
    if _outcome <> 'completed' then
        _failing := array(select id from agent.event
            where id = any(_held) and fails_with_children and continuation_id is not null);
        if _failing <> '{}' then
            _above := agent.hold_continuations(_failing, _outcome);
            _held := array(select id from agent.event
                where id = any(_held) and (id <> all(_failing) or continuation_id = any(_above)));
        end if;
    end if;
    return _held || array(select wanted from unnest(_wanted) as wanted
        where not exists (select from agent.event where id = wanted));
end $$;

-- Leaves out the held events whose continuations could not be locked: their answer is busy.
create or replace function agent.hold_endings(_held int8[], _ending int8[], _outcome text) returns int8[]
language plpgsql security definer as $$ declare _continuations int8[];
begin
    if not exists (select from agent.event where id = any(_ending) and continuation_id is not null) then
        return _held;
    end if;
    _continuations := agent.hold_continuations(_ending, _outcome);
    return array(
        select id from agent.event where id = any(_held)
        and (id <> all(_ending) or continuation_id is null or continuation_id = any(_continuations)));
end $$;

-- The ids as given, each once: null in place of its older claims, whose results do not count.
create or replace function agent.latest_claims(_ids int8[], _claims int4[]) returns int8[]
language plpgsql immutable as $$ begin
    return array(
        select case when nth = first_value(nth) over (partition by id order by claim desc, nth) then id end
        from unnest(_ids, _claims) with ordinality as given (id, claim, nth) order by nth);
end $$;

-- The answer to each (id, claim) pair, once the ids in _held have been settled: done; busy, if the
-- claim stands but could not be locked; else stale.
create or replace function agent.settle_answers(_ids int8[], _claims int4[], _held int8[])
returns table (ordinal int4, answer text)
language plpgsql security definer set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
begin
    if cardinality(_held) = cardinality(_ids) then
        return query select nth::int4, 'done' from generate_series(1, cardinality(_ids)) as nth;
        return;
    end if;
    return query select item.nth::int4
    , case when item.id = any(_held) and item.nth = first_value(item.nth) over (partition by item.id
            order by item.claim desc, item.nth) then 'done'
           when exists (select from agent.event as e
               where e.id = item.id and agent.claim_stands(e.claimed_by, e.claimed, item.claim))
           and item.id <> all(_held) then 'busy'
           else 'stale' end
    from unnest(_ids, _claims) with ordinality as item (id, claim, nth);
end $$;

-- Locks and returns the events that no other transaction has locked, themselves or their group.
create or replace function agent.lock_for_sweep(_ids int8[]) returns int8[]
language plpgsql security definer as $$ declare _groups text[] := agent.hold_groups(_ids);
begin
    return array(select id from agent.event
        where id = any(_ids) and (group_key is null or group_key = any(_groups)) order by id
        for update skip locked);
end $$;

-- Locks an event whose claim stands, without waiting. Null: the claim does not stand, or the row is
-- locked. Weaker than a settle's lock: members of the group may join.
create or replace function agent.hold_running(_id int8, _claim int4) returns agent.event
language plpgsql security definer set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare _held agent.event;
begin
    select * into _held from agent.event where id = _id and agent.claim_stands(claimed_by, claimed, _claim)
    for no key update skip locked;
    return _held;
end $$;

-- The answer for a claim that could not be locked: busy if it stands, otherwise stale.
create or replace function agent.unheld(_id int8, _claim int4) returns text
language sql security definer set enable_seqscan = off
return case when exists (select from agent.event
        where id = _id and agent.claim_stands(claimed_by, claimed, _claim))
    then 'busy' else 'stale' end;
