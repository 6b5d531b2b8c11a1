-- An event's changes with one more: the last 100 alone. Where some were dropped, the first entry says how many.
create or replace function agent.with_change(_changes jsonb, _change jsonb) returns jsonb
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    _dropped int4 := jsonb_array_length(_changes) - 98;
    _before int4 := case when _changes -> 0 ->> 'action' = 'omitted' then (_changes -> 0 ->> 'count')::int4 - 1 else 0 end;
begin
    if _dropped < 2 then
        return _changes || jsonb_build_array(_change);
    end if;
    return jsonb_build_array(_changes -> (_dropped - 1) || jsonb_build_object('action', 'omitted', 'count', _before + _dropped) - 'from' - 'to')
        || (select jsonb_agg(kept order by nth) from jsonb_array_elements(_changes) with ordinality as each (kept, nth) where nth > _dropped)
        || jsonb_build_array(_change);
end
$$;

-- Gives an event that is not running (a claim that lapsed ends here) another time, and perhaps another payload, and records
-- the change. The caller holds its lock and its head's.
create or replace function agent.move_event(_old agent.event, _vt timestamptz, _event jsonb, _action text, _by text) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    _new_vt timestamptz := greatest(_vt, agent.clock());
begin
    perform agent.fence_behind(_old.id);
    update agent.event
    set vt = _new_vt, event = _event, retrying = false, claimed_by = null, heartbeat_at = null
    , event_ts = case when _old.kind like 'slack.%' then event_ts else _new_vt end
    , changes = agent.with_change(changes, jsonb_build_object('action', _action, 'at', agent.clock(), 'by', _by
        , 'from', jsonb_build_object('run_at', _old.vt), 'to', jsonb_build_object('run_at', _new_vt)))
    where id = _old.id;
    perform agent.reelect(array[_old.group_key]);
    perform pg_notify('agent_event', '');
end
$$;
