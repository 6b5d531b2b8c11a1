-- Enqueues a job; returns its id, or the id of the one that is pending under its dedupe key or live under its item key.
-- A job happens when it is to run: its event_ts is its run_at, so that a group hands over what is due in order.
create or replace function agent.enqueue
( _kind text, _payload jsonb default '{}', _dedupe_key text default null, _run_at timestamptz default null, _max_attempts int4 default null
, _group_key text default null, _item_key text default null, _enqueued_by text default null, _deadline timestamptz default null
, _traceparent text default null
) returns int8
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    _new agent.event;
begin
    if _kind is null or _kind = '' or length(_kind) > 200 then
        raise invalid_parameter_value using message = 'a kind has 1 to 200 characters';
    end if;
    if not isfinite(_run_at) then
        raise invalid_parameter_value using message = format('a job cannot run at %s', _run_at);
    end if;
    _new.vt := greatest(_run_at, agent.clock());
    _new.event_ts := _new.vt;
    _new.event := coalesce(_payload, '{}');
    _new.kind := _kind;
    _new.dedupe_key := agent.bounded_key(_dedupe_key);
    _new.item_key := agent.bounded_key(_item_key);
    _new.group_key := agent.bounded_key(_group_key);
    _new.max_attempts := _max_attempts;
    _new.deadline := _deadline;
    _new.enqueued_by := _enqueued_by;
    _new.traceparent := _traceparent;
    return (select id from agent.add_event(_new, true, false));
end
$$;
