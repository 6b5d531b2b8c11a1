-- The named schedules.
create or replace function agent.read_cron() returns setof agent.cron
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    return query select * from agent.cron order by name;
end
$$;
