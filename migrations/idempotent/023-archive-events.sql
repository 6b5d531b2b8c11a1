-- Moves events to history with how they ended; returns the ids of those that moved, and the continuations that waited for them.
-- Each is locked, copied and deleted in one pass. Without claims the caller holds the locks. With them this is the fence: only
-- what is still claimed so moves, and what another transaction has locked is skipped. Of groups, only those given: their heads
-- are locked; of what a continuation waits for, only where that is one of those given, and locked. Without both (the plain case,
-- and the frequent one) neither members nor children.
create or replace function agent.end_events
( _ids int8[], _claims int4[], _groups text[], _outcome text, _reasons text[], _results jsonb[], _continuations int8[] default null
, out ended int8[], out continuations int8[])
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
declare
    _now timestamptz := agent.clock();
begin
    with moved as (
        insert into agent.event_hist
        ( id, event_ts, attempts, vt, claimed, event, kind, item_key, dedupe_key, group_key, head, lane, max_attempts, deadline, enqueued_at
        , enqueued_by, claimed_by, heartbeat_at, retrying, cancelled_by, errors, notes, traceparent, continuation_id, waits_for
        , fails_with_children, changes, outcome, reason, result, finished_at, finished_by)
        select e.id, e.event_ts, e.attempts, e.vt, e.claimed, e.event, e.kind, e.item_key, e.dedupe_key, e.group_key, e.head, e.lane
        , e.max_attempts, e.deadline, e.enqueued_at, e.enqueued_by, e.claimed_by, e.heartbeat_at, e.retrying, e.cancelled_by, e.errors, e.notes
        , e.traceparent, e.continuation_id, e.waits_for, e.fails_with_children, e.changes, _outcome, item.reason, item.result, _now
        , coalesce(e.claimed_by, session_user)
        -- Where an id is given with several claims, only the latest can stand.
        from (
            select distinct on (id) id, claim, reason, result
            from unnest(_ids, _claims, _reasons, _results) with ordinality as given (id, claim, reason, result, nth) order by id, claim desc, nth
        ) as item
        -- One probe an item: a join would walk the whole index, dead rows and all, whenever the table was last seen empty.
        cross join lateral (
            select * from agent.event
            where id = item.id and (_claims is null or claimed_by is not null and array_upper(claimed, 1) = item.claim
            and (group_key is null or group_key = any(_groups)) and (continuation_id is null or continuation_id = any(_continuations)))
            for update skip locked
        ) as e
        returning id, continuation_id
    )
    select array_agg(id), array_agg(continuation_id) filter (where continuation_id is not null) into ended, continuations from moved;
    delete from agent.event where id = any(ended);
end
$$;

-- Moves events whose locks the caller holds to history: one reason for all, or reasons and results by position in _of. The
-- delete trigger gives their groups the next heads.
create or replace function agent.archive_events
( _ids int8[], _outcome text, _reason text default null, _of int8[] default null, _reasons text[] default null, _results jsonb[] default null
) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    _continuations int8[];
begin
    if cardinality(_ids) = 0 then
        return;
    end if;
    select ended.continuations into _continuations
    from agent.end_events(_ids, null, null, _outcome
    , array(select coalesce(_reasons[array_position(_of, id)], _reason) from unnest(_ids) as id)
    , array(select _results[array_position(_of, id)] from unnest(_ids) as id)) as ended;
    if _continuations is not null then
        perform agent.children_ended(_continuations, _outcome);
    end if;
end
$$;
