-- Cancels an event by its item key. Answers 'cancelled' (in history now), 'running' (its attempt goes on; if that does not
-- complete, the event is cancelled instead of tried again), or null: no such event is in the queue.
create or replace function agent.cancel_event(_item_key text) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
begin
    return agent.cancel_job((select id from agent.event where item_key = agent.bounded_key(_item_key)));
end
$$;
