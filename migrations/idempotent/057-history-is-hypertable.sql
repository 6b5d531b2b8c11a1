-- Whether history is a TimescaleDB hypertable.
create or replace function agent.history_is_hypertable() returns boolean
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    _is boolean := false;
begin
    if to_regclass('_timescaledb_catalog.hypertable') is not null then
        execute 'select exists (select from _timescaledb_catalog.hypertable where schema_name = ''agent'' and table_name = ''event_hist'')' into _is;
    end if;
    return _is;
end
$$;
