-- Cancels an event by its item key. Answers 'cancelled' (in history now), 'running' (its attempt goes on; if that does not
-- complete, the event is cancelled instead of tried again), or null: no such event is in the queue.
create or replace function agent.cancel_event(_item_key text) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
    _found record;
begin
    perform from agent.event where head and group_key = (select group_key from agent.event where item_key = _item_key) for update;
    select id, claimed_by is not null and vt > agent.clock() as running into _found from agent.event where item_key = _item_key for update;
    if not found then
        return null;
    elsif _found.running then
        update agent.event set cancelled_by = session_user where id = _found.id;
        return 'running';
    end if;
    perform agent.archive_events(array[_found.id], 'cancelled', 'cancelled by ' || session_user);
    return 'cancelled';
end
$$;
