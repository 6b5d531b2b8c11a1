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

-- The ids as given, with null in place of all but one where an id is given with several claims: only the latest can stand, so
-- that what comes along with the others (a result, an error) is not its own.
create or replace function agent.latest_claims(_ids int8[], _claims int4[]) returns int8[]
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if (select count(distinct id) from unnest(_ids) as id) = cardinality(_ids) then
        return _ids;
    end if;
    return array(
        select case when nth = first_value(nth) over (partition by id order by claim desc, nth) then id end
        from unnest(_ids, _claims) with ordinality as given (id, claim, nth) order by nth);
end
$$;

-- What to answer to each (id, claim) pair after those in _held have been settled: done; busy, where the claim still
-- stands but could not be locked; else stale.
create or replace function agent.settle_answers(_ids int8[], _claims int4[], _held int8[])
returns table (ordinal int4, answer text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
begin
    if cardinality(_held) = cardinality(_ids) then
        return query select nth::int4, 'done' from generate_series(1, cardinality(_ids)) as nth;
        return;
    end if;
    return query
    select item.nth::int4
    , case when item.id = any(_held) and item.nth = first_value(item.nth) over (partition by item.id order by item.claim desc, item.nth) then 'done'
           when exists (select from agent.event as e where e.id = item.id and e.claimed_by is not null and array_upper(e.claimed, 1) = item.claim)
           and item.id <> all(_held) then 'busy'
           else 'stale' end
    from unnest(_ids, _claims) with ordinality as item (id, claim, nth);
end
$$;

-- Ends claims without ending the events: each is visible again after its pause, given by position in _of. A counted
-- attempt was a failure, and its event blocks the group until it is tried again; one that is not counted does not. The
-- caller holds the locks.
create or replace function agent.return_events(_ids int8[], _counted boolean, _of int8[] default null, _pauses interval[] default null)
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    _now timestamptz := agent.clock();
    _groups text[];
begin
    with returned as (
        update agent.event as e
        set claimed_by = null, heartbeat_at = null, retrying = _counted
        , attempts = case when _counted then e.attempts else greatest(e.attempts - 1, 0) end
        , vt = _now + greatest(coalesce(_pauses[array_position(_of, e.id)], interval '0'), interval '0')
        where e.id = any(_ids) returning e.group_key
    )
    select array_agg(distinct group_key) filter (where group_key is not null) into _groups from returned;
    if _groups is not null then
        perform agent.reelect(_groups);
    end if;
    perform pg_notify('agent_event', '');
end
$$;

-- Ends claims whose attempts are not counted; events that were asked to be cancelled meanwhile end here. The caller holds the
-- locks. Returns the ids of those that it could settle.
create or replace function agent.give_back(_held int8[], _pauses interval[] default null) returns int8[]
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    _cancelled int8[] := array(select id from agent.event where id = any(_held) and cancelled_by is not null);
    _settled int8[] := agent.hold_endings(_held, _cancelled, 'cancelled');
begin
    perform agent.archive_events(array(select id from unnest(_settled) as id where id = any(_cancelled)), 'cancelled', 'cancelled while running');
    perform agent.return_events(_settled, false, _held, _pauses);
    return _settled;
end
$$;

-- Of a batch, completes members of groups and children of continuations; returns the ids that ended. Waits 30 ms at most, and
-- only where it cannot step over a row that another transaction has locked. Where that was too short it tries the halves, so
-- that everything but what needs that row ends.
create or replace function agent.complete_others(_ids int8[], _claims int4[], _results jsonb[]) returns int8[]
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '30ms'
as $$
declare
    _half int4 := cardinality(_ids) / 2;
    _others record;
begin
    begin
        select * into _others
        from agent.end_events(_ids, _claims, agent.hold_groups(_ids), 'completed', null, _results, agent.hold_continuations(_ids, 'completed'));
        if _others.continuations is not null then
            perform agent.children_ended(_others.continuations, 'completed');
        end if;
        return coalesce(_others.ended, '{}');
    exception when lock_not_available or deadlock_detected then
        if _half = 0 then
            return '{}';
        end if;
    end;
    return agent.complete_others(_ids[:_half], _claims[:_half], _results[:_half])
        || agent.complete_others(_ids[_half + 1:], _claims[_half + 1:], _results[_half + 1:]);
end
$$;

-- Moves claimed events to history as completed, with their results; each answers done, stale or busy. What is left of a batch
-- after the plain events is looked at again, with its groups and continuations held.
create or replace function agent.complete_events(_ids int8[], _claims int4[], _results jsonb[] default null)
returns table (ordinal int4, answer text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    _ended int8[] := (select ended from agent.end_events(_ids, _claims, null, 'completed', null, _results));
begin
    if coalesce(cardinality(_ended), 0) < cardinality(_ids) then
        _ended := coalesce(_ended, '{}') || agent.complete_others(_ids, _claims, _results);
    end if;
    return query select a.ordinal, a.answer from agent.settle_answers(_ids, _claims, _ended) as a;
end
$$;

-- Records failed attempts. An event is tried again after its _retry_in; it goes to history at once, as failed, where that
-- was its last attempt or _final says so, and as cancelled where it was asked to be cancelled meanwhile. Where a lock is not
-- to be had within 30 ms it tries the halves of the batch, as complete_others does.
create or replace function agent.fail_events
( _ids int8[], _claims int4[], _errors jsonb[], _retry_in interval[], _final boolean[] default null, _reasons text[] default null
, _max_attempts int4 default null
) returns table (ordinal int4, answer text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set lock_timeout = '30ms'
as $$
declare
    _half int4 := cardinality(_ids) / 2;
    _of int8[] := agent.latest_claims(_ids, _claims);
    _held int8[];
    _cancelled int8[];
    _failed int8[];
begin
    begin
        _held := agent.hold_claims(_ids, _claims);
        _cancelled := array(select e.id from agent.event as e where e.id = any(_held) and e.cancelled_by is not null);
        _failed := array(select e.id from agent.event as e where e.id = any(_held)
            and (e.attempts >= coalesce(e.max_attempts, (agent.attempts_of(array[e.kind], _max_attempts))[1]) or coalesce(_final[array_position(_of, e.id)], false)));
        _held := agent.hold_endings(_held, _cancelled || _failed, 'failed');
        update agent.event as e set errors = e.errors || jsonb_build_array(coalesce(_errors[array_position(_of, e.id)], '{}')) where e.id = any(_held);

        perform agent.archive_events(array(select e.id from agent.event as e where e.id = any(_held) and e.id = any(_cancelled))
            , 'cancelled', 'cancelled while running');
        perform agent.archive_events(array(select e.id from agent.event as e where e.id = any(_held) and e.id = any(_failed))
            , 'failed', 'attempts_exhausted', _of, _reasons);
        perform agent.return_events(_held, true, _of, _retry_in);
    exception when lock_not_available or deadlock_detected then
        if _half > 0 then
            return query select a.ordinal, a.answer
            from agent.fail_events(_ids[:_half], _claims[:_half], _errors[:_half], _retry_in[:_half], _final[:_half], _reasons[:_half], _max_attempts) as a;
            return query select a.ordinal + _half, a.answer
            from agent.fail_events(_ids[_half + 1:], _claims[_half + 1:], _errors[_half + 1:], _retry_in[_half + 1:], _final[_half + 1:]
                , _reasons[_half + 1:], _max_attempts) as a;
            return;
        end if;
        _held := '{}';
    end;
    return query select a.ordinal, a.answer from agent.settle_answers(_ids, _claims, _held) as a;
end
$$;

-- Gives claimed events back at once, their attempts not counted. Where a lock is not to be had within 30 ms it tries the halves
-- of the batch, as complete_others does.
create or replace function agent.release_events(_ids int8[], _claims int4[])
returns table (ordinal int4, answer text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set lock_timeout = '30ms'
as $$
declare
    _half int4 := cardinality(_ids) / 2;
    _held int8[];
begin
    begin
        _held := agent.give_back(agent.hold_claims(_ids, _claims));
    exception when lock_not_available or deadlock_detected then
        if _half > 0 then
            return query select a.ordinal, a.answer from agent.release_events(_ids[:_half], _claims[:_half]) as a;
            return query select a.ordinal + _half, a.answer from agent.release_events(_ids[_half + 1:], _claims[_half + 1:]) as a;
            return;
        end if;
        _held := '{}';
    end;
    return query select a.ordinal, a.answer from agent.settle_answers(_ids, _claims, _held) as a;
end
$$;

-- Puts a claimed event off for a while, its attempt not counted; it does not block its group meanwhile.
create or replace function agent.snooze_event(_id int8, _claim int4, _pause interval) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set lock_timeout = '30ms'
as $$
declare
    _held int8[];
begin
    begin
        _held := agent.give_back(agent.hold_claims(array[_id], array[_claim]), array[_pause]);
    exception when lock_not_available or deadlock_detected then
        _held := '{}';
    end;
    return (select answer from agent.settle_answers(array[_id], array[_claim], _held));
end
$$;

-- Renews leases; a group shares one lease, so extending one member's extends all that are held. Stale: the lease is lost. Busy:
-- another transaction has the row locked, or the head of its group. Waits for no row.
create or replace function agent.extend_leases(_ids int8[], _claims int4[], _invisible_for interval default '10m')
returns table (ordinal int4, answer text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set lock_timeout = '100ms'
as $$
declare
    _held int8[];
    _groups text[];
    _now timestamptz := agent.clock();
begin
    begin
        _held := agent.hold_claims(_ids, _claims);
        _groups := array(select distinct group_key from agent.event where id = any(_held) and group_key is not null);
        if _groups <> '{}' then
            _held := _held
                || array(select id from agent.event where group_key = any(_groups) and not head and claimed_by is not null for update skip locked)
                || array(select id from agent.event where group_key = any(_groups) and head and claimed_by is not null for update skip locked);
        end if;
        update agent.event set vt = _now + _invisible_for, heartbeat_at = _now where id = any(_held);
    exception when lock_not_available or deadlock_detected then
        -- skip locked may wait all the same where a row is being updated at that moment.
        _held := '{}';
    end;
    return query select a.ordinal, a.answer from agent.settle_answers(_ids, _claims, _held) as a;
end
$$;

-- Keeps what a handler must find again on its next attempt, such as the timestamp of a stream it began. Fenced.
create or replace function agent.note_event(_id int8, _claim int4, _notes jsonb) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set lock_timeout = '100ms'
as $$
declare
    _held int8[];
begin
    begin
        _held := agent.hold_claims(array[_id], array[_claim]);
        update agent.event set notes = _notes where id = any(_held);
    exception when lock_not_available or deadlock_detected then
        _held := '{}';
    end;
    return (select answer from agent.settle_answers(array[_id], array[_claim], _held));
end
$$;

-- Marks an event as processed: moves it to history as completed, whoever holds it. An unknown id does nothing.
create or replace function agent.delete_event(_id int8) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
begin
    perform agent.hold_group((select group_key from agent.event where id = _id));
    perform from agent.event where id = _id for update;
    perform agent.fence_behind(_id);
    perform agent.archive_events(array[_id], 'completed');
end
$$;
