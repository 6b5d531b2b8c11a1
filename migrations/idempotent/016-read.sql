-- What operators read: lists of events, searches, and why an event does not run.
--
--   queue_stats, count_versions: operators
--   find_events, list_jobs, list_ended, live_events_of, count_jobs: lists of events; operators
--   tagged_jobs: the events with tags; list_jobs
--   search_jobs, narrow_jobs, group_jobs, message_jobs: searches; the page
--   list_replies, longest_waiting, recent_figures: the page
--   thread_events: what was said in a thread; an agent's turn
--   why_waiting: why an event does not run; operators

-- How many events of each kind are in each state, and since when the oldest of them is visible.
create or replace function agent.queue_stats()
returns table (kind text, paused boolean, pending int8, scheduled int8, running int8
    , oldest_pending timestamptz)
language sql volatile security definer
set jit = off as $$
    select k.kind, k.paused, count(e.id) filter (where e.vt <= n.now)
    , count(e.id) filter (where e.vt > n.now and e.claimed_by is null)
    , count(e.id) filter (where e.vt > n.now and e.claimed_by is not null)
    , min(e.vt) filter (where e.vt <= n.now)
    from (select agent.clock() as now offset 0) as n cross join agent.kind as k left join agent.event as e
    on e.kind = k.kind
    group by k.kind order by k.kind
$$;

-- How many live runs began under which version of their handler, of kinds whose handlers name
-- versions. It reads the whole queue if there are any.
create or replace function agent.count_versions() returns table (kind text, version text, runs int8)
language sql stable security definer
set jit = off as $$
    select named.base, begun.version, count(*)
    from (select distinct regexp_replace(k.kind, '@[0-9.]+$', '') as base from agent.kind as k
        where k.kind ~ '@[0-9.]+$') as named
    join agent.event as e on agent.base_kind(e.kind, e.notes) = named.base
    cross join lateral (select coalesce(e.notes ->> 'version', '1') as version) as begun
    where e.claimed <> '{}' and (e.notes ? 'version'
        or exists (select from agent.step as s where s.event_id = e.id and s.nth > 0))
    group by named.base, begun.version
$$;

-- The ids under a natural key, or an id as text: live ones, then history from its newest.
create or replace function agent.find_events(_key text) returns setof int8
language plpgsql volatile security definer
set enable_seqscan = off as $$
begin
    return query select e.id from agent.event as e where e.item_key = agent.bounded_key(_key);
    return query select h.id from agent.event_hist as h where h.item_key = agent.bounded_key(_key)
        order by h.event_ts desc;
    if not found and _key ~ '^[0-9]{1,18}$' then
        return query select j.id from agent.job as j where j.id = _key::int8;
    end if;
end $$;

-- The newest ended events that a filter wants. Reads the last day, then 30 days, then all that is
-- left, until the page is full. The first two steps open the chunks of history around their days,
-- and the outliers'. They are planned with their values: one plan for all values would open every
-- chunk (ADR 0001). The last step opens every chunk, so it keeps its plan. Each filter has an index
-- sorted by when events ended. The planner must not sort: it would not merge them.
create or replace function agent.list_ended
( _statuses text[], _kinds text[], _key text, _since timestamptz, _until timestamptz, _after timestamptz
, _after_id int8, _limit int4
) returns setof agent.ended_job
language plpgsql stable security definer
set plan_cache_mode = force_custom_plan set enable_sort = off as $$
declare
    _outcomes text[] := array(
        select known from unnest(array['completed', 'failed', 'expired', 'cancelled']) as known
        where _statuses is null or known = any(_statuses));
    _wanted text[] := array(select kind from agent.kind where _kinds is null union select unnest(_kinds));
    _now timestamptz := agent.clock();
    _left int4 := _limit;
    _found int4;
    _days int4;
    -- The step's events ended from _from to before _to; their event_ts lie from _first to _last.
    _from timestamptz;
    _to timestamptz := least(_until, _after + interval '1 microsecond', 'infinity');
    _first timestamptz;
    _last timestamptz;
begin
    foreach _days in array array[1, 30, null] loop
        if _days is null then
            -- Until this function returns.
            perform set_config('plan_cache_mode', 'force_generic_plan', true);
        end if;
        _from := greatest(_since, coalesce(least(_to, _now) - make_interval(days => _days), '-infinity'));
        select least(_from - interval '168 hours', min(event_week))
        , greatest(_to, max(event_week)) + interval '168 hours'
        into _first, _last from agent.event_hist_outlier
        where finished_on > _from - interval '24 hours' and finished_on < _to;
        if _key is null then
            return query
            select h.* from unnest(_wanted) as wanted (kind) cross join unnest(_outcomes) as ending (outcome)
            cross join lateral (
                select e.* from agent.ended_job as e where e.kind = wanted.kind and e.status = ending.outcome
                and e.finished_at >= _from and e.finished_at < _to
                and (_after is null or (e.finished_at, e.id) < (_after, _after_id))
                and e.event_ts between _first and _last
                order by e.finished_at desc, e.id desc limit _left
            ) as h
            order by h.finished_at desc, h.id desc limit _left;
        else
            return query
            select h.*
            from (
                (select * from agent.ended_job where item_key = _key and event_ts between _first and _last)
                union all
                (select * from agent.ended_job where group_key = _key and item_key is distinct from _key
                 and finished_at >= _from and finished_at < _to and event_ts between _first and _last)
                union all
                (select * from agent.ended_job
                where dedupe_key = _key and item_key is distinct from _key and group_key is distinct from _key
                 and finished_at >= _from and finished_at < _to and event_ts between _first and _last)
            ) as h
            where h.status = any(_outcomes) and (_kinds is null or h.kind = any(_kinds))
            and h.finished_at >= _from and h.finished_at < _to
            and (_after is null or (h.finished_at, h.id) < (_after, _after_id))
            order by h.finished_at desc, h.id desc limit _left;
        end if;
        get diagnostics _found = row_count;
        _left := _left - _found;
        exit when _left = 0 or _from <= _since;
        _to := _from;
    end loop;
end $$;

-- The live events with a natural, group or dedupe key, each by its index. For a dedupe key all that
-- run or have failed are read: an index of held events would cost each claim.
create or replace function agent.live_events_of(_key text) returns setof int8
language sql stable security definer
begin atomic
    select e.id from agent.event as e where e.item_key = _key
    union all select e.id from agent.event as e where e.group_key = _key and e.head
    union all select e.id from agent.event as e
    where e.group_key = _key and not e.head and e.claimed_by is not null
    union all select e.id from agent.event as e
    where e.group_key = _key and not e.head and e.claimed_by is null
    union all select e.id from agent.event as e where e.dedupe_key = _key and e.claimed = '{}'
    union all select e.id from agent.event as e
    where e.dedupe_key = _key and e.claimed <> '{}' and e.claimed_by is null
    union all select e.id from agent.event as e
    where e.dedupe_key = _key and e.attempts > 0 and e.claimed_by is not null;
end;

-- The newest events that have all tags and match a filter, by id. _tags names the values of each
-- tag: {"customer": ["acme"]}. Reads the events of the first tag in steps, until the page is full.
create or replace function agent.tagged_jobs
( _tags jsonb, _statuses text[], _kinds text[], _key text, _since timestamptz, _until timestamptz
, _after_id int8, _limit int4
) returns setof agent.job
language plpgsql stable security definer
set plan_cache_mode = force_generic_plan set enable_bitmapscan = off as $$
declare
    _ids int8[];
    _first record;
    _found int4;
    _left int4 := _limit;
begin
    select t.key as name, t.value as sought into _first from jsonb_each(_tags) as t limit 1;
    loop
        _ids := array(
            select tagged.event_id from jsonb_array_elements_text(_first.sought) as wanted (value)
            cross join lateral (
                select s.event_id from agent.step as s
                where s.nth = -1 and s.name = _first.name and s.arguments = wanted.value
                and s.event_id < coalesce(_after_id, 9223372036854775807)
                order by s.event_id desc limit greatest(_left, 100)
            ) as tagged
            order by 1 desc limit greatest(_left, 100));
        exit when _ids = '{}';
        return query
        select j.* from agent.job as j
        where j.id = any(_ids) and (_statuses is null or j.status = any(_statuses))
        and (_kinds is null or j.kind = any(_kinds))
        and (_key is null or _key in (j.item_key, j.group_key, j.dedupe_key))
        and (_since is null or coalesce(j.finished_at, j.enqueued_at) >= _since)
        and (_until is null or coalesce(j.finished_at, j.enqueued_at) < _until)
        and not exists (
            select from jsonb_each(_tags) as t
            where not exists (select from agent.step as s
                where s.event_id = j.id and s.name = t.key and s.nth = -1 and t.value ? s.arguments))
        order by j.id desc limit _left;
        get diagnostics _found = row_count;
        _left := _left - _found;
        exit when _left = 0;
        _after_id := _ids[cardinality(_ids)];
    end loop;
end $$;

-- A page of events, newest first: live ones by id, then ended ones by when they ended. With tags:
-- all by id. Every filter may be null. The next page begins after the last row of this one:
-- _after_id, and for an ended row its finished_at as _after.
create or replace function agent.list_jobs
( _statuses text[] default null, _kinds text[] default null, _key text default null
, _since timestamptz default null, _until timestamptz default null
, _after timestamptz default null, _after_id int8 default null, _limit int4 default 20
, _tags jsonb default null
) returns setof agent.job
language plpgsql volatile security definer
set plan_cache_mode = force_generic_plan set enable_bitmapscan = off as $$
declare
    _left int4 := least(greatest(_limit, 1), 1000);
    _found int4 := 0;
begin
    if _tags is not null then
        return query select * from agent.tagged_jobs(_tags, _statuses, _kinds, _key, _since, _until, _after_id
            , _left);
        return;
    elsif _after is not null or not _statuses && array['pending', 'scheduled', 'running'] then
        null; -- ended ones alone
    elsif _key is not null then
        return query
        select j.* from agent.live_job as j where j.id = any(array(select agent.live_events_of(_key)))
        and (_statuses is null or j.status = any(_statuses)) and (_kinds is null or j.kind = any(_kinds))
        and (_since is null or j.enqueued_at >= _since) and (_until is null or j.enqueued_at < _until)
        and (_after_id is null or j.id < _after_id)
        order by j.id desc limit _left;
        get diagnostics _found = row_count;
    else
        return query
        select j.* from agent.live_job as j
        where (_statuses is null or j.status = any(_statuses)) and (_kinds is null or j.kind = any(_kinds))
        and (_since is null or j.enqueued_at >= _since) and (_until is null or j.enqueued_at < _until)
        and (_after_id is null or j.id < _after_id)
        order by j.id desc limit _left;
        get diagnostics _found = row_count;
    end if;
    _left := _left - _found;
    if _left > 0 then
        return query select * from agent.list_ended(_statuses, _kinds, _key, _since, _until, _after, _after_id
            , _left);
    end if;
end $$;

-- Events with all of these words, in any case, among the newest 1,000 of the kinds since a time.
create or replace function agent.search_jobs(_words text[], _kinds text[], _since timestamptz, _limit int4
    , _tags jsonb default null) returns setof agent.job
language sql volatile security definer
set jit = off as $$
    select j.* from agent.list_jobs(null, _kinds, null, _since, null, null, null, 1000, _tags) as j
    cross join lateral (select j.payload as p) as event
    cross join lateral (
        -- The texts, names and ids that people see, in Slack's payloads and jobs.
        select lower(concat_ws(' ', p ->> 'command', p ->> 'text', p #>> '{event,text}'
                , p #>> '{message,text}', p #>> '{actions,0,text,text}'
            , p #>> '{actions,0,selected_option,text,text}', p #>> '{actions,0,action_id}'
            , p #>> '{actions,0,value}', p ->> 'callback_id'
            , p #>> '{view,title,text}', p #>> '{view,callback_id}', p ->> 'user_name'
            , p #>> '{user,username}', p #>> '{user,name}'
            , p ->> 'user_id', p #>> '{user,id}', p #>> '{event,user}', p ->> 'channel_name'
            , p #>> '{channel,name}', p ->> 'channel_id'
            , p #>> '{channel,id}', p #>> '{event,channel}', p #>> '{event,ts}', p #>> '{message,ts}'
            , p #>> '{container,message_ts}'
            , p #>> '{event,item,ts}', p ->> 'trigger_id', p ->> 'event_id', j.item_key, j.group_key)) as text
            offset 0
    ) as sent
    -- Slack escapes three characters of what people type.
    cross join lateral (
        select replace(replace(replace(sent.text, '&lt;', '<'), '&gt;', '>'), '&amp;', '&') as text offset 0
    ) as seen
    where not exists (select from unnest(_words) as word where position(lower(word) in seen.text) = 0)
    limit least(greatest(_limit, 1), 1000)
$$;

-- Narrows the events of list_jobs by their payloads, errors and keys. Looks at _most events from
-- the cursor on, at most 1,000. Returns the matches, and the last event that it looked at, for the
-- next call. _words are parts of keys, _error is part of the error or the reason, in any case.
create or replace function agent.narrow_jobs
( _statuses text[], _kinds text[], _key text, _since timestamptz, _until timestamptz, _after timestamptz
, _after_id int8, _most int4
, _workspace text, _channel text, _user text, _error text, _words text[], _tags jsonb default null
) returns table (nth int8, matches boolean, job agent.job)
language sql volatile security definer
set jit = off as $$
    with looked as materialized (
        select row_number() over () as nth, j::agent.job as job
        from agent.list_jobs(_statuses, _kinds, _key, _since, _until, _after, _after_id, _most, _tags) as j
    ), judged as materialized (
        select l.nth, l.job
        , (_workspace is null or agent.event_workspace((l.job).payload) = _workspace)
            and (_channel is null or agent.event_channel((l.job).payload) = _channel)
            and (_user is null or agent.event_user((l.job).payload) = _user)
            and (_error is null
                or position(lower(_error) in lower(concat_ws(' ', (l.job).errors, (l.job).reason))) > 0)
            and not exists (
                select from unnest(_words) as word
                where position(lower(word) in lower(concat_ws(' ', (l.job).item_key, (l.job).group_key
                        , (l.job).dedupe_key))) = 0) as matches
        from looked as l
    )
    select j.nth, j.matches, j.job from judged as j
    where j.matches or j.nth = (select max(l.nth) from looked as l) order by j.nth
$$;

-- The events of a group: the newest _limit that ended, and the oldest _limit live ones.
create or replace function agent.group_jobs(_group_key text, _limit int4) returns setof agent.job
language sql stable security definer
set enable_bitmapscan = off set enable_sort = off as $$
    select j.* from (
        select e.id from agent.event as e where e.group_key = _group_key and e.head
        union all (select e.id from agent.event as e
            where e.group_key = _group_key and not e.head and e.claimed_by is not null
            order by e.event_ts, e.id limit _limit)
        union all (select e.id from agent.event as e
            where e.group_key = _group_key and not e.head and e.claimed_by is null order by e.event_ts, e.id
            limit _limit)
    ) as found join agent.live_job as j on j.id = found.id
    union all (select j.* from agent.ended_job as j where j.group_key = _group_key order by j.finished_at desc
        limit _limit)
$$;

-- The messages with which handlers replied to an event, the oldest first, at most 100, by its notes
-- (surelane_worker.slack.notes). They are in its channel, or where a note says.
create or replace function agent.list_replies(_id int8, _event_ts timestamptz) returns table (at timestamptz
    , channel text, ts text)
language plpgsql stable security definer
set plan_cache_mode = force_custom_plan set enable_seqscan = off as $$
begin
    return query
    select agent.to_timestamptz(r.ts::numeric)
    , coalesce(n.notes #>> array['elsewhere', r.ordinal], agent.event_channel(n.event)), r.ts
    from (
        select e.event, e.notes from agent.event as e where e.id = _id
        union all select h.event, h.notes from agent.event_hist as h
        where h.id = _id and h.event_ts = _event_ts
        limit 1
    ) as n
    cross join lateral (
        select noted.key as ordinal, coalesce(noted.value ->> 'ts', noted.value #>> '{}') as ts
        from unnest(array['replies', 'streams']) as sort
        cross join lateral jsonb_each(case jsonb_typeof(n.notes -> sort)
                when 'object' then n.notes -> sort end) as noted
    ) as r
    -- A reply that is being sent has no timestamp, nor has one through a response URL.
    where r.ts ~ '^[0-9]{10}[.][0-9]{6}$' order by 1 limit 100;
end $$;

-- What is stored of a Slack thread before the message _ts: its messages from the newest turn on, or
-- all of 90 days without a turn, and the edits in its channel that ended since, at most 500 of a
-- kind and outcome. A turn has a step _step that has ended. _group_keys: the thread's group, then
-- that of its first message _root if it differs. whole: one came as a message of the channel.
create or replace function agent.thread_events(_group_keys text[], _channel text, _root text, _ts text
    , _step text)
returns table (id int8, event_ts timestamptz, turn boolean, whole boolean, event jsonb, notes jsonb
    , result jsonb)
language plpgsql stable security definer
set plan_cache_mode = force_custom_plan set enable_bitmapscan = off set enable_sort = off as $$
declare
    _at timestamptz := agent.to_timestamptz(_ts::numeric);
    _first timestamptz := greatest(agent.to_timestamptz(_root::numeric), _at - interval '90 days');
begin
    return query
    with stored as materialized (
        select s.*, key = _group_keys[1] as inside from unnest(_group_keys) as key cross join lateral (
            (select h.id, h.event_ts, h.event, h.notes, h.result from agent.event_hist as h
             where h.group_key = key and h.finished_at >= _first - interval '1 minute'
             and h.event_ts >= _first
             and (h.reason is null or h.reason not like '%: deleted in Slack') order by h.finished_at desc
             limit 1000)
            union all select e.id, e.event_ts, e.event, e.notes, null from agent.event as e
            where e.group_key = key and e.head
            union all (select e.id, e.event_ts, e.event, e.notes, null from agent.event as e
             where e.group_key = key and not e.head and e.claimed_by is not null and e.event_ts < _at
             order by e.event_ts, e.id)
            union all (select e.id, e.event_ts, e.event, e.notes, null from agent.event as e
             where e.group_key = key and not e.head and e.claimed_by is null and e.event_ts < _at
             order by e.event_ts, e.id)
        ) as s
    ), said as materialized (
        select s.*, m.message ->> 'ts' as ts, bool_or(m.message ->> 'type' = 'message') over () as whole
        , exists (select from agent.step as t
            where t.event_id = s.id and t.name = _step and t.nth = 1 and t.result is not null
            and t.finished_at is not null) as turn
        from stored as s cross join lateral (select agent.slack_event(s.event) as message offset 0) as m
        where m.message ->> 'type' in ('app_mention', 'message')
        and coalesce(m.message ->> 'subtype', '') not in ('message_changed', 'message_deleted')
        and m.message ->> 'ts' < _ts and (s.inside or m.message ->> 'ts' = _root)
    ), since as materialized (select max(s.ts) as ts from said as s where s.turn)
    select s.id, s.event_ts, s.turn, s.whole, s.event, s.notes, s.result from said as s, since
    where s.ts >= coalesce(since.ts, '')
    union all
    select h.* from agent.kind as edits
    cross join unnest(array['completed', 'failed', 'expired', 'cancelled']) as ending (outcome)
    cross join lateral (
        select e.id, e.event_ts, false, false, e.event, '{"edit": true}'::jsonb, null::jsonb
        from agent.event_hist as e
        where e.kind = edits.kind and e.outcome = ending.outcome and e.event_ts >= _first
        and coalesce(e.event #>> '{event,channel}', e.event ->> 'channel') = _channel
        and e.finished_at >= (select greatest(agent.to_timestamptz(since.ts::numeric)
                , _first) - interval '1 minute' from since)
        order by e.finished_at desc limit 500
    ) as h where edits.kind like any(array[E'slack.message\\_changed%', E'slack.message\\_deleted%']);
end $$;

-- The events of a Slack message: those of its thread that happened with it, for the first of _teams
-- that has one. _thread is the ts of the message that began the thread, if it is a reply.
create or replace function agent.message_jobs(_teams text[], _channel text, _ts numeric
    , _thread text) returns setof int8
language plpgsql stable security definer
set enable_bitmapscan = off set enable_sort = off as $$
declare
    _at timestamptz := agent.to_timestamptz(_ts);
    _key text;
begin
    for _key in
        select agent.bounded_key(concat_ws(':', team, _channel, thread))
        from unnest(_teams) with ordinality as given (team, nth)
        cross join unnest(array[_thread, _ts::text, null]) with ordinality as threads (thread, place)
        where thread is not null or place = 3 order by nth, place
    loop
        return query
        select e.id from agent.event as e where e.group_key = _key and e.head and e.event_ts = _at
        union all (select e.id from agent.event as e
            where e.group_key = _key and not e.head and e.claimed_by is null and e.event_ts = _at
            order by e.event_ts, e.id)
        union all (select e.id from agent.event as e
            where e.group_key = _key and not e.head and e.claimed_by is not null and e.event_ts = _at
            order by e.event_ts, e.id)
        union all select h.id from (
            select j.id, j.event_ts from agent.event_hist as j
            where j.group_key = _key and j.finished_at >= _at - interval '1 minute'
            order by j.finished_at limit 2000) as h where h.event_ts = _at;
        exit when found;
    end loop;
end $$;

-- How many events of each kind and outcome ended in the last _minutes, how long they waited for
-- their first claim, and how long the last attempt ran: the median and the 99th percentile, in
-- seconds. Looks at the newest _sample of each; of more the rate is that of these, and counted is
-- null. Leaves out events that happened more than a week ago.
create or replace function agent.recent_figures(_minutes int4, _sample int4)
returns table (kind text, outcome text, per_minute float8, counted int8, wait_p50 float8, wait_p99 float8
    , run_p50 float8, run_p99 float8)
language plpgsql volatile security definer
set plan_cache_mode = force_custom_plan set enable_bitmapscan = off set enable_sort = off as $$
declare
    _now timestamptz := agent.clock();
    _from timestamptz := _now - make_interval(mins => _minutes);
    _first timestamptz := _from - interval '168 hours';
    _last timestamptz := _now + interval '25 hours';
begin
    return query
    select k.kind, o.outcome
    , case when f.n >= _sample then 60 * f.n / greatest(extract(epoch from _now - f.since)::float8, 0.001)
        else f.n::float8 / _minutes end
    , case when f.n < _sample then f.n end, f.waits[1], f.waits[2], f.runs[1], f.runs[2]
    from agent.kind as k cross join unnest(array['completed', 'failed', 'expired'
            , 'cancelled']) as o (outcome)
    cross join lateral (
        select count(*) as n, min(h.finished_at) as since
        , percentile_disc(array[0.5, 0.99]) within
        group (order by greatest(extract(epoch from h.claimed[array_lower(h.claimed, 1)] - h.enqueued_at)
                , 0)::float8)
            filter (where array_lower(h.claimed, 1) = 1) as waits
        , percentile_disc(array[0.5, 0.99]) within
        group (order by greatest(extract(epoch from h.finished_at - h.claimed[array_upper(h.claimed, 1)])
                , 0)::float8)
            filter (where h.claimed <> '{}') as runs
        from (
            select e.finished_at, e.claimed, e.enqueued_at from agent.event_hist as e
            where e.kind = k.kind and e.outcome = o.outcome and e.finished_at >= _from
            and e.event_ts between _first and _last
            order by e.finished_at desc limit _sample
        ) as h
    ) as f
    where f.n > 0;
end $$;

-- Why an event is not running, in one word, and what that means here: running, ended, paused,
-- not_installed, no_key, waits_for_children, awaits_answer, suspended, debounced, future, retrying,
-- group_busy, group_waits, exhausted, no_worker, limited, due; null: no such event. Where its last
-- claim was rescued, also from which worker.
create or replace function agent.why_waiting(_id int8, _max_attempts int4 default null, out reason text
    , out detail text)
language plpgsql volatile security definer
set enable_seqscan = off as $$
declare
    _now timestamptz := agent.clock();
    _e agent.event;
    _head agent.event;
    _most int4;
    _change jsonb;
    _rescued text;
    _lost text;
    _limited text;
    _lacks text;
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
        (not exists (select from agent.list_workers() as w where _e.kind = any(w.kinds) and w.state = 'alive')
        , 'no_worker'
            , format('no running worker handles kind %s', _e.kind) || coalesce('; ' || _rescued, '')),
        (_limited is not null, 'limited', _limited),
        (true, 'due', 'visible; a worker claims it next' || coalesce('; ' || _rescued, ''))
    ) as c (holds, reason, detail) where c.holds limit 1;
end $$;

-- The events that have waited the longest, at most three of a kind, and why: visible events,
-- retries, waits for an answer. Looks at the oldest 500, and each kind's oldest head.
create or replace function agent.longest_waiting(_limit int4)
returns table (id int8, kind text, group_key text, enqueued_at timestamptz, reason text, detail text)
language sql volatile security definer
set enable_bitmapscan = off as $$
    with oldest as materialized (
        select e.id, e.kind, e.vt, e.claimed_by, e.retrying from agent.event as e order by e.id limit 500
    ), found as (
        select o.id, o.kind from oldest as o
        where not (o.claimed_by is not null and o.vt > (select agent.clock()))
        and (o.vt <= (select agent.clock()) or o.vt = 'infinity' or o.retrying
            or exists (select from agent.step as s
                where s.event_id = o.id and s.sort = 'wait' and s.finished_at is null))
        union
        select probe.id, k.kind from agent.kind as k
        cross join lateral (
            select first.id from generate_series(-4, 59) as lanes (number) cross join lateral (
                select e.id, e.vt from agent.event as e
                where e.head and e.lane = lanes.number and e.kind = k.kind and e.vt <= (select agent.clock())
                order by e.vt limit 1
            ) as first order by first.vt limit 1
        ) as probe
    ), ranked as (
        select f.id, row_number() over (partition by f.kind order by f.id) as nth from found as f
    )
    select e.id, e.kind, e.group_key, e.enqueued_at, w.reason, w.detail
    from (select r.id, r.nth from ranked as r where r.nth <= 3 order by r.nth, r.id limit _limit) as chosen
    join agent.event as e on e.id = chosen.id cross join lateral agent.why_waiting(e.id) as w
    where w.reason not in ('running', 'ended', 'future') order by e.enqueued_at
$$;

-- How many events a filter finds, up to _most; list_jobs has the filter.
create or replace function agent.count_jobs
( _statuses text[], _kinds text[], _key text, _since timestamptz, _until timestamptz, _most int4
, _tags jsonb default null
) returns int4
language plpgsql volatile security definer
set jit = off as $$
declare
    _counted int4 := 0;
    _page int4;
    _found int4;
    _after timestamptz;
    _after_id int8;
begin
    loop
        _page := least(1000, _most - _counted);
        exit when _page <= 0;
        -- The page's last row: the live event of the smallest id, else the first that ended.
        select count(*), (array_agg(j.id order by j.finished_at nulls last, j.id))[1], min(j.finished_at)
        into _found, _after_id, _after
        from (select id, finished_at from agent.list_jobs(_statuses, _kinds, _key, _since, _until, _after
                , _after_id, _page, _tags)) as j;
        _counted := _counted + _found;
        exit when _found < _page;
    end loop;
    return _counted;
end $$;
