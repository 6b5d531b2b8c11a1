-- Wakes the workers. Identical payloads merge within a transaction; the notice is sent at commit.
create or replace function agent.event_inserted() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pg_notify('agent_event', '');
    return null;
end
$$;

create or replace trigger event_inserted after insert on agent.event
for each statement execute function agent.event_inserted();
