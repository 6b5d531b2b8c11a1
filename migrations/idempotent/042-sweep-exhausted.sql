-- Moves up to _limit events that lapsed on their last attempt to history, as expired, and those that lapsed after they were asked
-- to be cancelled, as cancelled; returns how many. An attempt that is still running is never one of them: its vt lies ahead.
-- Of a group only the head is judged: what was held with it goes back unspent. The maximum is the event's own, else its kind's;
-- _max_attempts holds where both are unknown, and of _kinds only, where they are given: other teams' events are not judged by it.
create or replace function agent.sweep_exhausted(_max_attempts int4, _limit int4, _kinds text[] default null) returns int4
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    _now timestamptz := agent.clock();
    _given int4 := case when _kinds is null then _max_attempts end;
    _known text[];
    _most int4[];
    _ids int8[];
    _cancelled int8[];
begin
    -- As arrays: a join with the kinds would sort whatever has been attempted before it took the oldest.
    select array_agg(k.kind), array_agg(coalesce(k.max_attempts, case when k.kind = any(_kinds) then _max_attempts else _given end))
    into _known, _most from agent.kind as k;
    _ids := agent.lock_for_sweep(array(
        select e.id from agent.event as e where e.attempts > 0 and e.vt <= _now and e.head
        and (e.attempts >= coalesce(e.max_attempts, _most[array_position(_known, e.kind)]) or e.cancelled_by is not null)
        and not exists (select from agent.kind where kind = e.kind and paused)
        order by e.vt limit _limit));
    -- Again, now that they are locked: a lease may have been renewed or an attempt given back meanwhile.
    _ids := array(
        select e.id from agent.event as e where e.id = any(_ids) and e.vt <= _now and e.head
        and (e.attempts >= coalesce(e.max_attempts, _most[array_position(_known, e.kind)]) or e.cancelled_by is not null));
    _cancelled := array(select id from agent.event where id = any(_ids) and cancelled_by is not null);
    perform agent.fence_members(array(select group_key from agent.event where id = any(_ids) and group_key is not null order by group_key), _now);
    return agent.archive_possible(_cancelled, 'cancelled', 'cancelled while running')
        + agent.archive_possible(array(select unnest(_ids) except select unnest(_cancelled)), 'expired', 'attempts_exhausted');
end
$$;
