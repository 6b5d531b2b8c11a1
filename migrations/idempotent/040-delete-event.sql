-- Marks an event as processed: moves it to history as completed, whoever holds it. An unknown id does nothing.
create or replace function agent.delete_event(_id int8) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
begin
    perform agent.hold_group((select group_key from agent.event where id = _id));
    perform from agent.event where id = _id for update;
    perform agent.fence_behind(_id);
    perform agent.archive_events(array[_id], 'completed');
end
$$;
