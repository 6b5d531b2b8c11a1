-- Moves up to _limit events that lapsed on their last attempt to history, as expired, and those that lapsed after they were asked
-- to be cancelled, as cancelled; returns how many. An attempt that is still running is never one of them: its vt lies ahead.
-- Of a group only the head is judged: what was held with it goes back unspent.
create or replace function agent.sweep_exhausted(_max_attempts int4, _limit int4) returns int4
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    _now timestamptz := agent.clock();
    _ids int8[] := agent.lock_for_sweep(array(
        select e.id from agent.event as e where e.attempts > 0 and e.vt <= _now and e.head
        and (e.attempts >= coalesce(e.max_attempts, _max_attempts) or e.cancelled_by is not null)
        and not exists (select from agent.kind where kind = e.kind and paused)
        order by e.vt limit _limit));
begin
    -- Again, now that they are locked: a lease may have been renewed or an attempt given back meanwhile.
    _ids := array(
        select id from agent.event where id = any(_ids) and vt <= _now and head
        and (attempts >= coalesce(max_attempts, _max_attempts) or cancelled_by is not null));
    perform agent.fence_members(array(select group_key from agent.event where id = any(_ids) and group_key is not null order by group_key), _now);
    perform agent.archive_events(array(select id from agent.event where id = any(_ids) and cancelled_by is not null)
        , 'cancelled', 'cancelled while running');
    perform agent.archive_events(_ids, 'expired', 'attempts_exhausted');
    return cardinality(_ids);
end
$$;
