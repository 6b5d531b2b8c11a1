-- Retention: drops history older than _older_than by event_ts; chunk by chunk where it is a hypertable (whole chunks only),
-- else row by row. Returns how many chunks or rows went.
create or replace function agent.drop_history(_older_than interval) returns int8
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    _dropped int8;
    _namespace text := (select n.nspname from pg_extension as x join pg_namespace as n on n.oid = x.extnamespace where x.extname = 'timescaledb');
begin
    if _older_than is null or _older_than < interval '0' then
        raise invalid_parameter_value using message = 'history is dropped by a positive age, such as interval ''90 days''';
    end if;
    if agent.history_is_hypertable() then
        execute format('select count(*) from %I.drop_chunks(''agent.event_hist'', older_than => $1)', _namespace)
        into _dropped using agent.clock() - _older_than;
    else
        delete from agent.event_hist where event_ts < agent.clock() - _older_than;
        get diagnostics _dropped = row_count;
    end if;
    return _dropped;
end
$$;
