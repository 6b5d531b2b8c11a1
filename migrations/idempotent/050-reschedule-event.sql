-- Moves an event to another time by its item key. Answers 'rescheduled', 'running' (nothing was changed), or null: no such
-- event is in the queue.
create or replace function agent.reschedule_event(_item_key text, _run_at timestamptz) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
    _found record;
begin
    if _run_at is null or not isfinite(_run_at) then
        raise invalid_parameter_value using message = format('an event cannot be rescheduled to %s', coalesce(_run_at::text, 'null'));
    end if;
    perform from agent.event where head and group_key = (select group_key from agent.event where item_key = _item_key) for update;
    select id, group_key, claimed_by is not null as claimed into _found from agent.event where item_key = _item_key for update;
    if not found then
        return null;
    elsif _found.claimed then
        return 'running';
    end if;
    update agent.event set vt = greatest(_run_at, agent.clock()), event_ts = case when kind like 'slack.%' then event_ts else _run_at end
    , retrying = false where id = _found.id;
    perform agent.reelect(array[_found.group_key]);
    perform pg_notify('agent_event', '');
    return 'rescheduled';
end
$$;
