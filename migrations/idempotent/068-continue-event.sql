-- Completes a claimed event and starts its children and their continuation, in one transaction and fenced: a handler that
-- is tried again starts them once. The continuation stands in for the event: whatever waited for that waits for this.
create or replace function agent.continue_event(_id int8, _claim int4, _children jsonb, _continuation jsonb, _result jsonb default null) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    _held int8[] := agent.hold_claims(array[_id], array[_claim]);
    _continues int8;
begin
    if _held <> '{}' then
        select continuation_id into _continues from agent.event where id = _id;
        perform agent.fan_out(_children, _continuation, _continues);
        update agent.event set continuation_id = null where id = _id;
        perform agent.archive_events(_held, 'completed', null, _held, null, array[_result]);
    end if;
    return (select answer from agent.settle_answers(array[_id], array[_claim], _held));
end
$$;
