-- Locks the head of a group, waiting for whoever holds it, so that the group changes in this transaction alone. For update from
-- the start: a weaker lock, raised when the head is deleted, would deadlock with an insert that is raising its own.
create or replace function agent.hold_group(_group_key text) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
begin
    while _group_key is not null loop
        perform from agent.event where group_key = _group_key and head for update;
        -- Not found, though there is one: another row became the head while we waited; the next statement sees it.
        exit when found or not exists (select from agent.event where group_key = _group_key and head);
    end loop;
end
$$;
