-- Figures of the queue, deliveries that became no event, and connections.
--   count_heads, named_kinds, vacuum_holder, queue_figures: parts of measure_queue
--   measure_queue: the first caller after a pause measures; workers, ingest
--   note_dropped, find_dropped, drop_notes: deliveries that became no event; ingest, operators
--   announce_sockets, list_sockets: whose Socket Mode's connections are; ingest, operators
--   dead_share: whether the live queue is worth a vacuum; workers
--   first_calls: tries what each service calls first; surelane doctor

-- How many heads of a kind are visible and how many will be later, and since when the oldest is: by
-- index alone. Counts a band lane by lane up to 10,000, and takes its other lanes to be alike:
-- exact below, within two percent above. Counts up to 100,000 parked events a priority. _but:
-- counts all kinds except these.
create or replace function agent.count_heads
( _kind text, _now timestamptz, _but text[] default null, out pending int8, out later int8
, out oldest timestamptz)
language plpgsql stable set plan_cache_mode = force_generic_plan set enable_bitmapscan = off as $$
declare _band record; _lane record; _seen int4; _visible int8; _ahead int8;
begin
    pending := 0; later := 0;
    for _band in
        select 0 as first, 16 as lanes union all
        select 12 + 4 * b.band, 4 from (
            select distinct band from agent.band where (kind = _kind or _but is not null) and band > 0) as b
            union all select parked.lane, 1 from unnest(array[-1, -2, -3, -4]) as parked (lane)
        where exists (select from agent.kind_limit as l where l.kind = _kind or _but is not null)
    loop
        _seen := 0; _visible := 0; _ahead := 0;
        while _seen < _band.lanes and _visible + _ahead < 10000 loop
            if _but is null then
                select count(*) filter (where vt <= _now) as pending
                , count(*) filter (where vt > _now) as later, min(vt) filter (where vt <= _now) as oldest
                into _lane from (
                    select vt from agent.event where head and lane = _band.first + _seen and kind = _kind
                    limit case when _band.first < 0 then 100000 end) as counted;
            else
                select count(*) filter (where vt <= _now) as pending
                , count(*) filter (where vt > _now) as later, min(vt) filter (where vt <= _now) as oldest
                into _lane from (
                    select vt from agent.event where head and lane = _band.first + _seen
                    -- Hashed, which an array would not be.
                    and kind not in (select but from unnest(_but) as but)
                    limit case when _band.first < 0 then 100000 end) as counted;
            end if;
            _visible := _visible + _lane.pending;
            _ahead := _ahead + _lane.later;
            oldest := least(oldest, _lane.oldest);
            _seen := _seen + 1;
        end loop;
        pending := pending + round(_visible * _band.lanes::numeric / _seen);
        later := later + round(_ahead * _band.lanes::numeric / _seen);
    end loop;
end $$;

-- The kinds that are counted by name where there are more than 500: the largest in 1,000 pages of
-- the queue, then paused kinds and workers' kinds. Null: all are.
create or replace function agent.named_kinds() returns text[] language plpgsql as $$
declare _percent float8 := 100 * 1000 * 8192.0 / greatest(pg_relation_size('agent.event'), 1);
begin
    if not exists (select from agent.kind offset 500) then return null; end if;
    return array(
        select k.kind from agent.kind as k
        left join (
            select s.kind, count(*) as events from agent.event as s tablesample system (least(_percent, 100))
            group by s.kind) as seen on seen.kind = k.kind
        left join (
            select distinct handled as kind from agent.worker as w cross join unnest(w.kinds) as handled
        ) as workers on workers.kind = k.kind
        order by seen.events desc nulls last, k.paused desc, workers.kind is null, k.kind limit 500);
end $$;

-- The dead rows of the live queue by the statistics, as a share of what is worth a vacuum: 2,000,
-- or a twentieth of the live ones. Null where the caller may not vacuum it: before PostgreSQL 17
-- its owner alone may.
create or replace function agent.dead_share() returns float8 language plpgsql security definer as $$ begin
    if current_setting('server_version_num')::int4 < 170000
        or not has_table_privilege(session_user, 'agent.event', 'maintain') then
        return null;
    end if;
    return pg_stat_get_dead_tuples('agent.event'::regclass)
        / greatest(2000, pg_stat_get_live_tuples('agent.event'::regclass) / 20.0);
end $$;

-- What holds back vacuum the longest: a session's transaction, a prepared one or a replication
-- slot. No row: nothing does. A transaction of another database does so too once it has written.
-- anchor is what it holds. state and since are null where they are hidden from the owner of the
-- schema, who is not a member of pg_read_all_stats; a slot has no since.
create or replace function agent.vacuum_holder()
returns table (holder text, pid int4, application text, state text, since timestamptz, anchor text)
language sql security definer as $$
    select h.holder, h.pid, h.application, h.state, h.since, h.anchor::text from (
        select 'session' as holder, a.pid
        , coalesce(nullif(a.application_name, ''), a.backend_type, '') as application
        , a.state, a.xact_start as since
        , case when age(a.backend_xid) >= age(a.backend_xmin) or a.backend_xmin is null then a.backend_xid
            else a.backend_xmin end as anchor
        from pg_stat_activity as a where (a.backend_xid is not null or a.backend_xmin is not null
            and (a.datid is null or a.datname = current_database()))
        and a.pid <> pg_backend_pid() and not exists (select from pg_stat_progress_vacuum as v
            where v.pid = a.pid)
        union all
        select 'prepared', null, p.gid, 'prepared', p.prepared, p.transaction from pg_prepared_xacts as p
        union all select 'slot', s.active_pid, s.slot_name
        , case when s.active then 'active' else 'inactive' end, null, s.xmin
        from pg_replication_slots as s where s.xmin is not null) as h
    order by age(h.anchor) desc, h.since limit 1 $$;

-- The figures that operators watch, at a cost that hardly grows with the queue or its kinds: those
-- without a name of their own (agent.named_kinds) are one, "other". _last: the holder of vacuum as
-- it was seen before, for since when, where that is hidden.
create or replace function agent.queue_figures(_last jsonb) returns jsonb
language plpgsql set enable_seqscan = off as $$
declare _now timestamptz := agent.clock(); _holder jsonb; _named text[] := agent.named_kinds();
begin
    select jsonb_build_object('holder', h.holder, 'pid', h.pid, 'application', h.application
        , 'state', h.state, 'anchor', h.anchor, 'since', coalesce(extract(epoch from h.since)
            , case when _last ->> 'anchor' = h.anchor then (_last -> 'since')::numeric end
            , extract(epoch from _now)))
    into _holder from agent.vacuum_holder() as h;
    return jsonb_build_object
    ( 'kinds', (
        with running as materialized (
            select case when r.kind = any(_named) or _named is null then r.kind end as kind
            , count(*) as events, count(*) filter (where r.head) as heads
            from (select kind, head, claimed_by from agent.event where attempts > 0 and vt > _now order by vt
                limit 50000) as r
            where r.claimed_by is not null group by 1
        ), counted as (
            select k.kind, k.paused, c.* from agent.kind as k
            cross join lateral agent.count_heads(k.kind, _now) as c
            where k.kind = any(_named) or _named is null
            union all
            select null, false, c.* from agent.count_heads(null, _now, _named) as c where _named is not null
        )
        select coalesce(jsonb_agg(jsonb_build_object('kind', coalesce(c.kind, 'other')
            , 'paused', c.paused, 'pending', c.pending
            , 'scheduled', greatest(c.later - coalesce(r.heads, 0), 0), 'running', coalesce(r.events, 0)
            , 'oldest_pending_age', coalesce(extract(epoch from _now - c.oldest), 0)) order by c.kind), '[]')
        from counted as c left join running as r on r.kind is not distinct from c.kind)
    , 'group_waiting', (select count(*)
        from (select from agent.event where not head and claimed_by is null limit 100000) as waiting)
    , 'workers', (select count(*) from agent.list_workers() as w where w.alive)
    , 'dead_rows', pg_stat_get_dead_tuples('agent.event'::regclass), 'holder', _holder);
end $$;

-- The queue's figures, measured once for all callers: again after 15 seconds, or later where
-- measuring takes long, so it costs one percent of a processor at most. The first caller after that
-- time measures (fresh); others get the last measurement. Null: there is none yet. began and ended:
-- of this call, by the database's clock, for the caller to compare its own with. The trail keeps a
-- measurement each five minutes, for a day: its time, and each kind's depths.
create or replace function agent.measure_queue() returns jsonb language plpgsql security definer as $$
declare _began timestamptz := agent.clock(); _figures jsonb;
begin
    perform from agent.measurement where due <= _began for update skip locked;
    if found then
        begin
            _figures := agent.queue_figures((select figures -> 'holder' from agent.measurement));
        exception when query_canceled then
            null; -- Also back off after a timeout; otherwise the next caller repeats the wait.
        end;
        update agent.measurement set figures = coalesce(_figures, figures)
        , measured_at = case when _figures is null then measured_at else _began end
        , due = _began + greatest(interval '15 seconds', 100 * (agent.clock() - _began))
        , trail = case when _figures is null
            or extract(epoch from _began) < (trail #>> '{-1,0}')::numeric + 295 then trail else
            case when jsonb_array_length(trail) < 288 then trail else trail - 0 end
                || jsonb_build_array(jsonb_build_array(extract(epoch from _began)::int8
                , (select jsonb_object_agg(k ->> 'kind'
                        , jsonb_build_array(k -> 'pending', k -> 'running', k -> 'scheduled'))
                    from jsonb_array_elements(_figures -> 'kinds') as k
                    where not k @> '{"pending": 0, "running": 0, "scheduled": 0}'))) end;
    end if;
    return (
        select figures || jsonb_build_object('fresh', _figures is not null
            , 'measured_at', extract(epoch from measured_at)
            , 'began', extract(epoch from _began), 'ended', extract(epoch from agent.clock()))
        from agent.measurement where measured_at is not null);
end $$;

-- Keeps that deliveries came and became no event, for a day: [[age in seconds, key, kind, reason,
-- workspace, channel, ts], …]. The oldest go earlier where all take more than 64 MB: about 20 hours
-- of the 30,000 an hour that Slack delivers at most for one workspace. Never waits for a lock.
create or replace function agent.note_dropped(_deliveries jsonb) returns void
language plpgsql security definer set enable_seqscan = off set lock_timeout = '100ms' as $$
declare
    _now timestamptz := agent.clock();
    _oldest float8 := (select max((d ->> 0)::float8) from jsonb_array_elements(_deliveries) as d);
    _before int8 := coalesce((select upto from agent.dropped order by id desc limit 1), 0);
    _upto int8 := _before + pg_column_size(_deliveries) + 100;
begin
    insert into agent.dropped (at, first_at, deliveries, upto)
    values (_now, _now - make_interval(secs => _oldest), _deliveries, _upto);
    delete from agent.dropped where id in (
        select o.id from (select * from agent.dropped order by id limit 20 for update skip locked) as o
        where o.at < _now - interval '1 day' or o.upto <= _upto - 64 * 1024 * 1024);
end $$;

-- Counts (_remove: and removes) the notes of dropped deliveries with these ids. Skips locked ones.
create or replace function agent.drop_notes(_names text[], _remove boolean) returns int4
language plpgsql security definer set jit = off as $$
declare
    _ids int8[] := array(
        select id from agent.dropped
        where deliveries @> all(array(select jsonb_build_array(jsonb_build_array(n))
                from unnest(_names) as n))
        for update skip locked);
    _notes int4 := (
        select count(*) from agent.dropped as b cross join lateral jsonb_array_elements(b.deliveries) as d
        where b.id = any(_ids) and d ?& _names);
begin
    if _remove and _notes > 0 then
        update agent.dropped set deliveries = (
            select coalesce(jsonb_agg(d), '[]') from jsonb_array_elements(deliveries) as d
            where not d ?& _names) where id = any(_ids);
    end if;
    return _notes;
end $$;

-- The deliveries of the last day that became no event, newest first. What is null matches all.
create or replace function agent.find_dropped
( _key text default null, _channel text default null, _ts text default null, _from timestamptz default null
, _until timestamptz default null, _limit int4 default 20)
returns table (at timestamptz, key text, kind text, reason text, workspace text, channel text, ts text)
language sql stable security definer set jit = off as $$ select f.* from (
        select b.at - make_interval(secs => (d ->> 0)::float8) as came_at, d ->> 1 as key, d ->> 2 as kind
        , d ->> 3 as reason, d ->> 4 as workspace, d ->> 5 as channel, d ->> 6 as ts
        from agent.dropped as b cross join lateral jsonb_array_elements(b.deliveries) as d
        where b.at > (select agent.clock()) - interval '1 day'
        and b.at >= coalesce(_from, '-infinity') and b.first_at <= coalesce(_until, 'infinity')
        and (_key is null or b.deliveries @> jsonb_build_array(jsonb_build_array(_key)))
        and (_ts is null or b.deliveries @> jsonb_build_array(jsonb_build_array(_ts)))) as f
    where (_key is null or f.key = _key) and (_channel is null or f.channel = _channel)
    and (_ts is null or f.ts = _ts)
    and f.came_at between coalesce(_from, '-infinity') and coalesce(_until, 'infinity')
    order by f.came_at desc limit least(greatest(_limit, 1), 200) $$;

-- An ingest process says how many connections of Socket Mode it has, or is about to open: before it
-- opens one, and after one ended. With _of_the_app it also says how many Slack told it that the app
-- has. Returns what agent.list_sockets does. A null of _sockets: the process ends.
create or replace function agent.announce_sockets
( _name text, _app_id text, _sockets int4, _of_the_app int4 default null, out ours int4, out others int4
, out unsure boolean, out told_ago interval) language plpgsql security definer as $$
declare _now timestamptz := agent.clock(); _others int4; _since timestamptz;
begin
    delete from agent.socket as s where s.name in (
        select o.name from agent.socket as o
        where o.seen_at < _now - interval '1 hour' or (o.name = _name and _sockets is null)
        for update skip locked);
    if _sockets is not null then
        insert into agent.socket as s (name, app_id, sockets, seen_at) values (_name, _app_id, _sockets, _now)
        on conflict (name) do update
        set app_id = excluded.app_id, sockets = excluded.sockets, seen_at = excluded.seen_at;
    end if;
    if _of_the_app is not null then
        select greatest(_of_the_app - l.ours, 0) into _others from agent.list_sockets() as l
        where l.app_id = _app_id;
        select s.since into _since from agent.socket as s
        where s.app_id = _app_id and s.seen_at > _now - interval '1 minute' and s.told_at is not null
        order by s.told_at desc limit 1;
        update agent.socket as s set others = _others, told_at = _now
        , since = case when _others > 0 then coalesce(_since, _now) end where s.name = _name;
    end if;
    select l.ours, l.others, l.unsure, _now - l.told_at
    into announce_sockets.ours, announce_sockets.others, announce_sockets.unsure, announce_sockets.told_ago
    from agent.list_sockets() as l where l.app_id = _app_id;
end $$;

-- Of each app with Socket Mode: how many connections all our processes have, and how many others
-- had when Slack last told one of ours. A process that is silent for a minute counts no more. What
-- Slack said within four seconds alone is unsure, and counts as none: one of ours may have ended.
create or replace function agent.list_sockets()
returns table (app_id text, ours int4, others int4, unsure boolean, told_at timestamptz)
language sql stable security definer as $$ select c.app_id, c.ours
    , case when c.told_at >= c.since + interval '4 seconds' then c.others else 0 * c.others end
    , coalesce(c.told_at < c.since + interval '4 seconds', false), c.told_at from (
        select s.app_id, sum(s.sockets)::int4 as ours, max(s.told_at) as told_at
        , (array_agg(s.others order by s.told_at desc nulls last))[1] as others
        , (array_agg(s.since order by s.told_at desc nulls last))[1] as since
        from agent.socket as s where s.seen_at > agent.clock() - interval '1 minute' group by s.app_id
    ) as c $$;

-- Makes each service's first calls with its role's rights, and takes them back (agent.try_out).
-- Functions run as their owner, so the role decides only whether it may call them.
create or replace function agent.first_calls()
returns table (role text, call text, code text, message text, object text)
language plpgsql security definer set lock_timeout = '1s' as $$
declare _given record; _oid oid;
begin
    for _given in
        select * from (values
            ('agent_ingest', 'takes_events', 'select agent.takes_events()')
            , ('agent_ingest', 'insert_events', 'select from agent.insert_events(''{}'')')
            , ('agent_worker', 'claim_events', 'select from agent.claim_events(''{surelane.doctor}'')')
            , ('agent_worker', 'settle', 'select from agent.settle(''{0}'', ''{0}'', ''{complete}'')')
            , ('agent_worker', 'extend_leases', 'select from agent.extend_leases(''{0}'', ''{0}'', ''1m'')')
            , ('agent_worker', 'due_cron', 'select from agent.due_cron()')
            , ('agent_operator', 'queue_stats', 'select from agent.queue_stats()')
            , ('agent_producer', 'enqueue', 'select agent.enqueue(''surelane-doctor'')')
        ) as known (role, function, statement)
    loop
        role := _given.role;
        call := 'agent.' || _given.function;
        code := null; object := null;
        select p.oid into _oid from pg_proc as p
        where p.pronamespace = 'agent'::regnamespace and p.proname = _given.function limit 1;
        if not has_schema_privilege(role, 'agent', 'usage') then
            code := '42501'; message := 'permission denied for schema agent';
        elsif not has_function_privilege(role, _oid, 'execute') then
            code := '42501'; message := 'permission denied for function ' || _given.function;
        else
            select t.* into code, message, object from agent.try_out(_given.statement) as t;
        end if;
        return next;
    end loop;
end $$;
