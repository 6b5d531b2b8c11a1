-- Settles, heartbeats and notes, all under the fence of a claim's number.
--
--   settle: a worker, for a batch of outcomes
--   complete_events: programs
--   hold_groups, hold_claims: the fence: lock what still stands; all below, sweeps
--   hold_continuations, hold_endings: lock who waits for what ends; settles
--   latest_claims, settle_answers: the answers done, stale, busy; settles, heartbeats
--   settle_plain: plain completions in one pass; settle
--   settle_alike: one outcome, in halves if it fails; settle, archive_possible (008)
--   settle_completed, settle_failed, settle_returned: one outcome each; settle_alike
--   return_events: ends claims, not events; failures, releases
--   pass_to_version: to workers of an older or newer version; settle_returned
--   end_cancelled: claims that were cancelled and hung; completions
--   extend_leases: a worker's heartbeat
--   note_event: a worker, for what the next attempt must know
--   delete_event: a program, without a fence

-- The groups of some events whose heads it could lock: one transaction at a time changes a group.
create or replace function agent.hold_groups(_ids int8[]) returns text[]
language plpgsql volatile security definer
set plan_cache_mode = force_generic_plan as $$
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

-- The fence. Of (id, claim) pairs, locks and returns the ids whose claim still stands; skips what
-- is locked. Of several claims of an id, only the latest can stand. A member of a group is held
-- through its head.
create or replace function agent.hold_claims(_ids int8[], _claims int4[]) returns int8[]
language plpgsql volatile security definer
set plan_cache_mode = force_generic_plan as $$
declare
    _groups text[] := agent.hold_groups(_ids);
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

-- The continuations that wait for some events that are about to end, if they could be locked with
-- the heads of their groups, and with what would end along with them. Includes continuations that
-- are gone. Never waits: several batches may count off one continuation.
create or replace function agent.hold_continuations(_ids int8[], _outcome text) returns int8[]
language plpgsql volatile security definer as $$
declare
    _wanted int8[] := array(select distinct continuation_id from agent.event
        where id = any(_ids) and continuation_id is not null);
    _held int8[];
    _failing int8[];
    _above int8[];
begin
    if _wanted = '{}' then
        return _wanted;
    end if;
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

-- The held events without those whose continuations could not be locked: their answer is busy.
create or replace function agent.hold_endings(_held int8[], _ending int8[], _outcome text) returns int8[]
language plpgsql volatile security definer as $$
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
end $$;

-- The ids as given, each once: null in place of its older claims. Only the latest claim can stand,
-- and an older one's result or error is not its own.
create or replace function agent.latest_claims(_ids int8[], _claims int4[]) returns int8[]
language plpgsql immutable as $$
begin
    return array(
        select case when nth = first_value(nth) over (partition by id order by claim desc, nth) then id end
        from unnest(_ids, _claims) with ordinality as given (id, claim, nth) order by nth);
end $$;

-- The answer to each (id, claim) pair, once those in _held have been settled: done; busy, if the
-- claim stands but could not be locked; else stale.
create or replace function agent.settle_answers(_ids int8[], _claims int4[], _held int8[])
returns table (ordinal int4, answer text)
language plpgsql volatile security definer
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
begin
    if cardinality(_held) = cardinality(_ids) then
        return query select nth::int4, 'done' from generate_series(1, cardinality(_ids)) as nth;
        return;
    end if;
    return query
    select item.nth::int4
    , case when item.id = any(_held) and item.nth = first_value(item.nth) over (partition by item.id
            order by item.claim desc, item.nth) then 'done'
           when exists (select from agent.event as e
               where e.id = item.id and agent.claim_stands(e.claimed_by, e.claimed, item.claim))
           and item.id <> all(_held) then 'busy'
           else 'stale' end
    from unnest(_ids, _claims) with ordinality as item (id, claim, nth);
end $$;

-- Ends claims without ending the events: each is visible again after its pause, given by position
-- in _of. After a counted attempt it blocks its group. The caller holds the locks.
create or replace function agent.return_events(_ids int8[], _counted boolean, _of int8[] default null
    , _pauses interval[] default null)
returns void
language plpgsql volatile security definer as $$
declare
    _now timestamptz := agent.clock();
    _groups text[];
    _parked boolean;
begin
    with returned as (
        update agent.event as e
        set claimed_by = null, heartbeat_at = null, retrying = _counted
        , attempts = case when _counted then e.attempts else greatest(e.attempts - 1, 0) end
        , vt = _now + greatest(coalesce(_pauses[array_position(_of, e.id)], interval '0'), interval '0')
        where e.id = any(_ids) returning e.group_key, e.lane
    )
    select array_agg(distinct group_key) filter (where group_key is not null), bool_or(lane < 0)
    into _groups, _parked from returned;
    if _parked then
        perform agent.note_parked(_ids, true);
    end if;
    if _groups is not null then
        perform agent.reelect(_groups);
    end if;
    perform pg_notify('agent_event', '');
end $$;

-- Ends, as cancelled, those claims that were asked to be cancelled and whose lease has ended since:
-- their worker hung, and what it reports comes too late.
create or replace function agent.end_cancelled(_ids int8[], _claims int4[]) returns void
language plpgsql volatile security definer as $$
declare
    _now timestamptz := agent.clock();
    _late int8[] := array(
        select e.id from unnest(_ids, _claims) as given (id, claim)
        cross join lateral (
            select id from agent.event where id = given.id
            and agent.claim_stands(claimed_by, claimed, given.claim) and cancelled_by is not null
            and vt <= _now) as e);
begin
    if _late <> '{}' then
        _late := agent.lock_for_sweep(_late);
        perform agent.fence_lapsed(_late);
        perform agent.archive_possible(array(select id from agent.event
                where id = any(_late) and cancelled_by is not null and vt <= _now)
            , 'cancelled', 'cancelled while running');
    end if;
end $$;

-- Completes claims of groups, or that a continuation waits for. Returns the ids that ended.
create or replace function agent.settle_completed(_ids int8[], _claims int4[]
    , _results jsonb[]) returns int8[]
language plpgsql volatile security definer as $$
declare
    _ended record;
begin
    perform agent.end_cancelled(_ids, _claims);
    select * into _ended
    from agent.end_events(_ids, _claims, agent.hold_groups(_ids), 'completed', null, _results
        , agent.hold_continuations(_ids, 'completed'));
    if _ended.continuations is not null then
        perform agent.children_ended(_ended.continuations, 'completed');
    end if;
    return coalesce(_ended.ended, '{}');
end $$;

-- Records failed attempts; returns the ids that were settled. An event is tried again after its
-- pause. It fails after its last attempt or a final failure; one asked to be cancelled is.
create or replace function agent.settle_failed(_ids int8[], _claims int4[], _failures jsonb[]) returns int8[]
language plpgsql volatile security definer as $$
declare
    _of int8[] := agent.latest_claims(_ids, _claims);
    _held int8[] := agent.hold_claims(_ids, _claims);
    _cancelled int8[] := array(select e.id from agent.event as e
        where e.id = any(_held) and e.cancelled_by is not null);
    _failed int8[] := array(
        select e.id from agent.event as e
        cross join lateral (select _failures[array_position(_of, e.id)]) as given (failure)
        where e.id = any(_held) and (coalesce((failure ->> 'final')::boolean, false)
            or e.attempts >= coalesce(e.max_attempts
                , (agent.attempts_of(array[e.kind], (failure ->> 'max_attempts')::int4))[1])));
begin
    _held := agent.hold_endings(_held, _cancelled || _failed, 'failed');
    update agent.event as e set errors = e.errors || case when given.error = 'null' then '[]'
        else jsonb_build_array(given.error) end
    from unnest(_held) as held (id) cross join lateral
    (select coalesce(_failures[array_position(_of, held.id)] -> 'error', '{}')) as given (error)
    where e.id = held.id;
    perform agent.archive_events(array(select e.id from agent.event as e
            where e.id = any(_held) and e.id = any(_cancelled))
        , 'cancelled', 'cancelled while running');
    perform agent.archive_events(array(select e.id from agent.event as e
            where e.id = any(_held) and e.id = any(_failed))
        , 'failed', 'attempts_exhausted', _of
        , array(select failure ->> 'reason' from unnest(_failures) as failure));
    -- Those that ended and are still here begin their undos.
    perform agent.return_events(array(select id from unnest(_held) as id
            where id <> all(_cancelled || _failed)), true, _of, array(
        select make_interval(secs => (failure ->> 'retry_in')::float8) from unnest(_failures) as failure));
    return _held;
end $$;

-- Ends claims whose attempts are not counted; each event is visible again after its pause. Its
-- group goes on meanwhile, unless the pause is blocking. An event that was asked to be cancelled
-- ends. Returns the ids that were settled.
create or replace function agent.settle_returned(_ids int8[], _claims int4[], _pauses jsonb[]) returns int8[]
language plpgsql volatile security definer as $$
declare
    _held int8[] := agent.hold_claims(_ids, _claims);
    _cancelled int8[] := array(select id from agent.event where id = any(_held) and cancelled_by is not null);
    _blocking int8[];
begin
    _held := agent.hold_endings(_held, _cancelled, 'cancelled');
    perform agent.archive_events(array(select id from unnest(_held) as id where id = any(_cancelled))
        , 'cancelled', 'cancelled while running');
    perform agent.return_events(array(select id from unnest(_held) as id where id <> all(_cancelled)), false
        , agent.latest_claims(_ids, _claims), array(
        select make_interval(secs => (pause ->> 'pause')::float8) from unnest(_pauses) as pause));
    _blocking := array(select given.id from unnest(_ids, _pauses) as given (id, pause)
        where given.pause ? 'blocking' and given.id = any(_held)
        and given.id <> all(_cancelled));
    if _blocking <> '{}' then
        update agent.event set retrying = true where id = any(_blocking);
        perform agent.uncount_starts(array(select given.id from unnest(_ids, _pauses) as given (id, pause)
            where given.id = any(_blocking) and given.pause ->> 'begun' = 'false'));
        perform agent.pass_to_version(given.id, given.pause ->> 'version')
        from unnest(_ids, _pauses) as given (id, pause)
        where given.id = any(_blocking) and given.pause ? 'version';
        perform agent.reelect(array(select group_key from agent.event where id = any(_blocking)));
    end if;
    return _held;
end $$;

-- Gives a run that was returned to the workers that have its handler's version: its kind becomes
-- KIND@VERSION. Workers that name no version do not look for KIND@1. While one lives, a run of
-- version 1 keeps its kind and waits a second. The caller elects the head anew.
create or replace function agent.pass_to_version(_id int8, _version text) returns void
language plpgsql volatile security definer
set enable_seqscan = off as $$
declare
    _base text := (select agent.base_kind(kind, notes) from agent.event where id = _id);
    _kind text := _base || '@' || _version;
begin
    if _version = '1' and exists (
        select from agent.worker as w where _base = any(w.kinds) and agent.worker_alive(w.seen_at)
        and not exists (select from unnest(w.kinds) as named where starts_with(named, _base || '@')))
    then
        update agent.event set vt = agent.clock() + interval '1 second' where id = _id;
    elsif _kind is not null then
        perform agent.register_kinds(array[_kind]);
        update agent.event as e
        set kind = _kind, notes = coalesce(e.notes, '{}') || jsonb_build_object('version', _version)
        , lane = agent.lane_for(_kind, agent.priority_of(e.lane), e.group_key, e.event)
        where e.id = _id;
    end if;
    perform agent.note_parked(array[_id], false);
end $$;

-- Settles claims that all have the same outcome; returns the ids that were settled. Without _claims
-- it archives what the caller holds, as _outcome; the argument is the reason. It steps over rows
-- that another transaction has locked. Where it must wait, it waits 30 ms at most. Then it is
-- rolled back and tries the halves: all but the blocked event settle. An event that cannot be
-- settled (history refuses it, or its argument is wrong) is found in the same way, and stays
-- claimed, with a warning. Alone (_alone), it raises the error.
create or replace function agent.settle_alike(_outcome text, _ids int8[], _claims int4[], _arguments jsonb[]
    , _alone boolean) returns int8[]
language plpgsql volatile security definer
set enable_seqscan = off set lock_timeout = '30ms' as $$
declare
    _half int4 := cardinality(_ids) / 2;
begin
    begin
        if _claims is null then
            perform agent.archive_events(_ids, _outcome, _arguments[1] #>> '{}');
            return _ids;
        end if;
        return case _outcome
            when 'complete' then agent.settle_completed(_ids, _claims, _arguments)
            when 'fail' then agent.settle_failed(_ids, _claims, _arguments)
            when 'fan_out' then agent.settle_fanned_out(_ids[1], _claims[1], _arguments[1])
            when 'await' then agent.settle_suspended(_ids[1], _claims[1], _arguments[1])
            when 'suspend' then agent.settle_suspended(_ids[1], _claims[1], _arguments[1])
            when 'coalesce' then agent.settle_coalesced(_ids[1], _claims[1], _arguments[1])
            else agent.settle_returned(_ids, _claims, _arguments) end;
    exception
        when lock_not_available or deadlock_detected then
            if _half = 0 then
                return '{}';
            end if;
        when others then
            -- Another transaction, a lack of resources or a timeout: not the event's fault.
            if _alone or left(sqlstate, 2) in ('40', '53', '55', '57', '58', 'XX') then
                raise;
            elsif _half = 0 then
                -- Without the error's own text, which may quote the event.
                raise warning 'event % cannot be %: SQLSTATE %', _ids[1]
                , case when _claims is null then 'moved to history' else 'settled as ' || _outcome end
                , sqlstate;
                return '{}';
            end if;
    end;
    return agent.settle_alike(_outcome, _ids[:_half], _claims[:_half], _arguments[:_half], false)
        || agent.settle_alike(_outcome, _ids[_half + 1:], _claims[_half + 1:], _arguments[_half + 1:], false);
end $$;

-- Completes claims: plain events in one pass, then members of groups and children of continuations.
-- Returns the ids that ended. A single event needs no subtransaction: its error is the caller's.
create or replace function agent.settle_plain(_ids int8[], _claims int4[], _results jsonb[]) returns int8[]
language plpgsql volatile as $$
declare
    _ended int8[];
begin
    if cardinality(_ids) = 1 then
        _ended := (agent.end_events(_ids, _claims, null, 'completed', null, _results, null)).ended;
    else
        begin
            _ended := (agent.end_events(_ids, _claims, null, 'completed', null, _results, null)).ended;
        exception when others then
            if left(sqlstate, 2) in ('40', '53', '57', '58', 'XX') then
                raise;
            end if;
        end;
    end if;
    if coalesce(cardinality(_ended), 0) < cardinality(_ids) then
        _ended := coalesce(_ended, '{}') || agent.settle_alike('complete', _ids, _claims, _results
            , cardinality(_ids) = 1);
    end if;
    return coalesce(_ended, '{}');
end $$;

-- Settle a batch of outcomes under the fence of the claims' numbers. One item delays no other. The
-- answers by place: done; stale, if the claim no longer stands; busy, if another transaction has
-- locked a row that the settle needs, or this item's outcome was refused: send the item again.
-- _outcomes, each with its argument in _arguments (null: all complete):
--   complete  the result, or null
--   fail      {"error": {…}, "retry_in": seconds, "final": false, "reason": text,
--             "max_attempts": n, where neither the event nor its kind has a maximum}; error null:
--             its undos have run
--   release   null: the attempt is not counted and begins again at once
--   snooze    {"pause": seconds, "blocking": false, "begun": true}: the same after a pause; with
--             blocking and "version": to workers that have that version of the handler
--   fan_out   {"children": […], "continuation": {…}, "result": …}: completes, and starts these
--   await     {"until": time}: parks the event until agent.answer_event ends it
--   suspend   {"waits": […], "blocking": false}: puts it off until one of its waits ends
--   coalesce  {"outcome": text, "argument": …, "followers": [[id, claim], …]}: that outcome, and
--             the followers end with it
create or replace function agent.settle(_ids int8[], _claims int4[], _outcomes text[] default null
    , _arguments jsonb[] default null)
returns table (ordinal int4, answer text)
language plpgsql volatile security definer
set plan_cache_mode = force_generic_plan as $$
declare
    _order text[] := array['complete', 'fail', 'release', 'snooze', 'await', 'suspend', 'fan_out'
        , 'coalesce'];
    _alike record;
    _settled int8[];
begin
    if _outcomes is null then
        _settled := agent.settle_plain(_ids, _claims, _arguments);
        -- The usual answers, without a statement.
        if cardinality(_settled) = cardinality(_ids) then
            answer := 'done';
            for _nth in 1..cardinality(_ids) loop
                ordinal := _nth;
                return next;
            end loop;
            return;
        end if;
        return query select a.ordinal, a.answer from agent.settle_answers(_ids, _claims, _settled) as a;
        return;
    elsif cardinality(_outcomes) <> cardinality(_ids) or not _outcomes <@ _order then
        raise invalid_parameter_value using message = format('every claim has an outcome: %s'
            , array_to_string(_order, ', '));
    end if;
    for _alike in
        select given.outcome, array_agg(nth order by nth) as places, array_agg(id order by nth) as ids
        , array_agg(claim order by nth) as claims, array_agg(argument order by nth) as arguments
        from unnest(_ids, _claims, _outcomes, _arguments) with ordinality as given (id, claim, outcome
            , argument, nth)
        group by given.outcome, case when given.outcome in ('await', 'suspend', 'fan_out', 'coalesce')
            then nth end
        order by array_position(_order, given.outcome), min(nth)
    loop
        if _alike.outcome = 'complete' then
            _settled := agent.settle_plain(_alike.ids, _alike.claims, _alike.arguments);
        else
            _settled := agent.settle_alike(_alike.outcome, _alike.ids, _alike.claims, _alike.arguments
                , cardinality(_ids) = 1);
        end if;
        return query select _alike.places[a.ordinal]::int4, a.answer
            from agent.settle_answers(_alike.ids, _alike.claims, _settled) as a;
    end loop;
end $$;

-- Completes claims, with their results. Programs know it by this name.
create or replace function agent.complete_events(_ids int8[], _claims int4[], _results jsonb[] default null)
returns table (ordinal int4, answer text)
language plpgsql volatile security definer as $$
begin
    return query select a.ordinal, a.answer from agent.settle(_ids, _claims, null, _results) as a;
end $$;

-- Renews leases; a group shares one lease, so extending one member's extends all that are held.
-- Stale: the lease is lost. Busy: the row, or its group's head, is locked.
create or replace function agent.extend_leases(_ids int8[], _claims int4[]
    , _invisible_for interval default '10m')
returns table (ordinal int4, answer text)
language plpgsql volatile security definer
set enable_seqscan = off set lock_timeout = '100ms' as $$
declare
    _held int8[];
    _groups text[];
    _sooner int8[];
    _soonest interval;
    _now timestamptz;
begin
    begin
        _held := agent.hold_claims(_ids, _claims);
        -- A lapsed run of a limited kind no longer counts, so its slot may be taken. The worker has
        -- stopped its handler by then. The clock is read with the rows and this lock held: from
        -- then on a claim counts these runs (agent.limit_room), however late this transaction ends.
        -- No session of ours takes the lock exclusively. Where a foreign one does, this goes on
        -- without it, but renews no limited run that would lapse before this has ended.
        _soonest := case when pg_try_advisory_xact_lock_shared(agent.heartbeat_lock()) then interval '0'
            else interval '10 s' end;
        _now := agent.clock();
        _held := array(
            select given.id from unnest(_held) as given (id)
            cross join lateral (select lane, vt from agent.event where id = given.id limit 1) as e
            where e.lane >= 0 or e.vt > _now + _soonest);
        _groups := array(select distinct group_key from agent.event
            where id = any(_held) and group_key is not null);
        if _groups <> '{}' then
            _held := _held
                || array(select id from agent.event
                    where group_key = any(_groups) and not head and claimed_by is not null
                    for update skip locked)
                || array(select id from agent.event
                    where group_key = any(_groups) and head and claimed_by is not null
                    and (lane >= 0 or vt > _now + _soonest) for update skip locked);
        end if;
        -- Parked ones whose lease ends sooner than claims of their key expect.
        _sooner := array(
            select e.id from unnest(_held) as given (id)
            cross join lateral (select * from agent.event where id = given.id limit 1) as e
            where e.lane < 0 and e.head and e.cancelled_by is null and e.vt > _now + _invisible_for);
        -- Not if it was asked to be cancelled: so a worker that hangs is fenced.
        update agent.event set vt = case when cancelled_by is null then _now + _invisible_for else vt end
        , heartbeat_at = _now where id = any(_held);
        if _sooner <> '{}' then
            perform agent.note_parked(_sooner, false);
        end if;
    exception when lock_not_available or deadlock_detected then
        -- skip locked may wait all the same where a row is being updated at that moment.
        _held := '{}';
    end;
    return query select a.ordinal, a.answer from agent.settle_answers(_ids, _claims, _held) as a;
end $$;

-- Keeps, fenced, what a handler's next attempt must find, such as the timestamp of its stream.
create or replace function agent.note_event(_id int8, _claim int4, _notes jsonb) returns text
language plpgsql volatile security definer
set enable_seqscan = off set lock_timeout = '100ms' as $$
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
end $$;

-- Moves an event to history as completed, also if a worker has claimed it. Unknown ids do nothing.
create or replace function agent.delete_event(_id int8) returns void
language plpgsql volatile security definer
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
begin
    perform from agent.event where id = _id and group_key is null for update;
    if not found then
        perform agent.hold_group((select group_key from agent.event where id = _id));
        perform from agent.event where id = _id for update;
        perform agent.fence_lapsed(array[_id]);
    end if;
    perform agent.archive_events(array[_id], 'completed');
end $$;
