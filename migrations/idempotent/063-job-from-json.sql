-- A job as JSON, the same names as enqueue's parameters, as a row to add: {"kind": …, "payload": …, "run_at": …, …}.
create or replace function agent.job_from_json(_job jsonb) returns agent.event
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    _new agent.event;
begin
    _new.kind := _job ->> 'kind';
    if _new.kind is null or _new.kind = '' or length(_new.kind) > 200 then
        raise invalid_parameter_value using message = 'a kind has 1 to 200 characters';
    end if;
    _new.vt := greatest((_job ->> 'run_at')::timestamptz, agent.clock());
    if not isfinite(_new.vt) then
        raise invalid_parameter_value using message = format('a job cannot run at %s', _new.vt);
    end if;
    -- A job happens when it is to run, so that a group hands over what is due in order.
    _new.event_ts := _new.vt;
    _new.event := coalesce(nullif(_job -> 'payload', 'null'), '{}');
    _new.dedupe_key := agent.bounded_key(_job ->> 'dedupe_key');
    _new.item_key := agent.bounded_key(_job ->> 'item_key');
    _new.group_key := agent.bounded_key(_job ->> 'group_key');
    _new.max_attempts := (_job ->> 'max_attempts')::int4;
    if _new.max_attempts < 1 then  -- not left to the constraint, whose violation quotes the row in PostgreSQL's log
        raise invalid_parameter_value using message = 'max_attempts is at least 1';
    end if;
    _new.deadline := (_job ->> 'deadline')::timestamptz;
    _new.enqueued_by := _job ->> 'enqueued_by';
    _new.traceparent := _job ->> 'traceparent';
    return _new;
end
$$;
