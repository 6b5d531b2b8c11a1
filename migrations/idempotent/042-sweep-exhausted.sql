-- Moves up to _limit events that lapsed on their last attempt to history, as expired; returns how many.
-- A last attempt that is still running is never one of them: its vt lies ahead.
create or replace function agent.sweep_exhausted(_max_attempts int4, _limit int4) returns int4
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
    _now timestamptz := agent.clock();
    _ids int8[] := agent.lock_for_sweep(array(
        select e.id from agent.event as e where e.attempts > 0 and e.vt <= _now and e.attempts >= coalesce(e.max_attempts, _max_attempts)
        and not exists (select from agent.kind where kind = e.kind and paused)
        order by e.vt limit _limit));
begin
    -- Again, now that they are locked: a lease may have been renewed or an attempt given back meanwhile.
    _ids := array(select id from agent.event where id = any(_ids) and vt <= _now and attempts >= coalesce(max_attempts, _max_attempts));
    perform agent.archive_events(_ids, 'expired', 'attempts_exhausted');
    return cardinality(_ids);
end
$$;
