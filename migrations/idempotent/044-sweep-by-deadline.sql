-- Moves up to _limit unclaimed events whose own deadline has passed to history, as expired; returns how many.
create or replace function agent.sweep_by_deadline(_limit int4) returns int4
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
    _now timestamptz := agent.clock();
    _ids int8[] := agent.lock_for_sweep(array(
        select e.id from agent.event as e where e.deadline < _now and e.claimed_by is null
        and not exists (select from agent.kind where kind = e.kind and paused)
        order by e.deadline limit _limit));
begin
    _ids := array(select id from agent.event where id = any(_ids) and deadline < _now and claimed_by is null);
    perform agent.archive_events(_ids, 'expired', 'deadline_passed');
    return cardinality(_ids);
end
$$;
