-- Cancels an event by its id; answers as cancel_event does.
create or replace function agent.cancel_job(_id int8) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    _found agent.event;
begin
    perform agent.hold_group((select group_key from agent.event where id = _id));
    select * into _found from agent.event where id = _id for update;
    if not found then
        return null;
    elsif _found.claimed_by is not null and _found.vt > agent.clock() then
        update agent.event set cancelled_by = session_user where id = _id;
        return 'running';
    end if;
    perform agent.fence_behind(_id);
    perform agent.archive_events(array[_id], 'cancelled', 'cancelled by ' || session_user);
    return 'cancelled';
end
$$;
