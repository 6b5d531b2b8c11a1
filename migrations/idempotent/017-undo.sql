-- What ends along with a run: its followers, and what it undoes first.
--   settle_coalesced: the outcome coalesce; settle_alike
--   with_undos, undo_first: what ends undoes first; archive_events
--   gather, ended_followers: the followers of a run; workers
--   uncount_starts: a run that was put back has not begun; settle_returned

-- Notes which followers the run of a claimed event gets, in a step of number 0. The first run
-- decides that for all later attempts. Events that have steps have begun runs of their own, and
-- follow none. Returns their ids; answers done, stale, busy, or alone: the claim follows a lapsed
-- one, and was claimed without its followers.
create or replace function agent.gather
( _id int8, _claim int4, _followers int8[], out answer text, out followers int8[])
language plpgsql security definer set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare _now timestamptz := agent.clock(); _held agent.event := agent.hold_running(_id, _claim);
begin
    if _held.id is null then answer := agent.unheld(_id, _claim); return; end if;
    -- The claim before this one lapsed, unless it began after that.
    if _followers = '{}' and _held.changes -> -1 ->> 'action' in ('lapsed', 'rescued')
    and (_held.changes -> -1 ->> 'at')::timestamptz >= _held.claimed[_claim - 1]
    and exists (select from agent.event as e
        where e.group_key = _held.group_key and not e.head and e.claimed_by is null and e.vt <= _now) then
        answer := 'alone';
        return;
    end if;
    insert into agent.step as s (event_id, name, nth, sort, event_ts, result, attempt, started_at
        , finished_at)
    values (_id, 'events', 0, 'step', _held.event_ts
        , json_build_object('into', coalesce(_held.item_key, _id::text), 'events', array(
        select follower from unnest(_followers) with ordinality as given (follower, nth)
        where not exists (select from agent.step as own
            where own.event_id in (follower, _id) and own.nth >= 0) order by nth))
    , _held.attempts, _now, _now)
    on conflict do nothing;
    select array(select json_array_elements_text(s.result -> 'events')::int8) into followers
    from agent.step as s where s.event_id = _id and s.name = 'events' and s.nth = 0;
    answer := 'done';
end $$;

-- The followers of an event that ended with it, as an earlier run was suspended.
create or replace function agent.ended_followers(_id int8)
returns table (id int8, kind text, event_ts timestamptz, attempts int4, claim int4, vt timestamptz
, event jsonb, item_key text, group_key text, max_attempts int4, enqueued_at timestamptz, errors jsonb
, notes jsonb, traceparent text)
language plpgsql stable security definer set plan_cache_mode = force_custom_plan set jit = off as $$ begin
    return query
    select h.id, h.kind, h.event_ts, h.attempts, array_upper(h.claimed, 1), h.vt, h.event, h.item_key
    , h.group_key, h.max_attempts, h.enqueued_at, h.errors, h.notes, h.traceparent
    from agent.step as s cross join lateral json_array_elements_text(s.result -> 'events') as follower (id)
    join agent.event_hist as h on h.id = follower.id::int8 and h.reason = 'coalesced into '
    || (s.result ->> 'into')
    where s.event_id = _id and s.name = 'events' and s.nth = 0;
end $$;

-- Settles a claim whose run got followers, and completes these with it: {"outcome", "argument",
-- "followers": [[id, claim], …]}. Passes over followers whose claim no longer stands. Where one
-- cannot be locked, nothing is settled. Returns the id if it was settled.
create or replace function agent.settle_coalesced(_id int8, _claim int4, _given jsonb) returns int8[]
language plpgsql security definer set enable_seqscan = off set lock_timeout = '100ms' as $$
declare
    _into text := (select coalesce(item_key, id::text) from agent.event where id = _id);
    _ids int8[]; _claims int4[]; _held int8[]; _behind int8[]; _cancelled int8[];
begin
    select array_agg((pair ->> 0)::int8), array_agg((pair ->> 1)::int4) into _ids, _claims
    from jsonb_array_elements(_given -> 'followers') as pair;
    _held := agent.settle_alike(_given ->> 'outcome', array[_id], array[_claim]
        , array[nullif(_given -> 'argument', 'null')], true);
    if _held = '{}' then return _held; end if;
    _behind := agent.hold_claims(_ids, _claims);
    if exists (select from agent.settle_answers(_ids, _claims, _behind) as a where a.answer = 'busy')
    or cardinality(agent.hold_endings(_behind, _behind, 'cancelled')) < cardinality(_behind) then
        raise lock_not_available using message = format('a follower of event %s is locked', _id);
    end if;
    if _given ->> 'outcome' in ('await', 'suspend')
    and not exists (select from agent.event where id = _id and (notes ? 'undo') is not true) then
        -- It was asked to be cancelled, and has ended or begins its undos. So do such followers:
        -- without a claim nothing would find them, and their group would wait for good.
        _cancelled := array(select id from agent.event where id = any(_behind) and cancelled_by is not null);
        perform agent.archive_events(_cancelled, 'cancelled', 'cancelled while running');
        perform agent.return_events(
            array(select id from unnest(_behind) as id where id <> all(_cancelled)), false);
    else
        perform agent.archive_events(_behind, 'completed', 'coalesced into ' || _into);
    end if;
    return _held;
end $$;

-- Takes the latest claims of events off the rates of their limits, as no runs have begun with them.
-- A claim that looks at the key at this moment may count them all the same.
create or replace function agent.uncount_starts(_ids int8[]) returns void
language plpgsql security definer set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare _e record;
begin
    for _e in
        select e.kind, e.changes #>> '{0,limit_key}' as key, e.claimed[array_upper(e.claimed, 1)] as began
        from agent.event as e where e.id = any(_ids) and e.lane < 0
    loop
        if agent.take_turn(agent.limit_turn(_e.kind, _e.key)) then
            update agent.limit_state as s set counts[counted.nth] = s.counts[counted.nth] - 1
            from (
                select latest.at, (
                    select min(began.nth)
                    from unnest(latest.starts, latest.counts) with ordinality as began (at, count, nth)
                    where began.at >= _e.began and began.count > 0)::int4 as nth
                from agent.limit_state as latest where latest.kind = _e.kind and latest.limit_key = _e.key
                order by latest.at desc limit 1) as counted
            where s.kind = _e.kind and s.limit_key = _e.key and s.at = counted.at and counted.nth is not null;
            if found then
                insert into agent.limit_note (kind, limit_key, due_at)
                values (_e.kind, _e.key, agent.clock());
            end if;
        end if;
    end loop;
end $$;

-- Which events that are about to end must wait: their undos have not run, or their children live
-- on. And the parents of these. A child that is among _ids and does not wait itself ends with them.
create or replace function agent.with_undos(_ids int8[]) returns int8[]
language plpgsql stable set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$ begin
    return array(
        with recursive waiting as (
            select given.id from unnest(_ids) as given (id)
            cross join lateral (select notes, waits_for from agent.event where id = given.id) as e
            where e.notes ? 'undo' or (e.notes ? 'undone') is not true and (exists (
                select from agent.step as s
                where s.event_id = given.id and s.sort = 'undo' and s.finished_at is null)
            or e.waits_for is not null and exists (
                select from agent.live_children(given.id) as c where c.id <> all(_ids)))
            union select e.continuation_id from waiting join agent.event as e on e.id = waiting.id
            where e.continuation_id = any(_ids) and agent.if_failed(e.changes) <> 'leave')
        select waiting.id from waiting);
end $$;

-- Hands an event that is about to end out once more, for its children and undos. Its notes keep the
-- outcome that it would have had. It has at least three attempts for them; its group waits. Where
-- its claim lapsed, an error says that its handler may still run. About to end again, it ends with
-- that outcome; an error names undos that failed. Before that, an undo in which all attempts died
-- or hung has failed, and the event is handed out again for the others. The caller holds the event.
create or replace function agent.undo_first(_id int8, _outcome text, _reason text) returns void
language plpgsql security definer set enable_seqscan = off as $$
declare
    _now timestamptz := agent.clock();
    _undo jsonb := (select notes -> 'undo' from agent.event where id = _id);
    _others bool := false;
    _left text := (
        select string_agg(s.name || case when s.nth > 1 then format(' (%s)', s.nth) else '' end, ', '
            order by s.started_at desc)
        from agent.step as s where s.event_id = _id and s.sort = 'undo'
        and (s.finished_at is null or s.result is null));
begin
    if _undo is null then
        update agent.event as e
        set attempts = 0, cancelled_by = null
        , errors = e.errors || case when e.claimed_by is null or e.vt > _now then '[]'
            else jsonb_build_array(jsonb_build_object('type', 'UnfinishedError'
                , 'message', 'its undos began although its handler may still run'
                , 'at', _now, 'attempt', e.attempts)) end
        , max_attempts = greatest(coalesce(e.max_attempts
                , (select k.max_attempts from agent.kind as k where k.kind = e.kind)), 3)
        , notes = coalesce(e.notes, '{}')
        || jsonb_build_object('undo', jsonb_build_object('outcome', _outcome, 'reason', _reason
            , 'attempts', e.attempts, 'max_attempts', e.max_attempts, 'cancelled_by', e.cancelled_by))
        , changes = agent.add_change(e.changes
            , jsonb_build_object('action', 'undoing', 'at', _now, 'by', agent.acting()))
        where id = _id;
        perform agent.return_events(array[_id], true);
        return;
    end if;
    update agent.step as s
    set finished_at = _now, result = null, errors = s.errors || jsonb_build_array(jsonb_build_object(
        'type', 'UndoError', 'message', 'each attempt died or hung in it', 'at', _now, 'attempt', e.attempts))
    from agent.event as e
    where e.id = _id and s.event_id = _id and s.sort = 'undo' and s.finished_at is null
    and s.result::jsonb ? 'begun' and (_reason like 'expired by %') is not true;
    if found then
        _others := exists (select from agent.step as s
            where s.event_id = _id and s.sort = 'undo' and s.finished_at is null);
    end if;
    if _others then
        update agent.event set attempts = 0 where id = _id;
        perform agent.return_events(array[_id], true);
        return;
    end if;
    update agent.event as e
    set attempts = (_undo ->> 'attempts')::int4, max_attempts = (_undo ->> 'max_attempts')::int4
    , cancelled_by = _undo ->> 'cancelled_by', notes = e.notes - 'undo' || '{"undone": true}'
    , errors = e.errors || case when _left is null then '[]' else jsonb_build_array(jsonb_build_object(
        'type', 'UndoError', 'message', 'not undone: ' || _left, 'at', _now, 'attempt', e.attempts)) end
    where id = _id;
    perform agent.archive_events(array[_id], _undo ->> 'outcome', _undo ->> 'reason');
end $$;
