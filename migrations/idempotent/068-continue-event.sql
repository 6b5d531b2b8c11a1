-- Completes a claimed event and starts its children and their continuation, in one transaction and fenced: a handler that
-- is tried again starts them once. The continuation stands in for the event: whatever waited for that waits for this. Busy
-- also where a child, or its group, cannot be entered at once because of another transaction.
create or replace function agent.continue_event(_id int8, _claim int4, _children jsonb, _continuation jsonb, _result jsonb default null) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set lock_timeout = '100ms'
as $$
declare
    _held int8[];
    _continues int8;
begin
    begin
        _held := agent.hold_claims(array[_id], array[_claim]);
        if _held <> '{}' then
            select continuation_id into _continues from agent.event where id = _id;
            perform agent.fan_out(_children, _continuation, _continues);
            update agent.event set continuation_id = null where id = _id;
            perform agent.archive_events(_held, 'completed', null, _held, null, array[_result]);
            -- At once, not at commit: waiting for a head is bounded here.
            set constraints agent.member_joins immediate;
        end if;
    exception when lock_not_available or deadlock_detected then
        _held := '{}';
    end;
    return (select answer from agent.settle_answers(array[_id], array[_claim], _held));
end
$$;
