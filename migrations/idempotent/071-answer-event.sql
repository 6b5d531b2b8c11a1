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
    select * into _found from agent.event where id = _id for update;
    if not found or _found.deadline < agent.clock() then
        return 'unknown';
    elsif _found.claimed_by is not null then
        return 'running';
    elsif _found.vt < 'infinity' or _found.waits_for > 0 then
        return 'unknown';
    end if;
    perform agent.archive_events(array[_id], 'completed', null, array[_id], null, array[_result]);
    return 'done';
end
$$;

-- The same for whoever may answer only what was dispatched to one of these remote agents; anything else is unknown to it.
create or replace function agent.answer_dispatch(_id int8, _agents text[], _result jsonb) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
begin
    if exists (select from agent.event where id = _id and kind = 'dispatch-execute' and event ->> 'agent' = any(_agents)) then
        return agent.answer_event(_id, _result);
    end if;
    return 'unknown';
end
$$;
