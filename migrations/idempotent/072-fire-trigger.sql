-- Stores a webhook's call as an event of kind trigger-fire; the webhook's id makes a repeated delivery find the first.
create or replace function agent.fire_trigger(_name text, _webhook_id text, _payload jsonb, _traceparent text default null, out id int8, out duplicate boolean)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    _new agent.event := agent.job_from_json(jsonb_build_object('kind', 'trigger-fire', 'traceparent', _traceparent
        , 'item_key', 'webhook:' || _name || ':' || _webhook_id, 'enqueued_by', 'webhook:' || _name
        , 'payload', jsonb_build_object('trigger', _name, 'webhook_id', _webhook_id, 'payload', _payload)));
begin
    select added.id, added.duplicate into id, duplicate from agent.add_event(_new, false, true) as added;
end
$$;
