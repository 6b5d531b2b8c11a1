-- Adds a change to the changes of an event. At most 51 entries are kept: the first ten, the last 40 and, between them, one
-- that counts those dropped. An event that is moved thousands of times would else be rewritten with all of them each time.
create or replace function agent.add_change(_changes jsonb, _change jsonb) returns jsonb
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp
return case when jsonb_array_length(_changes) < 50 then _changes || jsonb_build_array(_change) else
    jsonb_path_query_array(_changes, '$[0 to 9]')
    || jsonb_build_array(jsonb_build_object('action', 'dropped', 'at', _changes -> -40 -> 'at', 'count'
        , jsonb_array_length(_changes) - 49
        + case when _changes -> 10 ->> 'action' = 'dropped' then (_changes -> 10 ->> 'count')::int4 - 1 else 0 end))
    || jsonb_path_query_array(_changes, '$[last - 38 to last]')
    || jsonb_build_array(_change)
end;

-- The changes of an event whose claim is replaced: one that lapsed, as its worker died or was cut off, is recorded.
create or replace function agent.after_lapse(_changes jsonb, _claimed_by text, _vt timestamptz) returns jsonb
language sql stable parallel safe
set search_path = pg_catalog, pg_temp
return case when _claimed_by is null then _changes
    else agent.add_change(_changes, jsonb_build_object('action', 'lapsed', 'at', _vt, 'by', _claimed_by)) end;

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
    -- What history is searched for by its event_ts keeps it: Slack's and bare events, and webhooks' calls.
    , event_ts = case when _old.kind like 'slack.%' or _old.kind = 'event' or _old.item_key like 'webhook:%' then event_ts else _new_vt end
    , changes = agent.add_change(agent.after_lapse(changes, claimed_by, vt), jsonb_build_object('action', _action, 'at', agent.clock(), 'by', _by
        , 'from', jsonb_build_object('run_at', _old.vt), 'to', jsonb_build_object('run_at', _new_vt)))
    where id = _old.id;
    perform agent.reelect(array[_old.group_key]);
    perform pg_notify('agent_event', '');
end
$$;
