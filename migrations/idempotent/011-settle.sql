-- Settles: what becomes of claimed events, under the fence.
--   settle: a worker, for a batch of outcomes
--   complete_events: programs
--   settle_plain: plain completions in one pass; settle
--   settle_alike: one outcome, in halves if it fails; settle, archive_possible
--   settle_completed, settle_failed, settle_returned: one outcome each; settle_alike
--   return_events: ends claims, not events; failures, releases
--   pass_to_version: to workers of an older or newer version; settle_returned
--   end_cancelled: claims that were cancelled and hung; completions
--   delete_event: a program, without a fence

-- Ends claims without ending the events: each is visible again after its pause, given by position
-- in _of. After a counted attempt it blocks its group. The caller holds the locks.
create or replace function agent.return_events
( _ids int8[], _counted boolean, _of int8[] default null, _pauses interval[] default null) returns void
language plpgsql security definer as $$
declare _now timestamptz := agent.clock(); _groups text[]; _parked boolean;
begin
    with returned as (
        update agent.event as e set claimed_by = null, heartbeat_at = null, retrying = _counted
        , attempts = case when _counted then e.attempts else greatest(e.attempts - 1, 0) end
        , vt = _now + greatest(coalesce(_pauses[array_position(_of, e.id)], interval '0'), interval '0')
        where e.id = any(_ids) returning e.group_key, e.lane)
    select array_agg(distinct group_key) filter (where group_key is not null), bool_or(lane < 0)
    into _groups, _parked from returned;
    if _parked then perform agent.note_parked(_ids, true); end if;
    if _groups is not null then perform agent.reelect(_groups); end if;
    perform pg_notify('agent_event', '');
end $$;

-- Ends claims as cancelled that were asked to be, and whose lease has ended since: their worker
-- hung, and its report comes too late.
create or replace function agent.end_cancelled(_ids int8[], _claims int4[]) returns void
language plpgsql security definer as $$
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
create or replace function agent.settle_completed(_ids int8[], _claims int4[], _results jsonb[])
returns int8[] language plpgsql security definer as $$ declare _ended record;
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

-- Records failed attempts; returns the settled ids. An event is tried again after its pause. It
-- fails after its last attempt or a final failure, or ends as cancelled if that was asked for.
create or replace function agent.settle_failed(_ids int8[], _claims int4[], _failures jsonb[]) returns int8[]
language plpgsql security definer as $$
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
    -- Events that ended and are still here begin their undos.
    perform agent.return_events(array(select id from unnest(_held) as id
            where id <> all(_cancelled || _failed)), true, _of, array(
        select make_interval(secs => (failure ->> 'retry_in')::float8) from unnest(_failures) as failure));
    return _held;
end $$;

-- Ends claims whose attempts are not counted; each event is visible again after its pause. Its
-- group goes on meanwhile, unless the pause is blocking. A cancelled one ends. Returns the ids.
create or replace function agent.settle_returned(_ids int8[], _claims int4[], _pauses jsonb[]) returns int8[]
language plpgsql security definer as $$
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
        where given.pause ? 'blocking' and given.id = any(_held) and given.id <> all(_cancelled));
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

-- Gives a returned run to the workers that have its handler's version: its kind becomes
-- KIND@VERSION. Workers that name no version do not look for KIND@1: while one lives, a run of
-- version 1 keeps its kind and waits a second. The caller elects the head anew.
create or replace function agent.pass_to_version(_id int8, _version text) returns void
language plpgsql security definer set enable_seqscan = off as $$
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

-- Settles claims that all have the same outcome; returns the settled ids. Without _claims it
-- archives events that the caller holds, as _outcome; the argument is the reason. It steps over
-- locked rows. After a wait of 30 ms it is rolled back and tries the halves: all but the blocked
-- event settle. So an event is found that cannot be settled (history refuses it, or its argument is
-- wrong): it stays claimed, with a warning. With _alone the error is raised.
create or replace function agent.settle_alike
( _outcome text, _ids int8[], _claims int4[], _arguments jsonb[], _alone boolean) returns int8[]
language plpgsql security definer set enable_seqscan = off set lock_timeout = '30ms' as $$
declare _half int4 := cardinality(_ids) / 2;
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
            if _half = 0 then return '{}'; end if;
        when others then
            if agent.is_outage(sqlstate) then
                raise;
            elsif _half = 0 and _outcome <> 'coalesce'
                and current_setting('surelane.headless', true) is distinct from 'on' then
                -- Not the event may refuse, but the next head of its group: sweeps elect that.
                perform set_config('surelane.headless', 'on', true);
                _ids := agent.settle_alike(_outcome, _ids, _claims, _arguments, _alone);
                perform set_config('surelane.headless', '', true);
                return _ids;
            elsif _alone then
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
-- Returns the ids that ended. A single event needs no subtransaction.
create or replace function agent.settle_plain(_ids int8[], _claims int4[], _results jsonb[]) returns int8[]
language plpgsql as $$ declare _ended int8[];
begin
    if cardinality(_ids) = 1 then
        _ended := (agent.end_events(_ids, _claims, null, 'completed', null, _results, null)).ended;
    else
        begin
            _ended := (agent.end_events(_ids, _claims, null, 'completed', null, _results, null)).ended;
        exception when others then
            if left(sqlstate, 2) in ('40', '53', '57', '58', 'XX') then raise; end if;
        end;
    end if;
    if coalesce(cardinality(_ended), 0) < cardinality(_ids) then
        _ended := coalesce(_ended, '{}')
            || agent.settle_alike('complete', _ids, _claims, _results, cardinality(_ids) = 1);
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
create or replace function agent.settle
( _ids int8[], _claims int4[], _outcomes text[] default null, _arguments jsonb[] default null)
returns table (ordinal int4, answer text)
language plpgsql security definer set plan_cache_mode = force_generic_plan as $$
declare
    _order text[] := array[
        'complete', 'fail', 'release', 'snooze', 'await', 'suspend', 'fan_out', 'coalesce'];
    _alike record; _settled int8[];
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
        from unnest(_ids, _claims, _outcomes, _arguments) with ordinality
            as given (id, claim, outcome, argument, nth)
        group by given.outcome, case when given.outcome in ('await', 'suspend', 'fan_out', 'coalesce')
            then nth end
        order by array_position(_order, given.outcome), min(nth)
    loop
        if _alike.outcome = 'complete' then
            _settled := agent.settle_plain(_alike.ids, _alike.claims, _alike.arguments);
        else
            _settled := agent.settle_alike(
                _alike.outcome, _alike.ids, _alike.claims, _alike.arguments, cardinality(_ids) = 1);
        end if;
        return query select _alike.places[a.ordinal]::int4, a.answer
            from agent.settle_answers(_alike.ids, _alike.claims, _settled) as a;
    end loop;
end $$;

create or replace function agent.complete_events(_ids int8[], _claims int4[], _results jsonb[] default null)
returns table (ordinal int4, answer text) language plpgsql security definer as $$ begin
    return query select a.ordinal, a.answer from agent.settle(_ids, _claims, null, _results) as a;
end $$;

-- Moves an event to history as completed, also if a worker has claimed it. Unknown ids do nothing.
create or replace function agent.delete_event(_id int8) returns void
language plpgsql security definer set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
begin
    perform from agent.event where id = _id and group_key is null for update;
    if not found then
        perform agent.hold_group((select group_key from agent.event where id = _id));
        perform from agent.event where id = _id for update;
        perform agent.fence_lapsed(array[_id]);
    end if;
    perform agent.archive_events(array[_id], 'completed');
end $$;
