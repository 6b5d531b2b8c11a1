-- Moves an event to another time by its item key. Answers 'rescheduled', 'running' or 'waiting' (for its children or an answer;
-- nothing was changed), or null: no such event is in the queue.
create or replace function agent.reschedule_event(_item_key text, _run_at timestamptz) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    _found agent.event;
begin
    if _run_at is null or not isfinite(_run_at) then
        raise invalid_parameter_value using message = format('an event cannot be rescheduled to %s', coalesce(_run_at::text, 'null'));
    end if;
    perform agent.hold_group((select group_key from agent.event where item_key = agent.bounded_key(_item_key)));
    select * into _found from agent.event where item_key = agent.bounded_key(_item_key) for update;
    if not found then
        return null;
    elsif _found.claimed_by is not null and _found.vt > agent.clock() then
        return 'running';
    elsif _found.vt = 'infinity' then
        return 'waiting';
    end if;
    perform agent.move_event(_found, _run_at, _found.event, 'rescheduled', session_user);
    return 'rescheduled';
end
$$;
