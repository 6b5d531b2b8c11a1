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
