-- Why an event is not running, in one word, and what that means here: running, ended, paused, waits_for_children, awaits_answer, future,
-- retrying, group_busy, group_waits, exhausted, no_worker, due; null: no such event.
create or replace function agent.why_waiting(_id int8, _max_attempts int4 default null, out reason text, out detail text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    _now timestamptz := agent.clock();
    _e agent.event;
    _head agent.event;
    _most int4;
begin
    select * into _e from agent.event where id = _id;
    if not found then
        select 'ended', 'ended as ' || outcome || coalesce(': ' || h.reason, '') || ' at ' || finished_at into reason, detail
        from agent.event_hist as h where h.id = _id order by finished_at desc limit 1;
        return;
    end if;
    _most := coalesce(_e.max_attempts, (agent.attempts_of(array[_e.kind], _max_attempts))[1]);
    select * into _head from agent.event where group_key = _e.group_key and head and id <> _id;
    select c.reason, c.detail into reason, detail from (values
        (_e.claimed_by is not null and _e.vt > _now, 'running', format('held by %s since %s', _e.claimed_by, _e.claimed[array_upper(_e.claimed, 1)])),
        (exists (select from agent.kind where kind = _e.kind and paused), 'paused', format('kind %s is paused', _e.kind)),
        (_e.waits_for > 0, 'waits_for_children', format('%s children have not ended', _e.waits_for)),
        (_e.vt = 'infinity', 'awaits_answer', format('until %s', _e.deadline)),
        (_e.vt > _now and _e.retrying, 'retrying', format('attempt %s begins at %s', _e.attempts + 1, _e.vt)),
        (_e.vt > _now, 'future', format('scheduled for %s', _e.vt)),
        (_e.attempts >= _most, 'exhausted', format('%s of %s attempts; the next sweep expires it', _e.attempts, _most)),
        (_head.claimed_by is not null and _head.vt > _now, 'group_busy', format('event %s of its group is held by %s', _head.id, _head.claimed_by)),
        (_head.id is not null, 'group_waits', format('event %s of its group comes first', _head.id)),
        (not exists (select from agent.worker where _e.kind = any(kinds) and agent.worker_alive(seen_at)), 'no_worker'
            , format('no running worker handles kind %s', _e.kind)),
        (true, 'due', 'visible; a worker claims it next')
    ) as c (holds, reason, detail) where c.holds limit 1;
end
$$;
