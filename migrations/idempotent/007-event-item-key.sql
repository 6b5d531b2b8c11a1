-- The natural key: Slack's event_id; of a command or an interaction, a hash of its trigger_id; else one of the content.
create or replace function agent.event_item_key(_event jsonb) returns text
language plpgsql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    return agent.bounded_key(case
        when _event ->> 'event_id' <> '' then _event ->> 'event_id'
        when _event ->> 'trigger_id' <> '' then 'trigger:' || encode(sha256(convert_to(_event ->> 'trigger_id', 'UTF8')), 'hex')
        else 'sha256:' || encode(sha256(convert_to(_event::text, 'UTF8')), 'hex') end);
end
$$;
