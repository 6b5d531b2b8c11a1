-- Keeps what a handler must find again on its next attempt, such as the timestamp of a stream it began. Fenced.
create or replace function agent.note_event(_id int8, _claim int4, _notes jsonb) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set lock_timeout = '100ms'
as $$
declare
    _held int8[];
begin
    begin
        _held := agent.hold_claims(array[_id], array[_claim]);
        update agent.event set notes = _notes where id = any(_held);
    exception when lock_not_available or deadlock_detected then
        _held := '{}';
    end;
    return (select answer from agent.settle_answers(array[_id], array[_claim], _held));
end
$$;
