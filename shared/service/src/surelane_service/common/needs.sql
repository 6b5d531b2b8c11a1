-- What Surelane needs of a database, the most important first. Each query returns one row: found,
-- a sentence; wrong, null where this role cannot see it; and perhaps cure, SQL that an
-- administrator or the owner runs. The cure stands for {cure} in the advice. A need that is not met
-- is a problem, a warning is no more than that. A need of the schema waits until that is there.

-- need: server
-- advice: upgrade to PostgreSQL 16 or newer
select 'PostgreSQL ' || current_setting('server_version') as found
, current_setting('server_version_num')::int4 < 160000 as wrong;

-- need: encoding
-- advice: only UTF8 holds all that people write. Make a database, and move to it: {cure}
select getdatabaseencoding() as found, getdatabaseencoding() <> 'UTF8' as wrong
, 'create database surelane encoding ''UTF8'' template template0' as cure;

-- need: writes
-- advice: let DATABASE_URL lead to the primary. Platforms make a database read-only when its disk
-- is full
select case when standby then 'a standby' when refuses then 'read-only by default' else 'a primary that takes writes' end
    as found
, standby or refuses as wrong
from pg_is_in_recovery() as standby, (select current_setting('default_transaction_read_only') = 'on') as s (refuses);

-- warning: durability
-- advice: a crash of the server loses events that were acknowledged: turn these on, but on a
-- machine for tests
select coalesce(string_agg(name, ', '), 'nothing') || ' is off' as found, count(*) > 0 as wrong
from pg_settings where name in ('synchronous_commit', 'fsync', 'full_page_writes') and setting = 'off';

-- need: triggers
-- advice: our triggers do not run. As an administrator: {cure}; do the same for the database
select 'session_replication_role ' || mode as found, mode = 'replica' as wrong
, format('alter role %I reset session_replication_role', session_user) as cure
from current_setting('session_replication_role') as mode;

-- warning: isolation
-- advice: our own connections set read committed; programs that enqueue over theirs need it. To
-- change it: {cure}
select 'by default: ' || coalesce(string_agg(s.level, ', '), 'read committed') as found, count(*) > 0 as wrong
, string_agg(format('alter %s reset default_transaction_isolation', s.place), '; ') as cure
from (
    select split_part(setting, '=', 2) as level
    , case when setrole = 0 then format('database %I', current_database()) else 'role ' || setrole::regrole
      || case when setdatabase <> 0 then format(' in database %I', current_database()) else '' end end as place
    from pg_db_role_setting cross join unnest(setconfig) as setting
    where setdatabase in (0, (select oid from pg_database where datname = current_database()))
    and setting like 'default_transaction_isolation=%' and setting <> 'default_transaction_isolation=read committed'
) as s;

-- need: rights
-- advice: as the database's owner: {cure}
select format('%I %s', current_user, case
    when nspowner = (select oid from pg_roles where rolname = current_user) then 'owns schema agent'
    when n.oid is not null then 'does not own schema agent, as suits a service'
    when may then 'may create schema agent' else 'may not create schema agent' end) as found
, n.oid is null and not may as wrong, format('grant create on database %I to %I', current_database(), current_user) as cure
from has_database_privilege(current_database(), 'create') as may left join pg_namespace as n on n.nspname = 'agent';

-- need: our roles
-- advice: this role may not create them. As an administrator: {cure}; then: python -m
-- surelane_migrations apply --again
select 'missing: ' || coalesce(string_agg(name, ', '), 'none') as found
, count(*) > 0 and not (select rolcreaterole or rolsuper from pg_roles where rolname = current_user) as wrong
, string_agg(format('create role %I nologin', name), '; ') as cure
from unnest(array['agent_ingest', 'agent_worker', 'agent_operator', 'agent_producer']) as name
where to_regrole(name) is null;

-- need: logins
-- advice: services cannot work under these. As an administrator: {cure}
select format('of %s logins of services: %s', count(distinct login.oid)
    , coalesce(string_agg(format('%I: %s', login.rolname, problem), '; ' order by login.rolname, problem)
        filter (where problem is not null), 'nothing is wrong')) as found
, count(problem) > 0 as wrong
, string_agg(format('alter role %I %s', login.rolname, mended), '; ' order by login.rolname, problem) as cure
from pg_roles as login left join lateral (
    select setting as problem, case when setdatabase <> 0 then format('in database %I ', current_database()) else '' end
        || 'reset ' || split_part(setting, '=', 1) as mended
    from pg_db_role_setting cross join unnest(setconfig) as setting
    where setrole = login.oid and setdatabase in (0, (select oid from pg_database where datname = current_database()))
    and setting ~ '^(default_transaction_read_only=(on|true|yes|1)|session_replication_role=replica|role=)'
    union all
    select 'its password ended at ' || login.rolvaliduntil, 'valid until ''infinity''' where login.rolvaliduntil < now()
    union all
    select format('%s connections at most', login.rolconnlimit), 'connection limit -1'
    where login.rolconnlimit between 0 and 5
) as found on true
where login.rolcanlogin and not login.rolsuper and exists (
    select from unnest(array['agent_ingest', 'agent_worker', 'agent_operator', 'agent_producer']) as name
    where pg_has_role(login.oid, to_regrole(name), 'usage'));

-- need: ownership
-- advice: the next migration fails. As an administrator: {cure}
select 'of another than the schema''s owner: ' || coalesce(string_agg(name, ', ' order by name), 'nothing') as found
, count(*) > 0 as wrong, string_agg(format('alter %s owner to %I', name, owner), '; ') as cure
from (
    select format('table agent.%I', relname) as name, pg_get_userbyid(nspowner) as owner
    from pg_class as c join pg_namespace as n on n.oid = relnamespace
    where nspname = 'agent' and relkind in ('r', 'p', 'v', 'm') and relowner <> nspowner
    union all
    select format('routine agent.%I(%s)', proname, pg_get_function_identity_arguments(p.oid)), pg_get_userbyid(nspowner)
    from pg_proc as p join pg_namespace as n on n.oid = pronamespace
    where nspname = 'agent' and proowner <> nspowner
    and not exists (select from pg_depend as d where d.objid = p.oid and d.deptype = 'e')
) as strange;

-- need: row security
-- advice: commands and checks cannot see these rows. As the schema's owner: {cure}
select 'switched on: ' || coalesce(string_agg(relname, ', '), 'nowhere') as found, count(*) > 0 as wrong
, string_agg(format('alter table agent.%I no force row level security, disable row level security', relname), '; ') as cure
from pg_class where relnamespace = to_regnamespace('agent') and relkind in ('r', 'p') and relrowsecurity;

-- need: publications
-- advice: PostgreSQL refuses to change rows of these tables. Run: python -m surelane_migrations
-- apply --again
select format('of our tables: %s; tables without a replica identity: %s'
    , coalesce((select string_agg(distinct pubname::text, ', ') from pg_publication_tables where schemaname = 'agent')
        , 'none')
    , coalesce(string_agg(relname, ', '), 'none')) as found
, count(*) > 0 and exists (select from pg_publication where puballtables) as wrong
from pg_class as c where relnamespace = to_regnamespace('agent') and relkind in ('r', 'p') and relreplident in ('d', 'n')
and not exists (select from pg_index where indrelid = c.oid and indisprimary);

-- need: event triggers
select 'on changes of a schema: ' || coalesce(string_agg(evtname, ', '), 'none') as found, false as wrong
from pg_event_trigger where evtenabled <> 'D' and evtevent <> 'login';

-- schema: collation
-- advice: texts sort otherwise than when their indexes were built: rows are missed, and unique keys
-- stored twice. Stop the services. As the database's owner, one after the other: {cure}
select format('locale data of version %s; the server has %s', coalesce(datcollversion, 'none'), coalesce(actual, 'none'))
    as found
, coalesce(datcollversion <> actual, false) as wrong
, format('reindex schema agent; alter database %I refresh collation version', datname) as cure
from pg_database, pg_database_collation_actual_version(oid) as actual where datname = current_database();

-- schema: sequences
-- advice: new events would get ids of old ones, as after a restore of single tables. As the
-- schema's owner: {cure}
select format('the last id given is %s, the newest stored %s', last, newest) as found, newest > last as wrong
, format('select setval(''agent.event_id_seq'', %s)', newest) as cure
from (
    select coalesce(pg_sequence_last_value('agent.event_id_seq'), 0) as last
    , coalesce(greatest((select max(id) from agent.event), (select max(id) from agent.event_hist)), 0) as newest
) as ids;

-- warning: connections
-- advice: raise max_connections, or the limit of the database or the role; workers may run behind
-- a pooler
select format('%s of %s are free; an ingest takes up to 11, a worker 12, the operator 7', free, most) as found
, free < 30 as wrong
from (
    select most, least(most - (select count(*) from pg_stat_activity where backend_type = 'client backend')
        , nullif((select datconnlimit from pg_database where datname = current_database()), -1)
        , nullif((select rolconnlimit from pg_roles where rolname = current_user), -1)) as free
    from (values (current_setting('max_connections')::int4 - current_setting('superuser_reserved_connections')::int4))
        as m (most)
) as counted;

-- warning: locks
-- advice: a first migration holds 800. Set max_locks_per_transaction to 64, its default, and
-- restart the server
select format('all sessions hold %s at most', most) as found, most < 1000 as wrong
from (values (current_setting('max_locks_per_transaction')::int4
    * (current_setting('max_connections')::int4 + current_setting('max_prepared_transactions')::int4))) as l (most);

-- need: timescaledb
select coalesce('installed, ' || (select extversion from pg_extension where extname = 'timescaledb')
    , case when current_setting('timescaledb.max_background_workers', true) is null
      then 'not loaded: history is a plain table' else 'loaded: the next migration installs it' end) as found
, false as wrong;

-- need: timeline's function
select case when may then 'the server tells its timeline'
    else 'this role may not call pg_control_checkpoint: a former primary is not recognized' end as found
, case when may then false end as wrong
from has_function_privilege('pg_control_checkpoint()', 'execute') as may;
