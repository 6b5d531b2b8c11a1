-- Puts a claimed event off for a while, its attempt not counted; it does not block its group meanwhile.
create or replace function agent.snooze_event(_id int8, _claim int4, _pause interval) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set lock_timeout = '30ms'
as $$
declare
    _held int8[];
begin
    begin
        _held := agent.give_back(agent.hold_claims(array[_id], array[_claim]), array[_pause]);
    exception when lock_not_available or deadlock_detected then
        _held := '{}';
    end;
    return (select answer from agent.settle_answers(array[_id], array[_claim], _held));
end
$$;
