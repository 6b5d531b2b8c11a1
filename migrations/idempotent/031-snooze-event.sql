-- Puts a claimed event off for a while, its attempt not counted; it does not block its group meanwhile.
create or replace function agent.snooze_event(_id int8, _claim int4, _pause interval) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    _held int8[] := agent.hold_claims(array[_id], array[_claim]);
begin
    perform agent.give_back(_held, array[_pause]);
    return (select answer from agent.settle_answers(array[_id], array[_claim], _held));
end
$$;
