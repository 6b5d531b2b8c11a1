-- Groups: one head each. Its row is the group's lock, and triggers elect the next one.
--   alive_for: how long an announcement counts; claimable_kinds, worker_alive, rescues
--   claimable_kinds: the kinds that workers claim; elections, claims, sweeps
--   live_kinds: the lanes and kinds that have events; sweeps, claim_event, longest_waiting
--   live_in_group, live_between: the live events of a group; turns of agents
--   hold_group: locks a group, and waits; operators, signals, jobs that replace others
--   outranked: whether a member should lead instead of the head; free_groups, wrong_head
--   promote: elects the head of a group that has none; triggers, reelect, sweeps
--   reelect: elects anew; settles, operators, sweeps, member_joins
--   lead_with_first: the first event of a new group leads; batches of jobs, fan-outs, reruns
--   event_deleted: trigger, as a head leaves
--   event_inserted: trigger, which wakes workers
--   member_joins: trigger at commit, as a member enters
--   event_defaults: trigger, for a plain insert by hand
--   head_yields: whether a head steps down for a newcomer; lock_head, member_joins
--   enter_group: whether there is a head, without a lock; inserts
--   lock_head: locks the head for a newcomer; batches, member_joins
--   blame_foreign: names what others added to the queue's table; promote, inserts
--   fence_groups, fence_lapsed: after a lapse, members go back; claims, sweeps, operators

-- How long a worker counts as alive after its last announcement, which comes every 20 seconds.
create or replace function agent.alive_for() returns interval
language sql immutable parallel safe return interval '90 seconds';

-- The kinds that workers claim: not paused, and handled by a worker that is alive or has just
-- retired. Counted from the last announcement or retirement: while no worker runs, the last ones
-- hold. Later times are left out: the clock went back since.
create or replace function agent.claimable_kinds() returns text[]
language plpgsql stable security definer set enable_seqscan = on as $$
declare
    -- In a condition it would be called for each row, and could use no index: it is volatile.
    _now timestamptz := agent.clock();
    _since timestamptz := greatest((select max(seen_at) from agent.worker where seen_at <= _now)
        , (select max(handled_at) from agent.kind
            where handled_at between _now - interval '1 day' and _now)) - agent.alive_for();
begin
    return array(
        select k.kind from agent.kind as k where not k.paused
        and (_since is null or k.handled_at >= _since
            or k.kind in (select unnest(w.kinds) from agent.worker as w where w.seen_at >= _since)));
end $$;

-- The lanes and kinds that live heads have. Each look is by an index: a kind without events costs
-- nothing. Its caller's plan has it, so that what needs a few reads no more.
create or replace function agent.live_kinds() returns table (lane int2, kind text) language sql stable as $$
    with recursive found (lane, kind) as (
        select lanes.lane, (select e.kind from agent.event as e where e.head and e.lane = lanes.lane
            order by e.kind limit 1)
        from (select nth::int2 from generate_series(-4, 59) as nth) as lanes (lane)
        union all
        select f.lane, (select e.kind from agent.event as e
            where e.head and e.lane = f.lane and e.kind > f.kind order by e.kind limit 1)
        from found as f where f.kind is not null)
    select f.lane, f.kind from found as f where f.kind is not null $$;

create or replace function agent.live_in_group(_group_key text) returns setof agent.event
language sql stable as $$
    select * from agent.event where group_key = _group_key and head
    union all select * from agent.event where group_key = _group_key and not head and claimed_by is not null
    union all select * from agent.event where group_key = _group_key and not head and claimed_by is null $$;

-- A group's head and its members between two times. Of the waiting members: the first 500.
create or replace function agent.live_between(_group_key text, _from timestamptz, _to timestamptz)
returns setof agent.event language sql stable set enable_bitmapscan = off set enable_sort = off as $$
    select * from agent.event where group_key = _group_key and head
    union all (select * from agent.event where group_key = _group_key and not head
     and claimed_by is not null and event_ts > _from and event_ts < _to order by event_ts, id)
    union all (select * from agent.event where group_key = _group_key and not head
     and claimed_by is null and event_ts > _from and event_ts < _to order by event_ts, id limit 500) $$;

-- Locks the head of a group, so no other transaction changes the group. For update at once: raised
-- later, it could deadlock with an insert's.
create or replace function agent.hold_group(_group_key text) returns void
language plpgsql security definer set enable_seqscan = off as $$ begin
    perform agent.lock_head(_group_key, null, null, true);
end $$;

-- Whether a member should lead instead of an idle head, in the order of promote. It depends on the
-- group's rows, the claimable kinds and the time alone: a change of these elects anew.
create or replace function agent.outranked(_head agent.event, _kinds text[], _now timestamptz) returns boolean
language plpgsql security definer
set plan_cache_mode = force_generic_plan set enable_bitmapscan = off set enable_sort = off as $$
declare _among text[] := case when _head.kind = any(_kinds) then _kinds end;
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
            and (event_ts, id) < (_head.event_ts, _head.id) and (_among is null or kind = any(_among)));
    end if;
    return exists (select from agent.event
        where group_key = _head.group_key and not head and retrying
        and (_among is null or kind = any(_among)))
    or case when _head.vt <= _now then exists (
            select from agent.event where group_key = _head.group_key and not head and claimed_by is null
            and (event_ts, id) < (_head.event_ts, _head.id)
            and vt <= _now and (_among is null or kind = any(_among)))
        else exists (
            select from agent.event where group_key = _head.group_key and not head and vt < _head.vt
            and (_among is null or kind = any(_among))) end;
end $$;

-- Gives a group without a head its next one: a member still held; else, of kinds that workers claim
-- before all others, a retry (it blocks its group), the first visible one by (event_ts, id), or the
-- next to be visible. Its vt is ahead of every claim cursor. Steps over locked members. Waits only
-- for a held member, whose group may not go to another worker, and where all are locked.
create or replace function agent.promote(_group_key text) returns void language plpgsql security definer
set plan_cache_mode = force_generic_plan set enable_bitmapscan = off set enable_sort = off as $$
declare _now timestamptz := agent.clock(); _next int8; _waits boolean; _parked boolean;
begin
    -- Most groups hold a single event: nothing follows it. Or what follows may refuse to lead.
    if not exists (select from agent.event where group_key = _group_key and not head)
    or current_setting('surelane.headless', true) = 'on' then
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
    if _parked then perform agent.note_parked(array[_next], false); end if;
    if _waits then perform pg_notify('agent_event', ''); end if;
end $$;

-- Chooses the heads of groups anew, among all members. The caller has locked the heads.
create or replace function agent.reelect(_group_keys text[]) returns void
language plpgsql security definer as $$ declare _group_key text;
begin
    for _group_key in select distinct given from unnest(_group_keys) as given where given is not null
        order by given loop
        update agent.event set head = false where group_key = _group_key and head;
        perform agent.promote(_group_key);
    end loop;
end $$;

-- Makes the first event in order the head of each group that was empty before this batch, as
-- batches are stored by key, against deadlocks. That head is this transaction's own, so this waits
-- for no other.
create or replace function agent.lead_with_first(_ids int8[]) returns void language plpgsql security definer
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_sort = off as $$ begin
    perform agent.reelect(array(
        select h.group_key from unnest(_ids) as new (id) join agent.event as h on h.id = new.id
        where h.head and h.group_key is not null and h.claimed_by is null
        and (select true from agent.event as m
            where m.group_key = h.group_key and not m.head and m.claimed_by is null
            and (m.event_ts, m.id) < (h.event_ts, h.id) and m.vt <= agent.clock() order by m.event_ts, m.id
            limit 1)));
end $$;

-- A group whose head leaves gets the next one in the same transaction. A lapsed head that was
-- deleted by hand may have killed its worker: its members go back unspent.
create or replace function agent.event_deleted() returns trigger language plpgsql security definer as $$ begin
    if old.claimed_by is not null and old.vt <= agent.clock()
    and not exists (select from agent.event_hist where id = old.id and event_ts = old.event_ts) then
        perform agent.fence_groups(array[old.group_key], agent.clock());
    end if;
    perform agent.promote(old.group_key);
    return null;
end $$;

-- Wakes the workers. Identical payloads merge within a transaction; the notice is sent at commit.
create or replace function agent.event_inserted() returns trigger
language plpgsql security definer as $$ begin
    perform pg_notify('agent_event', '');
    return null;
end $$;

-- A member joins its group as its transaction commits. It locks the head, which cannot leave before
-- the election sees the member. Until then it holds no lock: an open transaction delays neither
-- claims nor settles.
create or replace function agent.member_joins() returns trigger
language plpgsql security definer set enable_seqscan = off as $$ declare _member record; _index text;
begin
    loop
        -- Its own transaction may have changed it since, or deleted it.
        select group_key, kind, vt, event_ts into _member from agent.event where id = new.id and not head;
        exit when not found;
        if agent.lock_head(_member.group_key, _member.kind, _member.vt, false, _member.event_ts, new.id) then
            if agent.head_yields(_member.group_key, _member.kind, _member.vt, _member.event_ts, new.id) then
                begin
                    perform agent.reelect(array[_member.group_key]);
                exception when others then
                    if agent.is_outage(sqlstate) then raise; end if;
                    raise warning 'the group of event % keeps its head: SQLSTATE %', new.id, sqlstate;
                end;
            end if;
            exit;
        end if;
        begin
            perform agent.promote(_member.group_key);
        exception when unique_violation then
            -- Another newcomer has become the head: this one joins it.
            get stacked diagnostics _index = constraint_name;
            if _index <> 'event_group_head' then raise; end if;
        end;
    end loop;
    return null;
end $$;

-- Makes a plain insert into agent.event (event_ts, event), by which people move events back, sound.
create or replace function agent.event_defaults() returns trigger
language plpgsql security definer as $$ begin
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
create or replace function agent.head_yields
( _group_key text, _kind text, _vt timestamptz, _event_ts timestamptz, _id int8) returns boolean
language plpgsql security definer as $$ declare _head record; _kinds text[];
begin
    select kind, vt, retrying, event_ts, id into _head from agent.event
    where group_key = _group_key and head and claimed_by is null;
    if not found then return false; end if;
    if _head.kind <> _kind then
        _kinds := agent.claimable_kinds();
        if (_head.kind = any(_kinds)) <> (_kind = any(_kinds)) then
            return _kind = any(_kinds);
        end if;
    end if;
    -- Not by the vt of a visible head: it may be a moment later than the next newcomer's.
    return not _head.retrying and case when _head.vt > agent.clock() then _head.vt > _vt
        else _vt <= agent.clock() and (_event_ts, _id) < (_head.event_ts, _head.id) end;
end $$;

-- Whether a row that enters a group finds a head, and so is a member. Locks nothing (see
-- member_joins). Of two transactions that enter an empty group, the second waits at an index.
create or replace function agent.enter_group(_group_key text) returns boolean
language plpgsql security definer set enable_seqscan = off as $$ begin
    return exists (select from agent.event where group_key = _group_key and head);
end $$;

-- Locks the head of a group for a new member: it cannot leave before the election sees the member.
-- False: there is no head. `for key share`, so any number of members join at once; `for update`
-- where the head yields, or for _alone: a lock raised later could deadlock. All that changes a head
-- locks it `for update`: an update to another page forgets key share locks (PostgreSQL 17, 18).
create or replace function agent.lock_head
( _group_key text, _kind text, _vt timestamptz, _alone boolean default false
, _event_ts timestamptz default null, _id int8 default null) returns boolean
language plpgsql security definer as $$ begin
    while exists (select from agent.event where group_key = _group_key and head) loop
        if _alone or agent.head_yields(_group_key, _kind, _vt, _event_ts, _id) then
            perform from agent.event where group_key = _group_key and head for update;
        else
            perform from agent.event where group_key = _group_key and head for key share;
        end if;
        if found then return true; end if;
        -- It left or stepped down meanwhile: the next statement sees who came after it.
    end loop;
    return false;
end $$;

-- Raises an error that names the unique indexes and triggers that others added to agent.event: one
-- refuses a row. Without any it does nothing.
create or replace function agent.blame_foreign() returns void language plpgsql stable security definer as $$
declare
    _names text := (
        select string_agg(foreign_to_us.name, ', ' order by foreign_to_us.name) from (
            select 'index ' || i.indexrelid::regclass::text as name from pg_index as i
            where i.indrelid = 'agent.event'::regclass and (i.indisunique or i.indisexclusion)
            and i.indexrelid <> all(array[
                'agent.event_pkey', 'agent.event_item_key', 'agent.event_dedupe_key'
                    , 'agent.event_group_head']::regclass[])
            union all
            select 'trigger ' || t.tgname from pg_trigger as t join pg_proc as p on p.oid = t.tgfoid
            where t.tgrelid = 'agent.event'::regclass and not t.tgisinternal
            and p.pronamespace <> 'agent'::regnamespace
        ) as foreign_to_us);
begin
    if _names is not null then
        raise unique_violation using message = format(
            'agent.event refuses a row because of what is not Surelane''s: %s', left(_names, 500))
            , hint = 'Drop it, or make it let every row pass.', schema = 'agent', table = 'event';
    end if;
end $$;

-- After a group's lease lapsed: its other held members go back unspent, and their claims no longer
-- stand. So the head is tried alone, and an event that kills its worker exhausts alone. The caller
-- has locked the heads. Steps over locked members, and returns their groups. A head goes back
-- unspent, too, behind a retry or an earlier event that was claimed before: that leads, and the
-- next claim takes it; its group is returned.
create or replace function agent.fence_groups(_group_keys text[], _now timestamptz) returns text[]
language plpgsql security definer set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare _members int8[]; _left text[]; _held_back text[]; _first int8[];
begin
    if coalesce(_group_keys, '{}') = '{}' then return '{}'; end if;
    _members := array(
        select id from agent.event where group_key = any(_group_keys) and not head and claimed_by is not null
        for update skip locked);
    update agent.event set claimed_by = null, heartbeat_at = null, vt = _now
    -- An event that was asked to be cancelled keeps its attempt, by which the sweep finds it.
    , attempts = case when cancelled_by is null then greatest(attempts - 1, 0) else attempts end
    where id = any(_members);
    if exists (select from agent.event where id = any(_members) and cancelled_by is not null) then
        -- As heads they would hold up their group until a sweep.
        perform agent.archive_possible(array(
                select id from agent.event where id = any(_members) and cancelled_by is not null)
            , 'cancelled', 'cancelled while running');
    end if;
    _left := array(select distinct group_key from agent.event
        where group_key = any(_group_keys) and not head and claimed_by is not null);
    select array_agg(e.group_key), array_agg(first.id) into _held_back, _first
    from agent.event as e
    cross join lateral (
        select m.id from agent.event as m where m.group_key = e.group_key and not m.head
        and m.kind = any((select agent.claimable_kinds())::text[])
        and (m.retrying or m.vt <= _now and m.claimed <> '{}' and m.cancelled_by is null
            and (m.event_ts, m.id) < (e.event_ts, e.id))
        order by m.retrying desc limit 1) as first
    where e.group_key = any(_group_keys) and e.group_key <> all(_left) and e.head and e.claimed_by is not null
    and e.vt <= _now and e.cancelled_by is null;
    if _held_back <> '{}' then
        -- Not where another transaction has what comes first locked.
        _group_keys := array(select group_key from agent.event where id = any(_first) for update skip locked);
        update agent.event as e set claimed_by = null, heartbeat_at = null, vt = _now
        , attempts = greatest(attempts - 1, 0) where e.group_key = any(_group_keys) and e.head;
        perform agent.reelect(_group_keys);
    end if;
    return _left || _held_back;
end $$;

-- The same for the groups of events that leave or move, where their heads' lease has lapsed.
create or replace function agent.fence_lapsed(_ids int8[]) returns text[]
language plpgsql security definer set enable_seqscan = off as $$ declare _now timestamptz := agent.clock();
begin
    return agent.fence_groups(array(
        select group_key from agent.event
        where id = any(_ids) and head and group_key is not null and claimed_by is not null and vt <= _now
        order by group_key), _now);
end $$;
