-- Moves events to history with how they ended: one reason for all, or reasons and results by position in _of. The caller
-- holds their locks; the delete trigger gives their groups the next heads.
create or replace function agent.archive_events
( _ids int8[], _outcome text, _reason text default null, _of int8[] default null, _reasons text[] default null, _results jsonb[] default null
) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
as $$
declare
    _continuations int8[];
begin
    if cardinality(_ids) = 0 then
        return;
    end if;
    with ended as (
        delete from agent.event where id = any(_ids) returning *
    ), detail as (
        select id, reason, result from unnest(_of, _reasons, _results) as given (id, reason, result)
    ), moved as (
        insert into agent.event_hist
        ( id, event_ts, attempts, vt, claimed, event, kind, item_key, dedupe_key, group_key, head, lane, max_attempts, deadline, enqueued_at
        , enqueued_by, claimed_by, heartbeat_at, retrying, cancelled_by, errors, notes, traceparent, continuation_id, waits_for
        , fails_with_children, changes, outcome, reason, result, finished_at, finished_by)
        select e.id, e.event_ts, e.attempts, e.vt, e.claimed, e.event, e.kind, e.item_key, e.dedupe_key, e.group_key, e.head, e.lane
        , e.max_attempts, e.deadline, e.enqueued_at, e.enqueued_by, e.claimed_by, e.heartbeat_at, e.retrying, e.cancelled_by, e.errors, e.notes
        , e.traceparent, e.continuation_id, e.waits_for, e.fails_with_children, e.changes, _outcome, coalesce(detail.reason, _reason)
        , detail.result, agent.clock(), coalesce(e.claimed_by, session_user)
        from ended as e left join detail on detail.id = e.id
        returning event_hist.continuation_id
    )
    select array_agg(continuation_id) filter (where continuation_id is not null) into _continuations from moved;
    if _continuations is not null then
        perform agent.children_ended(_continuations, _outcome);
    end if;
end
$$;
