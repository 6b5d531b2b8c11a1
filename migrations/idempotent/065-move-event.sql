-- Gives an event that is not running (a claim that lapsed ends here) another time, and perhaps another payload, and records
-- the change. The caller holds its lock and its head's.
create or replace function agent.move_event(_old agent.event, _vt timestamptz, _event jsonb, _action text, _by text) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    _new_vt timestamptz := greatest(_vt, agent.clock());
begin
    update agent.event
    set vt = _new_vt, event = _event, retrying = false, claimed_by = null, heartbeat_at = null
    -- What history is searched for by its event_ts keeps it: Slack's and bare events, and webhooks' calls.
    , event_ts = case when _old.kind like 'slack.%' or _old.kind = 'event' or _old.item_key like 'webhook:%' then event_ts else _new_vt end
    , changes = changes || jsonb_build_object('action', _action, 'at', agent.clock(), 'by', _by, 'from', jsonb_build_object('run_at', _old.vt)
        , 'to', jsonb_build_object('run_at', _new_vt))
    where id = _old.id;
    perform agent.reelect(array[_old.group_key]);
    perform pg_notify('agent_event', '');
end
$$;
