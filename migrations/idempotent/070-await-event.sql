-- Parks a claimed event until agent.answer_event ends it; past its deadline it expires. One that was asked to be cancelled
-- meanwhile ends here. Fenced.
create or replace function agent.await_event(_id int8, _claim int4, _deadline timestamptz) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set lock_timeout = '100ms'
as $$
declare
    _held int8[];
    _cancelled int8[];
begin
    begin
        _held := agent.hold_claims(array[_id], array[_claim]);
        _cancelled := array(select id from agent.event where id = any(_held) and cancelled_by is not null);
        _held := agent.hold_endings(_held, _cancelled, 'cancelled');
        if _held <> '{}' then
            perform agent.archive_events(_cancelled, 'cancelled', 'cancelled while running');
            update agent.event set vt = 'infinity', deadline = _deadline, claimed_by = null, heartbeat_at = null, retrying = false where id = _id;
            perform agent.reelect(array[group_key]) from agent.event where id = _id and group_key is not null;
        end if;
    exception when lock_not_available or deadlock_detected then
        _held := '{}';
    end;
    return (select answer from agent.settle_answers(array[_id], array[_claim], _held));
end
$$;
