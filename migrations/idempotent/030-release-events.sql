-- Gives claimed events back at once, their attempts not counted.
create or replace function agent.release_events(_ids int8[], _claims int4[])
returns table (ordinal int4, answer text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    _held int8[] := agent.hold_claims(_ids, _claims);
begin
    perform agent.give_back(_held);
    return query select a.ordinal, a.answer from agent.settle_answers(_ids, _claims, _held) as a;
end
$$;
