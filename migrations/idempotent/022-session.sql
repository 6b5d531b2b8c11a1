-- The schema's version, the server's timeline, and the workers with their sessions.
--   schema_version: operators, all services
--   own_timeline, note_timeline: whether a failover lost commits; all services
--   worker_alive, list_workers: the list of workers; operators, ingest
--   session_class, open_sessions: the locks by which workers live; rescues, lists
--   foreign_locks: who else has one of the queue's locks; the doctor
--   open_session, introduce_worker, declare_attempts: a worker's new connection
--   watch_sessions: responder and deputy
--   announce_worker, retire_worker: a worker, at its start and its end
--   drain_worker, worker_drained: operators drain a worker; its polls ask

-- The schema's version, and the oldest version of the services that it serves.
create or replace function agent.schema_version(out version text, out min_compatible text)
language sql stable security definer
as $$ select v.version::text, v.min_compatible::text from agent.version as v $$;

-- The server's system identifier, its timeline, and the newest timeline that it was told of: a
-- server below that was the primary before a failover. Null on a standby, or if hidden.
create or replace function agent.own_timeline(out system_identifier int8, out timeline int4, out newest int4)
language plpgsql security definer as $$ begin
    if pg_is_in_recovery() then return; end if;
    begin
        system_identifier := (select c.system_identifier from pg_control_system() as c);
        timeline := ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int4;
    exception when others then -- platforms refuse these with codes of their own
        return;
    end;
    newest := agent.note_timeline(system_identifier, timeline);
end $$;

-- Keeps and returns a server's newest timeline: so a service tells the former primary, and others.
create or replace function agent.note_timeline(_system_identifier int8, _timeline int4) returns int4
language plpgsql security definer as $$
declare _newest int4 := (select newest from agent.timeline where system_identifier = _system_identifier);
begin
    if _timeline <= _newest or current_setting('transaction_read_only') = 'on' then
        return greatest(_timeline, _newest);
    end if;
    insert into agent.timeline as t values (_system_identifier, _timeline)
    on conflict (system_identifier) do update set newest = greatest(t.newest, excluded.newest)
    returning t.newest into _newest;
    return _newest;
end $$;

-- Whether a worker that last announced itself at that time counts as alive.
create or replace function agent.worker_alive(_seen_at timestamptz) returns boolean
language sql stable set search_path = pg_catalog, pg_temp return _seen_at > agent.clock() - agent.alive_for();

-- The first key of the advisory locks that are workers' sessions (pg_locks.classid).
create or replace function agent.session_class() returns int4
language sql immutable parallel safe return 1937077859;

-- The sessions of workers that are open on this database, except those of process _but. Every role
-- may read pg_locks, and take such a lock: locks of other roles do not count.
create or replace function agent.open_sessions(_but int4 default null) returns int4[]
language sql security definer set jit = off
return array(
    select l.objid::int8::int4 from pg_locks as l
    where l.locktype = 'advisory' and l.classid = agent.session_class()::oid and l.objsubid = 2 and l.granted
    and l.database = (select d.oid from pg_database as d where d.datname = current_database())
    and l.pid is distinct from _but
    and exists (select from pg_stat_get_activity(l.pid) as a
        where has_function_privilege(a.usesysid, 'agent.open_session(text, text, boolean)', 'execute')));

-- The queue's advisory locks that sessions of other roles have, by session. The queue goes on
-- without them, but more slowly: wake-ups wait for polls, for example.
create or replace function agent.foreign_locks()
returns table (pid int4, application text, role text, what text)
language sql security definer set jit = off as $$
    select l.pid, a.application_name, a.usename::text, string_agg(distinct known.what, ', ')
    from pg_locks as l join pg_stat_activity as a on a.pid = l.pid
    join (
        select 2 as sub, agent.session_class()::int8 as key, 'a session of a worker' as what
        union all select 1, agent.heartbeat_lock(), 'heartbeats'
        union all select 1, 31321898691465844, 'migrations'
        union all select 1, agent.position_lock(w.kinds, place), 'positions' from agent.worker as w
        cross join generate_series(0, 1) as place
    ) as known on known.sub = l.objsubid and known.key = case l.objsubid when 2 then l.classid::int8
        else l.classid::int8 << 32 | l.objid::int8 end
    where l.locktype = 'advisory' and l.granted
    and l.database = (select d.oid from pg_database as d where d.datname = current_database())
    and not has_function_privilege(a.usesysid, 'agent.open_session(text, text, boolean)', 'execute')
    group by l.pid, a.application_name, a.usename $$;

-- Opens a worker's session on this connection, if it has none: a lock under a key of its own, which
-- PostgreSQL drops as the connection ends. A worker that opens a session again keeps its claims,
-- unless it has been taken for dead meanwhile. _starts: this process has had none before; the
-- claims of a predecessor of this name, whose session is gone, end. surelane.locked is then how
-- many of them were locked and still stand. While another process of this name is alive, the name
-- is refused. False: the worker's row is locked; call it again.
create or replace function agent.open_session(_name text, _version text, _starts boolean) returns boolean
language plpgsql security definer set lock_timeout = '100ms' as $$
declare _session int4 := nullif(current_setting('surelane.session', true), '');
begin
    -- Without a heartbeat for 90 seconds its session is left over, on a connection that was lost.
    if _starts and exists (
        select from agent.worker as w where w.name = _name and w.died_at is null
        and agent.worker_alive(w.seen_at)
        and w.session <> coalesce(_session, -1) and w.session = any(agent.open_sessions(pg_backend_pid())))
        then
        raise object_in_use using message = format(
            'another process works under the name %s: give each worker a SURELANE_WORKER_NAME of its own'
            ', or none', _name);
    end if;
    if _session is null then
        loop
            -- A new key, which no other login could have locked beforehand.
            _session := floor(random() * 2147483648)::int4;
            exit when not exists (select from agent.worker where session = _session)
                and pg_try_advisory_lock_shared(agent.session_class(), _session);
        end loop;
        perform set_config('surelane.session', _session::text, false);
    end if;
    begin
        if _starts then
            perform set_config('surelane.locked'
                , (agent.rescue_worker(_name, (select session from agent.worker where name = _name)
                    , interval '0', _name)).remaining::text, false);
            insert into agent.worker (name, kinds, version) values (_name, '{}', _version) on conflict (name)
            do nothing;
        end if;
        -- A forgotten worker has no row: it announces itself again, with its session.
        update agent.worker set session = _session, died_at = null, seen_at = agent.clock()
        where name = _name;
        return true;
    exception when lock_not_available then return false;
    end;
end $$;

-- Puts a worker on the list, with its kinds, which of them keep a thread's order (order_kinds), and
-- how many handlers it runs at once. A worker calls it on each new connection before it claims:
-- ingest waits for listed workers alone. False: the worker's row is locked; call it again.
create or replace function agent.introduce_worker
( _name text, _version text, _kinds text[], _ordered text[], _slots int4
, _interactive_slots int4) returns boolean
language plpgsql security definer set lock_timeout = '100ms' as $$ begin
    insert into agent.worker (name, kinds, version, ordered, slots, interactive_slots, started_at, seen_at)
    values (_name, _kinds, _version, _ordered, _slots, _interactive_slots, agent.clock(), agent.clock())
    on conflict (name) do update set kinds = excluded.kinds, version = excluded.version
    , ordered = excluded.ordered, slots = excluded.slots
    , interactive_slots = excluded.interactive_slots, seen_at = agent.clock();
    return true;
exception when lock_not_available then return false;
end $$;

-- The workers, and the state of each: alive; drained, so it claims nothing; lost, as its session is
-- gone and it may come back; died, as it did not; silent, as it has announced nothing for too long.
-- A worker behind a transaction pooler has no session: it is neither lost nor died.
create or replace function agent.list_workers()
returns table (name text, kinds text[], version text, state text, alive boolean, started_at timestamptz
, seen_at timestamptz, died_at timestamptz, clock_offset interval, max_attempts int4)
language sql security definer set jit = off as $$
    select w.name, w.kinds, w.version, s.state, s.state in ('alive', 'drained'), w.started_at, w.seen_at
    , w.died_at, w.clock_offset, w.max_attempts
    from (select agent.open_sessions() as sessions offset 0) as open cross join agent.worker as w
    cross join lateral (
        select case when w.died_at is not null then 'died'
            when w.session is not null and w.session <> all(open.sessions) then 'lost'
            when not agent.worker_alive(w.seen_at) then 'silent' when w.drained_at is not null then 'drained'
                else 'alive' end as state) as s
    order by w.name $$;

-- One look at all sessions, by worker _name: which workers have lost theirs and have not been taken
-- for dead, and how many have one or had. Sessions lost before server_since say nothing.
create or replace function agent.watch_sessions
( _name text, out names text[], out sessions int4[], out known int4, out server_since timestamptz)
language plpgsql security definer set jit = off as $$ declare _open int4[];
begin
    -- A session's lock is older than its row: so the rows are read first.
    select array_agg(w.name), array_agg(w.session) into names, sessions from agent.worker as w
    where w.session is not null and w.died_at is null;
    _open := agent.open_sessions();
    known := coalesce(cardinality(names), 0);
    select coalesce(array_agg(given.name), '{}'), coalesce(array_agg(given.session), '{}')
    into names, sessions
    from unnest(names, sessions) as given (name, session) where given.session <> all(_open);
    server_since := pg_postmaster_start_time();
end $$;

-- Records how many attempts events of a listed worker's kinds may have without a maximum of their
-- own: _max_attempts, or their kind's in _of_kinds. A worker calls it on each new connection before
-- it claims. If workers differ, the last to start decides.
create or replace function agent.declare_attempts
( _name text, _kinds text[], _max_attempts int4, _of_kinds jsonb) returns void
language plpgsql security definer as $$ begin
    perform agent.register_kinds(_kinds);
    if _max_attempts is null then return; end if;
    perform agent.in_halves(format($s$
        with said as (
            update agent.kind set max_attempts = coalesce((%1$L::jsonb ->> kind)::int4, %2$s)
            where kind in (
                select k.kind from agent.kind as k where k.kind = any($1)
                and k.max_attempts is distinct from coalesce((%1$L::jsonb ->> k.kind)::int4, %2$s)
                and not exists (select from agent.worker as w
                    where k.kind = any(w.kinds) and w.max_attempts is not null and w.name <> %3$L
                    and w.started_at > (select started_at from agent.worker where name = %3$L))
                order by k.kind for update skip locked) returning kind)
        select jsonb_build_object('kinds', count(*)) from said $s$, _of_kinds, _max_attempts, _name)
    , _kinds, 'kind');
end $$;

-- Records that a worker is alive, its kinds, and its session on this connection, if it has opened
-- one. New kinds change the heads of groups that waited. _max_attempts, _of_kinds: see
-- declare_attempts. A day's silence makes it forgotten. _clock_offset: its clock less ours.
create or replace function agent.announce_worker
( _name text, _kinds text[], _version text, _clock_offset interval default null
, _max_attempts int4 default null, _of_kinds jsonb default '{}') returns void
language plpgsql security definer as $$
declare
    _known boolean := exists (select from agent.worker where name = _name and kinds = _kinds);
    _session int4 := nullif(current_setting('surelane.session', true), '');
begin
    insert into agent.worker as w (name, kinds, version, clock_offset, max_attempts, started_at, seen_at
        , session)
    values (_name, _kinds, _version, _clock_offset, _max_attempts, agent.clock(), agent.clock(), _session)
    on conflict (name) do update set kinds = excluded.kinds, version = excluded.version
    , clock_offset = excluded.clock_offset, max_attempts = excluded.max_attempts
    , seen_at = agent.clock(), session = excluded.session
    , died_at = case when w.session is not distinct from excluded.session then w.died_at end;
    delete from agent.worker where seen_at < (select agent.clock()) - interval '1 day';
    perform agent.declare_attempts(_name, _kinds, _max_attempts, _of_kinds);
    if not _known then perform agent.free_groups(); end if;
end $$;

-- Removes a worker that ends. Its kinds count as handled as long as if it were alive; another may
-- take its place. Does nothing while claims stand under its name: rescue_worker needs its row.
create or replace function agent.retire_worker(_name text) returns void
language plpgsql security definer set enable_seqscan = off as $$
declare _now timestamptz := agent.clock(); _kinds text[];
begin
    if exists (select from agent.event where attempts > 0 and vt > _now and claimed_by = _name) then
        return;
    end if;
    delete from agent.worker where name = _name returning kinds into _kinds;
    -- Does not wait for an operator who is just pausing a kind.
    update agent.kind set handled_at = agent.clock()
    where kind in (select kind from agent.kind where kind = any(_kinds) order by kind
        for no key update skip locked);
end $$;

create or replace function agent.drain_worker(_name text, _drained boolean) returns boolean
language sql security definer as $$
    update agent.worker set drained_at = case when _drained then coalesce(drained_at, agent.clock()) end
    where name = _name;
    select exists (select from agent.worker where name = _name) $$;

create or replace function agent.worker_drained(_name text) returns boolean
language sql stable security definer
return exists (select from agent.worker where name = _name and drained_at is not null);
