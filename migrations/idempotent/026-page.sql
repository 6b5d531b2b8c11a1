-- What the operator's page shows beside lists, and why an event does not run.
--   list_replies, longest_waiting, recent_figures: the page
--   why_waiting: why an event does not run; operators
--   list_kinds, limit_use, firings, list_running, list_questions: the page

-- The messages with which handlers replied to an event, the oldest first, at most 100, by its notes
-- (surelane_worker.slack.notes). They are in its channel, or where a note says.
create or replace function agent.list_replies(_id int8, _event_ts timestamptz)
returns table (at timestamptz, channel text, ts text) language plpgsql stable security definer
set plan_cache_mode = force_custom_plan set enable_seqscan = off as $$ begin
    return query select agent.to_timestamptz(r.ts::numeric)
    , coalesce(n.notes #>> array['elsewhere', r.ordinal], agent.event_channel(n.event)), r.ts
    from (
        select e.event, e.notes from agent.event as e where e.id = _id
        union all select h.event, h.notes from agent.event_hist as h
        where h.id = _id and h.event_ts = _event_ts limit 1) as n
    cross join lateral (
        select noted.key as ordinal, coalesce(noted.value ->> 'ts', noted.value #>> '{}') as ts
        from unnest(array['replies', 'streams']) as sort
        cross join lateral jsonb_each(case jsonb_typeof(n.notes -> sort)
                when 'object' then n.notes -> sort end) as noted) as r
    -- A reply that is being sent has no timestamp, nor has one through a response URL.
    where r.ts ~ '^[0-9]{10}[.][0-9]{6}$' order by 1 limit 100;
end $$;

-- Of each kind and outcome that ended in the last _minutes: how many, and the median and the 99th
-- percentile of the wait for the first claim and of the last attempt, in seconds. Looks at the
-- newest _sample of each; where there are more, the rate is the sample's, and counted is null.
-- Leaves out events that happened more than a week ago.
create or replace function agent.recent_figures(_minutes int4, _sample int4)
returns table (kind text, outcome text, per_minute float8, counted int8, wait_p50 float8, wait_p99 float8
, run_p50 float8, run_p99 float8) language plpgsql security definer
set plan_cache_mode = force_custom_plan set enable_bitmapscan = off set enable_sort = off as $$
declare
    _now timestamptz := agent.clock(); _from timestamptz := _now - make_interval(mins => _minutes);
    _first timestamptz := _from - interval '168 hours';
    _last timestamptz := _now + interval '25 hours';
begin
    return query select k.kind, o.outcome
    , case when f.n >= _sample then 60 * f.n / greatest(extract(epoch from _now - f.since)::float8, 0.001)
        else f.n::float8 / _minutes end
    , case when f.n < _sample then f.n end, f.waits[1], f.waits[2], f.runs[1], f.runs[2]
    from agent.kind as k
    cross join unnest(array['completed', 'failed', 'expired', 'cancelled']) as o (outcome)
    cross join lateral (
        select count(*) as n, min(h.finished_at) as since, percentile_disc(array[0.5, 0.99]) within
        group (order by
            greatest(extract(epoch from h.claimed[array_lower(h.claimed, 1)] - h.enqueued_at), 0)::float8)
            filter (where array_lower(h.claimed, 1) = 1) as waits
        , percentile_disc(array[0.5, 0.99]) within
        group (order by
            greatest(extract(epoch from h.finished_at - h.claimed[array_upper(h.claimed, 1)]), 0)::float8)
            filter (where h.claimed <> '{}') as runs
        from (
            select e.finished_at, e.claimed, e.enqueued_at from agent.event_hist as e
            where e.kind = k.kind and e.outcome = o.outcome and e.finished_at >= _from
            and e.event_ts between _first and _last order by e.finished_at desc limit _sample) as h
    ) as f
    where f.n > 0;
end $$;

-- Why an event is not running, in one word, and what that means here: running, ended, paused,
-- not_installed, no_key, waits_for_children, awaits_answer, suspended, debounced, future, retrying,
-- group_busy, group_waits, exhausted, no_worker, limited, refused, due; null: no such event. Where
-- its last claim was rescued, also from which worker.
create or replace function agent.why_waiting
( _id int8, _max_attempts int4 default null, out reason text, out detail text)
language plpgsql security definer set enable_seqscan = off as $$
declare
    _now timestamptz := agent.clock();
    _e agent.event; _head agent.event; _most int4; _change jsonb; _rescued text; _lost text;
    _limited text; _lacks text; _refused text;
begin
    select * into _e from agent.event where id = _id;
    if not found then
        select 'ended', 'ended as ' || outcome || coalesce(': ' || h.reason, '') || ' at ' || finished_at
        into reason, detail
        from agent.event_hist as h where h.id = _id order by finished_at desc limit 1;
        return;
    end if;
    _most := coalesce(_e.max_attempts, (agent.attempts_of(array[_e.kind], _max_attempts))[1]);
    select * into _head from agent.event where group_key = _e.group_key and head and id <> _id;
    _limited := agent.why_limited(_e, _now);
    -- Unless the app was installed meanwhile.
    _lacks := (
        select format('%s until %s', w.owner_id, w.until) from agent.install_wait as w
        where w.event_id = _id and not exists (
            select from agent.installation as i
            where i.owner_id = w.owner_id and i.enterprise_wide = w.enterprise_wide and i.user_id = ''));
    _change := _e.changes -> -1;
    if _change ->> 'action' = 'rescued' then
        _rescued := format('worker %s died at %s', _change ->> 'worker'
            , coalesce(_change ->> 'died_at', _change ->> 'at'));
    end if;
    select '; this worker''s session is gone: it counts as dead unless it comes back within seconds'
    into _lost
    from agent.list_workers() as w where w.name = _e.claimed_by and w.state in ('lost', 'died');
    if _lost is null and _e.heartbeat_at < _now - interval '2 minutes' then
        _lost := format('; without a heartbeat since %s, so the claim ends within two minutes after %s'
            , _e.heartbeat_at, _e.heartbeat_at + interval '5 minutes');
    end if;
    if _e.head and _e.vt < _now - interval '5s' and current_setting('transaction_read_only') = 'off' then
        _refused := (select concat_ws(', ', 'SQLSTATE ' || t.code, t.object) from agent.why_refused(_id) as t
            where t.code is not null);
    end if;
    select c.reason, c.detail into reason, detail from (values
        (_e.claimed_by is not null and _e.vt > _now, 'running'
        , format('held by %s since %s', _e.claimed_by, _e.claimed[array_upper(_e.claimed, 1)])
            || coalesce(_lost, '; retried because '
                || case when (_change ->> 'claim')::int4 < array_upper(_e.claimed, 1) then _rescued end, '')),
        (exists (select from agent.kind where kind = _e.kind and paused), 'paused'
        , format('kind %s is paused', _e.kind)),
        (_e.claimed_by is null and _e.vt > _now and _lacks is not null, 'not_installed'
        , format('%s; tried again at %s', _lacks, _e.vt)),
        (_e.claimed_by is null and _e.vt > _now and _e.notes #>> '{calls,no_key}' is not null, 'no_key'
            , format('%s; tried again at %s', _e.notes #>> '{calls,no_key}', _e.vt)),
        (_e.waits_for > 0, 'waits_for_children', format('%s children have not ended', _e.waits_for)),
        (_e.vt = 'infinity', 'awaits_answer', format('until %s', _e.deadline)),
        (_e.claimed_by is null and _e.vt > _now and agent.suspended_for(_id) is not null, 'suspended'
        , agent.suspended_for(_id)),
        (_e.vt > _now and _e.retrying and _e.attempts = 0, 'debounced'
        , format('waits for more of its group until %s', _e.vt)),
        (_e.vt > _now and _e.retrying, 'retrying', format('attempt %s begins at %s', _e.attempts + 1, _e.vt)),
        (_e.vt > _now, 'future', format('scheduled for %s', _e.vt)),
        (_e.attempts >= _most, 'exhausted'
        , format('%s of %s attempts; the next sweep expires it', _e.attempts, _most)
        || coalesce('; ' || _rescued, '')),
        (_head.claimed_by is not null and _head.vt > _now, 'group_busy'
        , format('event %s of its group is held by %s', _head.id, _head.claimed_by)),
        (_head.id is not null, 'group_waits', format('event %s of its group comes first', _head.id)),
        (_e.lane >= 60, 'arriving', case when _e.lane >= 60 then agent.event_workspace(_e.event) end),
        (not exists (select from agent.list_workers() as w where _e.kind = any(w.kinds) and w.state = 'alive')
        , 'no_worker'
            , format('no running worker handles kind %s', _e.kind) || coalesce('; ' || _rescued, '')),
        (_limited is not null, 'limited', _limited),
        (_refused is not null, 'refused', _refused),
        (true, 'due', 'visible; a worker claims it next' || coalesce('; ' || _rescued, ''))
    ) as c (holds, reason, detail) where c.holds limit 1;
end $$;

-- The events that have waited the longest, at most three of a kind, and why: visible events,
-- retries, waits for an answer. Looks at the oldest 500, and each kind's oldest head.
create or replace function agent.longest_waiting(_limit int4)
returns table (id int8, kind text, group_key text, enqueued_at timestamptz, reason text, detail text)
language sql security definer set enable_bitmapscan = off as $$ with oldest as materialized (
        select e.id, e.kind, e.vt, e.claimed_by, e.retrying from agent.event as e order by e.id limit 500
    ), found as (
        select o.id, o.kind from oldest as o
        where not (o.claimed_by is not null and o.vt > (select agent.clock()))
        and (o.vt <= (select agent.clock()) or o.vt = 'infinity' or o.retrying
            or exists (select from agent.step as s
                where s.event_id = o.id and s.sort = 'wait' and s.finished_at is null))
        union
        select (array_agg(first.id order by first.vt))[1], live.kind from agent.live_kinds() as live
        cross join lateral (
            select e.id, e.vt from agent.event as e
            where e.head and e.lane = live.lane and e.kind = live.kind and e.vt <= (select agent.clock())
            order by e.vt limit 1
        ) as first group by live.kind
    ), ranked as (
        select f.id, row_number() over (partition by f.kind order by f.id) as nth from found as f)
    select e.id, e.kind, e.group_key, e.enqueued_at, w.reason, w.detail
    from (select r.id, r.nth from ranked as r where r.nth <= 3 order by r.nth, r.id limit _limit) as chosen
    join agent.event as e on e.id = chosen.id cross join lateral agent.why_waiting(e.id) as w
    where w.reason not in ('running', 'ended', 'future') order by e.enqueued_at $$;

-- A page of kinds for operators, by name: those after _after, or _kind alone. failed: how many
-- failed in the last day, up to 1,000. Planned with values, for history's chunks.
create or replace function agent.list_kinds(_kind text, _after text, _limit int4)
returns table (kind text, paused boolean, paused_at timestamptz, paused_by text, max_attempts int4
, ordered boolean, handled_at timestamptz, failed int8) language plpgsql stable security definer
set plan_cache_mode = force_custom_plan set enable_bitmapscan = off as $$
declare
    _from timestamptz := agent.clock() - interval '1 day';
    _first timestamptz := (
        select least(_from - interval '168 hours', min(o.event_week)) from agent.event_hist_outlier as o
        where o.finished_on > _from - interval '24 hours');
begin
    return query
    select k.kind, k.paused, k.paused_at, k.paused_by, k.max_attempts, k.ordered, k.handled_at, f.failed
    from (
        select * from agent.kind as each
        where (_after is null or each.kind > _after) and (_kind is null or each.kind = _kind)
        order by each.kind limit least(greatest(_limit, 1), 1000)) as k
    cross join lateral (
        select count(*) as failed from (
            select from agent.event_hist as h
            where h.kind = k.kind and h.outcome = 'failed' and h.finished_at >= _from and h.event_ts >= _first
            limit 1000) as ended ) as f
    order by k.kind;
end $$;

-- How much of its limit a kind uses: of the first 200 keys the five under which most events run,
-- and how many began under each in the limit's period.
create or replace function agent.limit_use(_kinds text[])
returns table (kind text, limit_key text, running int4, began int8, blocked_at timestamptz)
language plpgsql security definer set enable_seqscan = off as $$
declare _now timestamptz := agent.clock(); _limit agent.limits;
begin
    for _limit in select l.* from agent.limits as l where l.kind = any(_kinds) and l.parks loop
        return query with recursive known as (
            (select s as state, 1 as nth from agent.limit_state as s where s.kind = _limit.kind
            order by s.limit_key, s.at desc limit 1)
            union all
            select following.state, known.nth + 1 from known cross join lateral (
                select s as state from agent.limit_state as s
                where s.kind = _limit.kind and s.limit_key > (known.state).limit_key
                order by s.limit_key, s.at desc limit 1
            ) as following where known.nth < 200
        ), busiest as (
            select k.state from known as k order by cardinality((k.state).running) desc, (k.state).at desc
            limit 5)
        select _limit.kind, (b.state).limit_key, cardinality(coalesce(r.running, '{}'))
        , (select coalesce(sum(s.count), 0)::int8
            from unnest((b.state).starts, (b.state).counts) as s (at, count)
            where s.at > _now - _limit.period), (b.state).blocked_at
        from busiest as b cross join lateral agent.limit_room(_limit, b.state, _now, null) as r;
    end loop;
end $$;

-- The jobs that named schedules stored for the times given, live or in history. _fired: about when
-- each was stored, by which its chunk of history is found.
create or replace function agent.firings(_names text[], _times timestamptz[], _fired timestamptz[])
returns table (name text, scheduled_at timestamptz, id int8, status text, reason text, error text
, finished_at timestamptz) language plpgsql stable security definer
set plan_cache_mode = force_custom_plan set enable_bitmapscan = off as $$ begin
    return query
    select given.name, given.scheduled_at, j.id, j.status, left(j.reason, 300), j.error, j.finished_at
    from (
        select t.name, t.scheduled_at, t.fired, agent.bounded_key('cron:' || t.name || ':'
            || to_char(t.scheduled_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')) as item_key
        from unnest(_names, _times, _fired) as t (name, scheduled_at, fired)) as given
    cross join lateral (
        select l.id, l.status, l.reason, l.errors -> -1 ->> 'type' as error, l.finished_at
        from agent.live_job as l where l.item_key = given.item_key
        union all
        select h.id, h.status, h.reason, h.errors -> -1 ->> 'type' as error, h.finished_at
        from agent.ended_job as h where h.item_key = given.item_key
        and h.event_ts between given.fired - interval '1 hour' and given.fired + interval '1 hour'
    ) as j;
end $$;

-- The events that run now, by worker (null: all), the longest claims first: up to _each of
-- a worker, with the number of all its running events. A group counts once, by its head.
create or replace function agent.list_running(_worker text, _each int4)
returns table (worker text, running int8, id int8, kind text, item_key text, group_key text, attempts int4
, claimed_at timestamptz, lease_until timestamptz)
language sql security definer set enable_bitmapscan = off as $$
    select r.claimed_by, r.running, r.id, r.kind, r.item_key, r.group_key, r.attempts, r.claimed_at, r.vt
    from (
        select e.*, count(*) over (partition by e.claimed_by) as running
        , row_number() over (partition by e.claimed_by order by e.claimed_at, e.id) as nth
        from (
            select f.claimed_by, f.id, f.kind, f.item_key, f.group_key, f.attempts, f.vt
            , f.claimed[array_upper(f.claimed, 1)] as claimed_at
            from (select * from agent.event as a where a.attempts > 0 and a.vt > (select agent.clock())
                order by a.vt limit 20000) as f
            where f.claimed_by is not null and f.head and (_worker is null or f.claimed_by = _worker)
        ) as e) as r
    where r.nth <= least(greatest(_each, 1), 500) order by r.claimed_by, r.nth $$;

-- A page of the questions that ctx.ask has open, the newest first: of live events that wait for a
-- person's answer. posted is what the step stored: the message's place, the people who may answer.
create or replace function agent.list_questions(_after timestamptz, _after_id int8, _limit int4)
returns table (id int8, kind text, item_key text, group_key text, question text, posted json
, asked_at timestamptz, until timestamptz) language sql security definer set enable_bitmapscan = off as $$
    select w.event_id, e.kind, e.item_key, e.group_key, w.name, a.result, w.started_at, w.due_at
    from agent.step as w
    join agent.event as e on e.id = w.event_id and e.claimed_by is null and e.vt > (select agent.clock())
    -- surelane_worker.handling.asks has the names.
    join agent.step as a on a.event_id = w.event_id and a.name = w.name || ' asked' and a.nth = 1
    where w.sort = 'wait' and w.finished_at is null
    and (w.due_at > (select agent.clock()) or w.due_at is null)
    and (_after is null or (w.started_at, w.event_id) < (_after, _after_id))
    order by w.started_at desc, w.event_id desc limit least(greatest(_limit, 1), 200) $$;
