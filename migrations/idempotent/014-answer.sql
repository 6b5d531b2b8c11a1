-- Answers in the HTTP response to Slack's request (docs/adr/0042-synchronous-answers.md). Ingest
-- stores a command or an interaction, and a row for the request that waits. A worker answers that
-- row, and a notification brings the answer to the ingest process.
--   insert_requests: ingest, for a batch with commands or interactions
--   answer_requests: a worker answers
--   take_answers: ingest takes answers, and ends requests
--   order_kinds: interactions that keep their thread's order; a worker's announcement

-- Inserts a batch as insert_events does. _waits: for how long the request of each event waits for
-- an answer; null: it does not. _channel: where this ingest process listens. waits: whether an
-- answer is possible: the event is live, and a worker that knows of answers handles its kind, and
-- is alive or has just retired. A request that repeats a live event waits beside the first one. A
-- menu's question has one attempt, and a deadline when its request stops waiting. A command or a
-- modal that no live worker handles, though others live, gets the answer false at once: the request
-- is refused, and the event expires unhandled.
create or replace function agent.insert_requests
( _events jsonb[], _traceparents text[], _item_keys text[], _waits interval[], _channel text)
returns table (ordinal int4, id int8, duplicate boolean, waits boolean)
language plpgsql security definer set enable_seqscan = off set lock_timeout = '500ms' as $$
declare
    _ordinals int4[]; _ids int8[]; _duplicates boolean[]; _waiting int8[];
    _unhandled int8[] := '{}';
begin
    select array_agg(i.ordinal), array_agg(i.id), array_agg(i.duplicate) into _ordinals, _ids, _duplicates
    from agent.insert_events(_events, _traceparents, _item_keys) as i;
    -- In a new statement, which sees the events.
    insert into agent.request (event_id, channel, waits_until)
    select i.id, _channel, max(agent.clock() + _waits[i.ordinal])
    from unnest(_ordinals, _ids) as i (ordinal, id) where _waits[i.ordinal] is not null and exists (
        select from agent.event as e where e.id = i.id and (
            exists (select from agent.worker as w
                where e.kind = any(w.kinds) and w.ordered is not null and w.died_at is null
                and agent.worker_alive(w.seen_at))
            or exists (select from agent.kind as k
                where k.kind = e.kind and agent.worker_alive(k.handled_at))))
    group by i.id order by i.id on conflict do nothing;
    _waiting := array(select r.event_id from agent.request as r
        where r.event_id = any(_ids) and r.channel = _channel and r.answer is null);
    if exists (select from agent.worker as w where w.died_at is null and agent.worker_alive(w.seen_at)) then
        _unhandled := array(
            select e.id from unnest(_ordinals, _ids, _duplicates) as i (ordinal, id, duplicate)
            join agent.event as e on e.id = i.id
            where not i.duplicate and _waits[i.ordinal] is not null and e.id <> all(_waiting)
            and (e.kind like 'slack.command.%' or e.kind = 'slack.view_submission'));
    end if;
    if _unhandled <> '{}' then
        insert into agent.request (event_id, channel, waits_until, answer)
        select one, _channel, agent.clock() + interval '3 s', 'false' from unnest(_unhandled) as one;
        update agent.event as e set deadline = agent.clock() where e.id = any(_unhandled);
        perform pg_notify(_channel, one || ' false') from unnest(_unhandled) as one;
        _waiting := _waiting || _unhandled;
    end if;
    update agent.event as e set max_attempts = 1, deadline = agent.clock() + _waits[i.ordinal]
    from unnest(_ordinals, _ids, _duplicates) as i (ordinal, id, duplicate)
    where e.id = i.id and not i.duplicate and _waits[i.ordinal] is not null
    and e.kind = 'slack.block_suggestion';
    return query select i.ordinal, i.id, i.duplicate, _waits[i.ordinal] is not null and i.id = any(_waiting)
    from unnest(_ordinals, _ids, _duplicates) as i (ordinal, id, duplicate);
end $$;

-- Answers the requests that wait for these events, each with JSON: null, a text or an object. The
-- claim must stand; after the event's end, only null is taken. Returns the ids whose answer was
-- taken: one per request. A small answer travels in the notification; ingest fetches a large one.
-- Waits for no lock: another transaction is answering or ending that request.
create or replace function agent.answer_requests(_ids int8[], _claims int4[], _answers text[]) returns int8[]
language plpgsql security definer set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare _taken int8[];
begin
    with open as (
        select r.event_id, r.channel, given.answer
        from unnest(_ids, _claims, _answers) as given (id, claim, answer)
        join agent.request as r on r.event_id = given.id
        where r.answer is null and r.waits_until > agent.clock()
        and case when exists (select from agent.event as e where e.id = given.id)
            then exists (select from agent.event as e
                where e.id = given.id and agent.claim_stands(e.claimed_by, e.claimed, given.claim))
            else given.answer = 'null' end
        for update of r skip locked
    ), answered as (
        update agent.request as r set answer = open.answer from open
        where r.event_id = open.event_id and r.channel = open.channel
        returning r.event_id, r.channel, r.answer)
    select array_agg(told.event_id) into _taken from (
        select event_id, pg_notify(channel
            , event_id || case when octet_length(answer) < 7900 then ' ' || answer else '' end) from answered
    ) as told;
    return coalesce(_taken, '{}');
end $$;

-- Takes the answers to requests of one ingest process, and ends the requests of _ending, answered
-- or not: they take no answer then. Skips requests that a worker is just answering.
create or replace function agent.take_answers(_channel text, _ids int8[], _ending int8[])
returns table (event_id int8, answer text) language sql security definer set enable_seqscan = off as $$
    delete from agent.request as r using (
        select held.event_id from agent.request as held
        where held.event_id = any(_ids || _ending) and held.channel = _channel
        and (held.answer is not null or held.event_id = any(_ending)) for update skip locked
    ) as held
    where r.event_id = held.event_id and r.channel = _channel returning r.event_id, r.answer $$;

-- Records which of a worker's kinds keep their thread's order. If workers differ, the last to start
-- decides. Call it after announce_worker.
create or replace function agent.order_kinds(_name text, _ordered text[]) returns void
language plpgsql security definer as $$ declare _worker agent.worker;
begin
    update agent.worker set ordered = _ordered where name = _name returning * into _worker;
    update agent.kind as k set ordered = k.kind = any(_ordered)
    where k.kind in (
        select known.kind from agent.kind as known
        where known.kind = any(_worker.kinds) and known.ordered <> (known.kind = any(_ordered))
        and not exists (select from agent.worker as w
            where known.kind = any(w.kinds) and w.ordered is not null and w.started_at > _worker.started_at)
        order by known.kind for update skip locked);
end $$;
