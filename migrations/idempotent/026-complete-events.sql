-- Moves claimed events to history as completed, with their results; each answers done, stale or busy.
create or replace function agent.complete_events(_ids int8[], _claims int4[], _results jsonb[] default null)
returns table (ordinal int4, answer text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
declare
    _held int8[] := agent.hold_claims(_ids, _claims);
begin
    perform agent.archive_events(_held, 'completed', null, agent.latest_claims(_ids, _claims), null, _results);
    return query select a.ordinal, a.answer from agent.settle_answers(_ids, _claims, _held) as a;
end
$$;
