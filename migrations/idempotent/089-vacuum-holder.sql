-- What holds back vacuum the longest: a session's transaction, a prepared one or a replication slot. No row: nothing does. A transaction of another
-- database does so too once it has written, as new snapshots wait for it. anchor is what it holds. state and since are null where they are
-- hidden from the owner of the schema: of other roles' sessions, to who is not a member of pg_read_all_stats; a slot has no since.
create or replace function agent.vacuum_holder()
returns table (holder text, pid int4, application text, state text, since timestamptz, anchor text)
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
    select h.holder, h.pid, h.application, h.state, h.since, h.anchor::text
    from (
        select 'session' as holder, a.pid, coalesce(nullif(a.application_name, ''), a.backend_type, '') as application, a.state, a.xact_start as since
        , case when age(a.backend_xid) >= age(a.backend_xmin) or a.backend_xmin is null then a.backend_xid else a.backend_xmin end as anchor
        from pg_stat_activity as a
        where (a.backend_xid is not null or a.backend_xmin is not null and (a.datid is null or a.datname = current_database()))
        and a.pid <> pg_backend_pid() and not exists (select from pg_stat_progress_vacuum as v where v.pid = a.pid)
        union all
        select 'prepared', null, p.gid, 'prepared', p.prepared, p.transaction from pg_prepared_xacts as p
        union all
        select 'slot', s.active_pid, s.slot_name, case when s.active then 'active' else 'inactive' end, null, s.xmin
        from pg_replication_slots as s where s.xmin is not null
    ) as h
    order by age(h.anchor) desc, h.since limit 1
$$;
