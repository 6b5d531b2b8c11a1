-- Lists of events, and searches.
--   queue_stats, count_versions: operators
--   find_events, list_jobs, list_ended, live_events_of, count_jobs: lists of events; operators
--   tagged_jobs: the events with tags; list_jobs
--   search_jobs, narrow_jobs, group_jobs, message_jobs: searches; the page

-- How many events of each kind are in each state, and since when the oldest of them is visible.
create or replace function agent.queue_stats()
returns table (kind text, paused boolean, pending int8, scheduled int8, running int8
, oldest_pending timestamptz) language sql security definer set jit = off as $$
    select k.kind, k.paused, count(e.id) filter (where e.vt <= n.now)
    , count(e.id) filter (where e.vt > n.now and e.claimed_by is null)
    , count(e.id) filter (where e.vt > n.now and e.claimed_by is not null)
    , min(e.vt) filter (where e.vt <= n.now)
    from (select agent.clock() as now offset 0) as n cross join agent.kind as k left join agent.event as e
    on e.kind = k.kind group by k.kind order by k.kind $$;

-- How many live runs began under which version of their handler, where handlers name versions. If
-- any do, it reads the whole queue.
create or replace function agent.count_versions() returns table (kind text, version text, runs int8)
language sql stable security definer set jit = off as $$ select named.base, begun.version, count(*)
    from (select distinct regexp_replace(k.kind, '@[0-9.]+$', '') as base from agent.kind as k
        where k.kind ~ '@[0-9.]+$') as named
    join agent.event as e on agent.base_kind(e.kind, e.notes) = named.base
    cross join lateral (select coalesce(e.notes ->> 'version', '1') as version) as begun
    where e.claimed <> '{}' and (e.notes ? 'version'
        or exists (select from agent.step as s where s.event_id = e.id and s.nth > 0))
    group by named.base, begun.version $$;

-- The ids under a natural key, or an id as text: live ones, then history from its newest.
create or replace function agent.find_events(_key text) returns setof int8
language plpgsql security definer set enable_seqscan = off as $$ begin
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
, _after_id int8, _limit int4) returns setof agent.ended_job
language plpgsql stable security definer set plan_cache_mode = force_custom_plan set enable_sort = off as $$
declare
    _outcomes text[] := array(
        select known from unnest(array['completed', 'failed', 'expired', 'cancelled']) as known
        where _statuses is null or known = any(_statuses));
    _wanted text[] := array(select kind from agent.kind where _kinds is null union select unnest(_kinds));
    _now timestamptz := agent.clock(); _left int4 := _limit; _found int4; _days int4;
    -- The step's events ended from _from to before _to; their event_ts lie from _first to _last.
    _from timestamptz;
    _to timestamptz := least(_until, _after + interval '1 microsecond', 'infinity');
    _first timestamptz; _last timestamptz;
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
                order by e.finished_at desc, e.id desc limit _left) as h
            order by h.finished_at desc, h.id desc limit _left;
        else
            return query select h.* from (
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
language sql stable security definer begin atomic
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
, _after_id int8, _limit int4) returns setof agent.job language plpgsql stable security definer
set plan_cache_mode = force_generic_plan set enable_bitmapscan = off as $$
declare _ids int8[]; _first record; _found int4; _left int4 := _limit;
begin
    select t.key as name, t.value as sought into _first from jsonb_each(_tags) as t limit 1;
    loop
        _ids := array(
            select tagged.event_id from jsonb_array_elements_text(_first.sought) as wanted (value)
            cross join lateral (
                select s.event_id from agent.step as s
                where s.nth = -1 and s.name = _first.name and s.arguments = wanted.value
                and s.event_id < coalesce(_after_id, 9223372036854775807)
                order by s.event_id desc limit greatest(_left, 100)) as tagged
            order by 1 desc limit greatest(_left, 100));
        exit when _ids = '{}';
        return query select j.* from agent.job as j
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
, _since timestamptz default null, _until timestamptz default null, _after timestamptz default null
, _after_id int8 default null, _limit int4 default 20, _tags jsonb default null) returns setof agent.job
language plpgsql security definer set plan_cache_mode = force_generic_plan set enable_bitmapscan = off as $$
declare _left int4 := least(greatest(_limit, 1), 1000); _found int4 := 0;
begin
    if _tags is not null then
        return query select * from agent.tagged_jobs(
            _tags, _statuses, _kinds, _key, _since, _until, _after_id, _left);
        return;
    elsif _after is not null or not _statuses && array['pending', 'scheduled', 'running'] then
        null; -- ended ones alone
    elsif _key is not null then
        return query
        select j.* from agent.live_job as j where j.id = any(array(select agent.live_events_of(_key)))
        and (_statuses is null or j.status = any(_statuses)) and (_kinds is null or j.kind = any(_kinds))
        and (_since is null or j.enqueued_at >= _since) and (_until is null or j.enqueued_at < _until)
        and (_after_id is null or j.id < _after_id) order by j.id desc limit _left;
        get diagnostics _found = row_count;
    else
        return query select j.* from agent.live_job as j
        where (_statuses is null or j.status = any(_statuses)) and (_kinds is null or j.kind = any(_kinds))
        and (_since is null or j.enqueued_at >= _since) and (_until is null or j.enqueued_at < _until)
        and (_after_id is null or j.id < _after_id) order by j.id desc limit _left;
        get diagnostics _found = row_count;
    end if;
    _left := _left - _found;
    if _left > 0 then
        return query select * from agent.list_ended(
            _statuses, _kinds, _key, _since, _until, _after, _after_id, _left);
    end if;
end $$;

-- Events with all of these words, in any case, among the newest 1,000 of the kinds since a time.
create or replace function agent.search_jobs
( _words text[], _kinds text[], _since timestamptz, _limit int4
, _tags jsonb default null) returns setof agent.job language sql security definer set jit = off as $$
    select j.* from agent.list_jobs(null, _kinds, null, _since, null, null, null, 1000, _tags) as j
    cross join lateral (select j.payload as p) as event
    cross join lateral (
        -- The texts, names and ids that people see, in Slack's payloads and jobs.
        select lower(concat_ws(' ', p ->> 'command', p ->> 'text', p #>> '{event,text}'
                , p #>> '{message,text}', p #>> '{actions,0,text,text}'
            , p #>> '{actions,0,selected_option,text,text}', p #>> '{actions,0,action_id}'
            , p #>> '{actions,0,value}', p ->> 'callback_id', p #>> '{view,title,text}'
            , p #>> '{view,callback_id}', p ->> 'user_name', p #>> '{user,username}', p #>> '{user,name}'
            , p ->> 'user_id', p #>> '{user,id}', p #>> '{event,user}', p ->> 'channel_name'
            , p #>> '{channel,name}', p ->> 'channel_id', p #>> '{channel,id}', p #>> '{event,channel}'
            , p #>> '{event,ts}', p #>> '{message,ts}', p #>> '{container,message_ts}'
            , p #>> '{event,item,ts}', p ->> 'trigger_id', p ->> 'event_id', j.item_key, j.group_key)) as text
            offset 0) as sent
    -- Slack escapes three characters of what people type.
    cross join lateral (
        select replace(replace(replace(sent.text, '&lt;', '<'), '&gt;', '>'), '&amp;', '&') as text offset 0
    ) as seen
    where not exists (select from unnest(_words) as word where position(lower(word) in seen.text) = 0)
    limit least(greatest(_limit, 1), 1000) $$;

-- Narrows the events of list_jobs by their payloads, errors and keys. Looks at _most events from
-- the cursor on, at most 1,000. Returns the matches, and the last event that it looked at, for the
-- next call. _words are parts of keys, _error is part of the error or the reason, in any case.
create or replace function agent.narrow_jobs
( _statuses text[], _kinds text[], _key text, _since timestamptz, _until timestamptz, _after timestamptz
, _after_id int8, _most int4, _workspace text, _channel text, _user text, _error text, _words text[]
, _tags jsonb default null) returns table (nth int8, matches boolean, job agent.job)
language sql security definer set jit = off as $$ with looked as materialized (
        select row_number() over () as nth, j::agent.job as job
        from agent.list_jobs(_statuses, _kinds, _key, _since, _until, _after, _after_id, _most, _tags) as j
    ), judged as materialized (
        select l.nth, l.job, (_workspace is null or agent.event_workspace((l.job).payload) = _workspace)
            and (_channel is null or agent.event_channel((l.job).payload) = _channel)
            and (_user is null or agent.event_user((l.job).payload) = _user)
            and (_error is null
                or position(lower(_error) in lower(concat_ws(' ', (l.job).errors, (l.job).reason))) > 0)
            and not exists (
                select from unnest(_words) as word
                where position(lower(word) in lower(concat_ws(' ', (l.job).item_key, (l.job).group_key
                        , (l.job).dedupe_key))) = 0) as matches
        from looked as l)
    select j.nth, j.matches, j.job from judged as j
    where j.matches or j.nth = (select max(l.nth) from looked as l) order by j.nth $$;

-- The events of a group: the newest _limit that ended, and the oldest _limit live ones.
create or replace function agent.group_jobs(_group_key text, _limit int4) returns setof agent.job
language sql stable security definer set enable_bitmapscan = off set enable_sort = off as $$
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
        limit _limit) $$;

-- The events of a Slack message, in its thread and at its time, for the first of _teams that has
-- one. _thread: the ts of the message that began the thread, if it is a reply.
create or replace function agent.message_jobs(_teams text[], _channel text, _ts numeric, _thread text)
returns setof int8
language plpgsql stable security definer set enable_bitmapscan = off set enable_sort = off as $$
declare _at timestamptz := agent.to_timestamptz(_ts); _key text;
begin
    for _key in select agent.bounded_key(concat_ws(':', team, _channel, thread))
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

create or replace function agent.count_jobs
( _statuses text[], _kinds text[], _key text, _since timestamptz, _until timestamptz, _most int4
, _tags jsonb default null) returns int4 language plpgsql security definer set jit = off as $$
declare _counted int4 := 0; _page int4; _found int4; _after timestamptz; _after_id int8;
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
