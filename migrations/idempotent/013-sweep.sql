-- Sweeps in bounded steps: what expires, and what was left undone.
--   sweep_events, delete_expired_events: a worker's sweep, and a program's
--   archive_possible: moves to history what can be moved; sweeps, operators
--   sweep_exhausted, sweep_by_age, sweep_by_deadline: what expires; sweep_events
--   free_groups: heads that cannot be claimed; workers, operators, pauses, sweep_events
--   wrong_head: whether a group lacks its head; surelane verify
--   sweep_waiting, sweep_kinds: counts of children, kinds and bands; sweep_events

-- Archives events whose locks the caller holds; returns how many. An event stays that history
-- refuses, or whose continuation or next head is locked (agent.settle_alike).
create or replace function agent.archive_possible(_ids int8[], _outcome text, _reason text) returns int4
language sql security definer
return cardinality(agent.settle_alike(_outcome, _ids, null
        , array_fill(to_jsonb(_reason), array[cardinality(_ids)]), false));

-- Moves up to _limit lapsed events to history: as expired after their last attempt, as cancelled if
-- that was asked for. Returns how many. Of a group only the head is judged: members that were held
-- with it go back unspent. The maximum is the event's own, else its kind's, else _max_attempts, for
-- _kinds alone where they are given.
create or replace function agent.sweep_exhausted(_max_attempts int4, _limit int4, _kinds text[]) returns int4
language plpgsql security definer set enable_seqscan = off as $$
declare
    _now timestamptz := agent.clock(); _given int4 := case when _kinds is null then _max_attempts end;
    _known text[]; _most int4[]; _ids int8[]; _unfenced text[]; _cancelled int8[];
begin
    -- As arrays: a join with the kinds would sort all attempted events before it took the oldest.
    select array_agg(k.kind), array_agg(coalesce(k.max_attempts
            , case when k.kind = any(_kinds) then _max_attempts else _given end))
    into _known, _most from agent.kind as k;
    _ids := agent.lock_for_sweep(array(
        select e.id from agent.event as e where e.attempts > 0 and e.vt <= _now and e.head
        and (e.attempts >= coalesce(e.max_attempts, _most[array_position(_known, e.kind)])
            or e.cancelled_by is not null)
        and not exists (select from agent.kind where kind = e.kind and paused)
        order by e.vt limit _limit));
    -- Again, now that they are locked: a lease may have been renewed, a claim released.
    _ids := array(
        select e.id from agent.event as e where e.id = any(_ids) and e.vt <= _now and e.head
        and (e.attempts >= coalesce(e.max_attempts, _most[array_position(_known, e.kind)])
            or e.cancelled_by is not null));
    _unfenced := agent.fence_groups(array(select group_key from agent.event
            where id = any(_ids) and group_key is not null order by group_key), _now);
    _ids := array(select id from agent.event
        where id = any(_ids) and (group_key is null or group_key <> all(_unfenced)));
    _cancelled := array(select id from agent.event where id = any(_ids) and cancelled_by is not null);
    return agent.archive_possible(_cancelled, 'cancelled', 'cancelled while running')
        + agent.archive_possible(
            array(select unnest(_ids) except select unnest(_cancelled)), 'expired', 'attempts_exhausted');
end $$;

-- Moves up to _limit events to history, as expired, that have been visible and unclaimed for longer
-- than _max_vt_age; returns how many. _kinds null: of every kind that is not paused. Members that
-- are as old go before their head: the next head would look young.
create or replace function agent.sweep_by_age(_max_vt_age interval, _kinds text[], _limit int4) returns int4
language plpgsql security definer set enable_bitmapscan = off set enable_sort = off as $$
declare
    _since timestamptz := agent.clock() - _max_vt_age;
    _swept text[] := array(select kind from agent.kind
        where not paused and (_kinds is null or kind = any(_kinds)));
    _ids int8[] := agent.lock_for_sweep(array(
        select batch.id from agent.live_kinds() as live
        cross join lateral (
            select id, group_key from agent.event
            where head and event.lane = live.lane and event.kind = live.kind and vt < _since
            and claimed_by is null and live.kind in (select unnest(_swept)) order by vt limit _limit
        ) as h
        cross join lateral (
            (select m.id from agent.event as m
            where m.group_key = h.group_key and not m.head and m.claimed_by is null
             and m.vt < _since and m.kind = any(_swept) order by m.event_ts, m.id limit _limit)
            union all
            select h.id
        ) as batch limit _limit));
begin
    _ids := array(select id from agent.event where id = any(_ids) and vt < _since and claimed_by is null);
    return agent.archive_possible(_ids, 'expired', 'too_old');
end $$;

-- Moves up to _limit events whose deadline has passed to history, as expired; returns how many. A
-- running attempt may go on past it; a lapsed one is not begun again, unless it runs undos.
create or replace function agent.sweep_by_deadline(_limit int4) returns int4
language plpgsql security definer set enable_seqscan = off as $$
declare
    _now timestamptz := agent.clock();
    _ids int8[] := agent.lock_for_sweep(array(
        select e.id from agent.event as e where e.deadline < _now and (e.claimed_by is null or e.vt <= _now)
        and (e.notes ? 'undo') is not true
        and not exists (select from agent.kind where kind = e.kind and paused)
        order by e.deadline limit _limit));
begin
    _ids := array(select id from agent.event
        where id = any(_ids) and deadline < _now and (claimed_by is null or vt <= _now));
    perform agent.fence_lapsed(_ids);
    return agent.archive_possible(_ids, 'expired', 'deadline_passed');
end $$;

-- Goes over groups in the order of their keys, after _after, and elects another head where a group
-- has none, or where a member outranks an idle head. Ends after _limit of them, or 20 times as many
-- groups. Returns where to go on (null: the end), and how many it freed.
create or replace function agent.free_groups
( _after text default '', _limit int4 default 1000, out next text, out freed int4)
language plpgsql security definer set enable_seqscan = off set lock_timeout = '30ms' as $$
declare
    _now timestamptz := agent.clock(); _claimable text[] := agent.claimable_kinds(); _group record;
begin
    freed := 0;
    for _group in
        with recursive member (group_key, nth) as (
            (select group_key, 1 from agent.event where not head and group_key > coalesce(_after, '')
            order by group_key limit 1)
            union all
            select (select group_key from agent.event where not head and group_key > member.group_key
                order by group_key limit 1), nth + 1
            from member where member.group_key is not null and nth < _limit * 20)
        select member.group_key, nth, h.id is null as headless, wanting
        -- In the order of the walk, no further than needed: "offset 0" makes it a nested loop.
        from member left join lateral (select * from agent.event as e
            where e.group_key = member.group_key and e.head offset 0) as h on true
        -- One probe each for what may outrank a head: the function takes as long as ten.
        cross join lateral (select h.id is null or (h.claimed_by is null and (h.kind <> all(_claimable)
            or exists (select from agent.event as m
                where m.group_key = member.group_key and not m.head and m.claimed_by is null
                and (m.event_ts, m.id) < (h.event_ts, h.id))
            or exists (select from agent.event as m
                where m.group_key = member.group_key and not m.head and m.retrying)
            or exists (select from agent.event as m
                where m.group_key = member.group_key and not m.head and m.claimed_by is not null)
            or (h.vt > _now and exists (select from agent.event as m
                    where m.group_key = member.group_key and not m.head and m.vt < h.vt)))
            and agent.outranked(h, _claimable, _now)) as wanting) as judged
        where member.group_key is not null and (wanting or nth = _limit * 20)
    loop
        begin
            if _group.headless then
                perform agent.promote(_group.group_key);
                freed := freed + 1;
            elsif _group.wanting then
                perform from agent.event where group_key = _group.group_key and head and claimed_by is null
                for update skip locked;
                if found then
                    perform agent.reelect(array[_group.group_key]);
                    freed := freed + 1;
                end if;
            end if;
        exception
            when unique_violation or lock_not_available then
                null; -- another transaction gave it a head meanwhile, or has all its members locked
            when others then
                if agent.is_outage(sqlstate) then raise; end if;
                raise warning 'the group of event % gets no head: SQLSTATE %'
                    , (select min(id) from agent.event where group_key = _group.group_key), sqlstate;
        end;
        if freed >= _limit or _group.nth >= _limit * 20 then
            next := _group.group_key;
            return;
        end if;
    end loop;
end $$;

-- Whether a group has no head, or another head than agent.outranked says. Workers have two minutes
-- to sweep before a member counts that became visible behind its head.
create or replace function agent.wrong_head(_group_key text) returns boolean
language plpgsql security definer set enable_seqscan = off as $$
declare
    _now timestamptz := agent.clock();
    _since timestamptz := (
        select coalesce(max(_now - interval '2 minutes'), '-infinity') from agent.worker as w
        where w.died_at is null and agent.worker_alive(w.seen_at)
        and w.started_at < _now - interval '3 minutes');
    _claimable text[] := agent.claimable_kinds(); _head agent.event;
begin
    select * into _head from agent.event where group_key = _group_key and head;
    if not found then
        return exists (select from agent.event where group_key = _group_key);
    elsif _head.vt <= _now and _head.claimed_by is null and not _head.retrying and exists (
        select from agent.event as m where m.group_key = _group_key and not m.head and m.claimed = '{}'
        and m.vt <= least(_now, m.enqueued_at + interval '1 second')
        and (m.event_ts, m.id) < (_head.event_ts, _head.id)
        and (m.kind = any(_claimable) or _head.kind <> all(_claimable)))
    then
        return true;
    end if;
    _head.vt := case when _head.vt <= _now then least(_head.vt, _since) else _head.vt end;
    return agent.outranked(_head, _claimable, _since);
end $$;

-- Counts up to _limit continuations' children anew: some may be deleted by hand. Returns how many.
create or replace function agent.sweep_waiting(_limit int4 default 1000) returns int4
language plpgsql security definer set lock_timeout = '30ms' set enable_seqscan = off as $$
declare _waiting agent.event; _living int4; _healed int4 := 0;
begin
    -- Looks before it locks: children that end wait for the lock.
    for _waiting in
        select e.* from agent.event as e where e.waits_for is not null and e.waits_for > 0
        and e.waits_for > (select count(*) from agent.event as child where child.continuation_id = e.id)
        order by e.id limit _limit
    loop
        continue when agent.lock_for_sweep(array[_waiting.id]) = '{}';
        select * into _waiting from agent.event where id = _waiting.id;
        select count(*) into _living from agent.event where continuation_id = _waiting.id;
        if _living < _waiting.waits_for then
            begin
                perform agent.children_ended(
                    array_fill(_waiting.id, array[_waiting.waits_for - _living]), 'cancelled');
                _healed := _healed + 1;
            exception
                when lock_not_available or deadlock_detected then
                    null; -- another transaction has its group locked: the next sweep tries again
                when others then
                    if agent.is_outage(sqlstate) then raise; end if;
                    raise warning 'continuation % cannot go on: SQLSTATE %', _waiting.id, sqlstate;
            end;
        end if;
    end loop;
    return _healed;
end $$;

-- What a worker's sweep does in one bounded batch: lapsed last attempts, passed deadlines and,
-- where _by_age, events of _kinds that are too old, up to _limit of each. Returns how many it moved
-- to history: call it again until that is none. Before, where _mend (the first of many calls):
-- groups without a claimable head, continuations without children, unknown kinds. _max_attempts
-- holds for events without a maximum of their own or of their kind; null leaves those to others.
create or replace function agent.sweep_events
( _max_attempts int4 default null, _max_vt_age interval default '1h', _kinds text[] default null
, _by_age boolean default true, _limit int4 default 1000, _mend boolean default true) returns int4
language plpgsql security definer as $$ begin
    if _mend then
        perform agent.sweep_kinds(), agent.free_groups('', _limit), agent.sweep_waiting(_limit)
        , agent.free_workspace(null);
        -- Requests that an ingest process left behind as it died.
        perform agent.delete_rows('request', array(
                select ctid from agent.request
                where waits_until < (select agent.clock()) - interval '1 minute' for update skip locked));
    end if;
    return agent.sweep_exhausted(_max_attempts, _limit, null) + agent.sweep_by_deadline(_limit)
        + case when _by_age then agent.sweep_by_age(_max_vt_age, _kinds, _limit) else 0 end;
end $$;

-- Registers kinds that agent.kind lacks: their first insert left that to a transaction that rolled
-- back. Records missing bands, as of rows that an owner inserted; removes surplus ones. A row that
-- refuses is named, and stops no other.
create or replace function agent.sweep_kinds() returns void
language plpgsql security definer set enable_bitmapscan = off as $$ declare _lanes int4[]; _found text[];
begin
    select array_agg(lane), array_agg(kind) into _lanes, _found from agent.live_kinds();
    -- Kinds of other lengths were written by hand.
    perform agent.register_kinds(array(select kind from unnest(_found) as kind
            where length(kind) between 1 and 200));
    perform agent.in_halves('with new as (insert into agent.band select (unnest($1)).* returning 1)'
        ' select jsonb_build_object(''band'', count(*)) from new', array(
            select distinct row (seen.kind, agent.band_of(seen.lane), null, '-infinity')::agent.band
            from unnest(_lanes, _found) as seen (lane, kind)
            where seen.lane >= 16 and not exists (select from agent.band as b
                where b.kind = seen.kind and b.workspace is null and b.band = agent.band_of(seen.lane))
        ), 'band');
    perform agent.sweep_limits(_lanes, _found);
    if agent.take_turn('band') then
        perform agent.delete_rows('band', array(
                select b.ctid from agent.band as b where b.workspace is null
                and (exists (select from agent.band as kept
                    where kept.kind = b.kind and kept.band = b.band and kept.workspace is null
                    and kept.ctid < b.ctid)
                -- A band that a crowd needed, now empty.
                or b.band > 3 and not exists (select from agent.band as used
                    where used.kind = b.kind and used.band = b.band and used.workspace is not null)
                and not exists (select from unnest(_lanes, _found) as seen (lane, kind)
                    where seen.kind = b.kind and seen.lane >= 0 and agent.band_of(seen.lane) = b.band))));
    end if;
    -- Bands that a worker shared out and did not see to the end, as it died.
    perform agent.each_kind('agent.share_kind(kind)', array(
            select distinct kind from agent.band where workspace is not null));
end $$;

-- Moves to history, as expired, events with _max_attempts attempts or more (or their own or their
-- kind's maximum), and events that have been visible and unclaimed for longer than _max_vt_age.
-- Never a live lease, a scheduled event or a paused kind. Returns how many. Stops after a second,
-- or half the statement timeout: call it until it returns 0.
create or replace function agent.delete_expired_events
( _max_attempts int default 3, _max_vt_age interval default '1h') returns int8
language plpgsql security definer as $$
declare
    _timeout interval := current_setting('statement_timeout');
    _until timestamptz := clock_timestamp() + least(interval '1 second'
        , case when _timeout > interval '0' then _timeout / 2 end);
    _expired int8 := 0; _batch int4;
begin
    loop
        _batch := agent.sweep_events(_max_attempts, _max_vt_age, null, true, 500, _expired = 0);
        _expired := _expired + _batch;
        exit when _batch = 0 or clock_timestamp() >= _until;
    end loop;
    return _expired;
end $$;
