-- Groups: one head each. Its row is the group's lock, and triggers elect the next one.
--
--   alive_for: how long an announcement counts; claimable_kinds, worker_alive, rescues
--   claimable_kinds: the kinds that workers claim; elections, claims, sweeps
--   hold_group: locks a group, and waits; operators, signals, jobs that replace others
--   outranked: whether a member should lead instead of the head; free_groups, wrong_head
--   promote: elects the head of a group that has none; triggers, reelect, sweeps
--   reelect: elects anew; settles, operators, sweeps, member_joins
--   lead_with_first: the first one of a new group leads; batches of jobs, fan-outs, rerun_events
--   event_deleted: trigger, as a head leaves
--   event_inserted: trigger, which wakes workers
--   member_joins: trigger at commit, as a member enters
--   event_defaults: trigger, for a plain insert by hand
--   head_yields: whether a head steps down for a newcomer; lock_head, member_joins
--   enter_group: whether there is a head, without a lock; inserts
--   lock_head: locks the head for a newcomer; batches, member_joins

-- How long a worker counts as alive after its last announcement, which comes every 20 seconds.
create or replace function agent.alive_for() returns interval
language sql immutable parallel safe
return interval '90 seconds';

-- The kinds that workers claim: not paused and, once workers have announced themselves, handled by
-- a worker that is alive or has just retired: a kind may have none for some seconds as workers are
-- replaced. Counted from the last announcement or retirement up to now: while no worker runs, the
-- last ones hold. A retirement is forgotten after a day. Later ones: the clock went back since.
create or replace function agent.claimable_kinds() returns text[]
language plpgsql stable security definer
set enable_seqscan = on as $$
declare
    _since timestamptz := greatest((select max(seen_at) from agent.worker where seen_at <= agent.clock())
        , (select max(handled_at) from agent.kind
            where handled_at between agent.clock() - interval '1 day' and agent.clock())) - agent.alive_for();
begin
    return array(
        select k.kind from agent.kind as k where not k.paused
        and (_since is null or k.handled_at >= _since
            or exists (select from agent.worker as w where w.seen_at >= _since and k.kind = any(w.kinds))));
end $$;

-- Locks the head of a group, so no other transaction changes the group. Waits for its holder.
-- For update at once: raised later, it could deadlock with an insert's.
create or replace function agent.hold_group(_group_key text) returns void
language plpgsql volatile security definer
set enable_seqscan = off as $$
begin
    perform agent.lock_head(_group_key, null, null, true);
end $$;

-- Whether a member should lead instead of an idle head. The order, as promote elects: a held
-- member; kinds that workers claim before others; retries; visible ones by (event_ts, id); the next
-- to be visible. It depends on the group's rows, the claimable kinds and the time alone. Wherever
-- one of these changes, the head is elected anew.
create or replace function agent.outranked(_head agent.event, _kinds text[], _now timestamptz) returns boolean
language plpgsql volatile security definer
set plan_cache_mode = force_generic_plan set enable_bitmapscan = off set enable_sort = off as $$
declare
    _among text[] := case when _head.kind = any(_kinds) then _kinds end;
begin
    if _head.claimed_by is not null or not exists (select from agent.event
        where group_key = _head.group_key and not head) then
        return false;
    elsif exists (select from agent.event
        where group_key = _head.group_key and not head and claimed_by is not null)
    or (_among is null and exists (select from agent.event
            where group_key = _head.group_key and not head and kind = any(_kinds))) then
        return true;
    elsif _head.retrying then
        return exists (
            select from agent.event where group_key = _head.group_key and not head and retrying
            and (event_ts, id) < (_head.event_ts, _head.id)
            and (_among is null or kind = any(_among)));
    end if;
    return exists (select from agent.event
        where group_key = _head.group_key and not head and retrying
        and (_among is null or kind = any(_among)))
    or case when _head.vt <= _now
        then exists (
            select from agent.event where group_key = _head.group_key and not head and claimed_by is null
            and (event_ts, id) < (_head.event_ts, _head.id)
            and vt <= _now and (_among is null or kind = any(_among)))
        else exists (
            select from agent.event where group_key = _head.group_key and not head and vt < _head.vt
            and (_among is null or kind = any(_among))) end;
end $$;

-- Gives a group without a head its next one: a member still held, if there is one. Else, among
-- kinds that workers claim before all others: a retry (it blocks its group), the first visible one
-- by (event_ts, id), or the next to be visible. Each by index. Its vt is ahead of every claim
-- cursor. Steps over waiting members that are locked. Waits only for a held member, as its group
-- may not go to another worker, and where all are locked; settles bound that by lock_timeout.
create or replace function agent.promote(_group_key text) returns void
language plpgsql volatile security definer
set plan_cache_mode = force_generic_plan set enable_bitmapscan = off set enable_sort = off as $$
declare
    _now timestamptz := agent.clock();
    _next int8;
    _waits boolean;
    _parked boolean;
begin
    -- Most groups hold a single event: nothing follows it.
    if not exists (select from agent.event where group_key = _group_key and not head) then
        return;
    end if;
    loop
        if exists (select from agent.event
            where group_key = _group_key and not head and claimed_by is not null) then
            select id into _next from agent.event
            where group_key = _group_key and not head and claimed_by is not null
            order by event_ts, id limit 1 for update skip locked;
            if not found then
                perform from agent.event where group_key = _group_key and not head and claimed_by is not null
                order by event_ts, id limit 1 for update;
                continue;
            end if;
        else
            select waiting.id into _next
            from (values (agent.claimable_kinds()), (null)) as preferred (kinds)
            cross join lateral (
                select id from (
                    select id from agent.event where group_key = _group_key and not head and retrying
                    and (kinds is null or kind = any(kinds)) order by event_ts, id limit 1
                    for update skip locked) as retried
                union all
                select id from (
                    select id from agent.event
                    where group_key = _group_key and not head and claimed_by is null and vt <= _now
                    and (kinds is null or kind = any(kinds)) order by event_ts, id limit 1
                    for update skip locked) as visible
                union all
                select id from (
                    select id from agent.event where group_key = _group_key and not head
                    and (kinds is null or kind = any(kinds)) order by vt limit 1
                    for update skip locked) as later
            ) as waiting limit 1;
            if not found then
                perform from agent.event where group_key = _group_key and not head order by vt limit 1
                for update;
                -- There is none, or it was just deleted by hand: the next statement sees which.
                exit when not found and not exists (select from agent.event
                    where group_key = _group_key and not head);
                continue;
            end if;
        end if;
        update agent.event set head = true, vt = greatest(vt, _now)
        , lane = agent.lane_for(kind, agent.priority_of(lane), group_key, event) where id = _next
        returning claimed_by is null, lane < 0 into _waits, _parked;
        exit when found;
        perform agent.blame_foreign(); -- the row is locked, so only a trigger or a rule can keep it
    end loop;
    if _parked then
        perform agent.note_parked(array[_next], false);
    end if;
    if _waits then
        perform pg_notify('agent_event', '');
    end if;
end $$;

-- Chooses the heads of groups anew, among all members. The caller has locked the heads.
create or replace function agent.reelect(_group_keys text[]) returns void
language plpgsql volatile security definer as $$
declare
    _group_key text;
begin
    for _group_key in select distinct given from unnest(_group_keys) as given where given is not null
        order by given loop
        update agent.event set head = false where group_key = _group_key and head;
        perform agent.promote(_group_key);
    end loop;
end $$;

-- Makes the first event in order the head of each group that was empty before this batch: rows are
-- stored by key, against deadlocks, so another is the head, and a claim of a part of the group
-- would begin with it. The head is this transaction's own: this waits for no other one.
create or replace function agent.lead_with_first(_ids int8[]) returns void
language plpgsql volatile security definer
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_sort = off as $$
begin
    perform agent.reelect(array(
        select h.group_key from unnest(_ids) as new (id) join agent.event as h on h.id = new.id
        where h.head and h.group_key is not null and h.claimed_by is null
        and (select true from agent.event as m
            where m.group_key = h.group_key and not m.head and m.claimed_by is null
            and (m.event_ts, m.id) < (h.event_ts, h.id) and m.vt <= agent.clock() order by m.event_ts, m.id
            limit 1)));
end $$;

-- However a head leaves the queue, its group gets the next one in the same transaction. A lapsed
-- head that was deleted by hand may have killed its worker: its members go back unspent.
create or replace function agent.event_deleted() returns trigger
language plpgsql security definer as $$
begin
    if old.claimed_by is not null and old.vt <= agent.clock()
    and not exists (select from agent.event_hist where id = old.id and event_ts = old.event_ts) then
        perform agent.fence_groups(array[old.group_key], agent.clock());
    end if;
    perform agent.promote(old.group_key);
    return null;
end $$;

-- Wakes the workers. Identical payloads merge within a transaction; the notice is sent at commit.
create or replace function agent.event_inserted() returns trigger
language plpgsql security definer as $$
begin
    perform pg_notify('agent_event', '');
    return null;
end $$;

-- A member joins its group as its transaction commits. It locks the head, which cannot leave before
-- the election sees the member. Without a head, or if the head yields, the group elects another.
-- Until then it holds no lock: a transaction that stays open delays neither claims nor settles.
create or replace function agent.member_joins() returns trigger
language plpgsql security definer
set enable_seqscan = off as $$
declare
    _member record;
    _index text;
begin
    loop
        -- Its own transaction may have changed it since, or deleted it.
        select group_key, kind, vt, event_ts into _member from agent.event where id = new.id and not head;
        exit when not found;
        if agent.lock_head(_member.group_key, _member.kind, _member.vt, false, _member.event_ts, new.id) then
            if agent.head_yields(_member.group_key, _member.kind, _member.vt, _member.event_ts, new.id) then
                perform agent.reelect(array[_member.group_key]);
            end if;
            exit;
        end if;
        begin
            perform agent.promote(_member.group_key);
        exception when unique_violation then
            -- Another newcomer has become the head: this one joins it.
            get stacked diagnostics _index = constraint_name;
            if _index <> 'event_group_head' then
                raise;
            end if;
        end;
    end loop;
    return null;
end $$;

-- Makes a plain insert into agent.event (event_ts, event), by which people move events back, sound.
create or replace function agent.event_defaults() returns trigger
language plpgsql security definer as $$
begin
    if new.kind is null then
        new.kind := agent.event_kind(new.event);
        new.item_key := coalesce(new.item_key, agent.event_item_key(new.event));
        new.group_key := coalesce(new.group_key, agent.stored_group_key(new.kind, new.event));
    end if;
    new.lane := coalesce(new.lane, agent.lane_for(new.kind, 1::int2, new.group_key, new.event));
    new.head := new.group_key is null or not agent.enter_group(new.group_key);
    -- An owner who copies an event out of history under its old id means to move it.
    delete from agent.event_hist where id = new.id and event_ts = new.event_ts;
    perform agent.register_kinds(array[new.kind]);
    return new;
end $$;

-- Whether a group's head yields to a waiting member. A held head never does. A head of a kind that
-- no worker claims yields to a claimed kind; another, unless it is a retry, to an earlier member.
-- Of two visible events the earlier one happened first.
drop function if exists agent.head_yields(text, text, timestamptz);
create or replace function agent.head_yields(_group_key text, _kind text, _vt timestamptz
    , _event_ts timestamptz, _id int8) returns boolean
language plpgsql volatile security definer as $$
declare
    _head record;
    _kinds text[];
begin
    select kind, vt, retrying, event_ts, id into _head from agent.event
    where group_key = _group_key and head and claimed_by is null;
    if not found then
        return false;
    end if;
    if _head.kind <> _kind then
        _kinds := agent.claimable_kinds();
        if (_head.kind = any(_kinds)) <> (_kind = any(_kinds)) then
            return _kind = any(_kinds);
        end if;
    end if;
    -- Not by the vt of a visible head: a new one got it a moment after the next newcomer its own.
    return not _head.retrying and case when _head.vt > agent.clock() then _head.vt > _vt
        else _vt <= agent.clock() and (_event_ts, _id) < (_head.event_ts, _head.id) end;
end $$;

-- Whether a row that enters a group finds a head there, and so is a member. Locks nothing: the
-- trigger member_joins locks the head as the transaction commits. Where two transactions enter an
-- empty group, the second waits for the first at the unique index of heads.
create or replace function agent.enter_group(_group_key text) returns boolean
language plpgsql volatile security definer
set enable_seqscan = off as $$
begin
    return exists (select from agent.event where group_key = _group_key and head);
end $$;

-- Locks the head of a group for a new member: it cannot leave before the election sees the member.
-- Returns false if there is no head. The lock is `for key share`, so any number of members join at
-- once; it is `for update` where the head steps down for this member, or for _alone, as raising a
-- lock later could deadlock with another newcomer. Everything that changes a head locks it `for
-- update`: else an update to another page forgets key share locks (PostgreSQL 17, 18).
drop function if exists agent.lock_head(text, text, timestamptz, boolean);
create or replace function agent.lock_head
( _group_key text, _kind text, _vt timestamptz, _alone boolean default false
, _event_ts timestamptz default null, _id int8 default null
) returns boolean
language plpgsql volatile security definer as $$
begin
    while exists (select from agent.event where group_key = _group_key and head) loop
        if _alone or agent.head_yields(_group_key, _kind, _vt, _event_ts, _id) then
            perform from agent.event where group_key = _group_key and head for update;
        else
            perform from agent.event where group_key = _group_key and head for key share;
        end if;
        if found then
            return true;
        end if;
        -- It left or stepped down meanwhile: the next statement sees who came after it.
    end loop;
    return false;
end $$;
