-- Makes history a hypertable once TimescaleDB can be had, with the rows it has by then. Without it history stays a plain
-- table with the same indexes.
do $$
begin
    if exists (select from pg_available_extensions where name = 'timescaledb' and installed_version is null)
    -- Whether it is preloaded shows in a setting of its loader: an ordinary role may not read shared_preload_libraries.
    and current_setting('timescaledb.max_background_workers', true) is not null then
        begin
            -- Not into agent, the first schema of a migration's search path: its functions are everybody's.
            create extension if not exists timescaledb schema public;
        exception when insufficient_privilege or invalid_schema_name then
            raise notice 'TimescaleDB is available, but this role may not create the extension in schema public; history stays a plain table';
        end;
    end if;
    if exists (select from pg_extension where extname = 'timescaledb') and not agent.history_is_hypertable() then
        -- The Apache edition has this function; the shorthand table option needs 2.20.
        execute (
            select format('select %1$I.create_hypertable(''agent.event_hist'', %1$I.by_range(''event_ts''), create_default_indexes => false, migrate_data => true)', n.nspname)
            from pg_extension as x join pg_namespace as n on n.oid = x.extnamespace where x.extname = 'timescaledb');
    end if;
end
$$;
