-- Ends an event that awaits an answer, as completed with the answer as its result. Answers 'done', 'running' when its attempt has not
-- parked it yet (try again), or 'unknown': it awaits nothing, or its deadline has passed.
create or replace function agent.answer_event(_id int8, _result jsonb) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    _found agent.event;
begin
    perform agent.hold_group((select group_key from agent.event where id = _id));
    select * into _found from agent.event where id = _id and kind = 'dispatch-execute' for update;
    if not found or _found.deadline < agent.clock() then
        return 'unknown';
    elsif _found.claimed_by is not null then
        return 'running';
    elsif _found.vt < 'infinity' then
        return 'unknown';
    end if;
    perform agent.archive_events(array[_id], 'completed', null, array[_id], null, array[_result]);
    return 'done';
end
$$;
