-- Keeps what a handler must find again on its next attempt, such as the timestamp of a stream it began. Fenced.
create or replace function agent.note_event(_id int8, _claim int4, _notes jsonb) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    _held int8[] := agent.hold_claims(array[_id], array[_claim]);
begin
    update agent.event set notes = _notes where id = any(_held);
    return (select answer from agent.settle_answers(array[_id], array[_claim], _held));
end
$$;
