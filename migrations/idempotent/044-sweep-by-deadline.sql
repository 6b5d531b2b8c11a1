-- Moves up to _limit events whose own deadline has passed to history, as expired; returns how many. An attempt that is still
-- running may go on past the deadline; one whose lease has lapsed is not begun again.
create or replace function agent.sweep_by_deadline(_limit int4) returns int4
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    _now timestamptz := agent.clock();
    _ids int8[] := agent.lock_for_sweep(array(
        select e.id from agent.event as e where e.deadline < _now and (e.claimed_by is null or e.vt <= _now)
        and not exists (select from agent.kind where kind = e.kind and paused)
        order by e.deadline limit _limit));
begin
    _ids := array(select id from agent.event where id = any(_ids) and deadline < _now and (claimed_by is null or vt <= _now));
    perform agent.fence_members(array(
        select group_key from agent.event where id = any(_ids) and head and group_key is not null and claimed_by is not null order by group_key), _now);
    return agent.archive_possible(_ids, 'expired', 'deadline_passed');
end
$$;
