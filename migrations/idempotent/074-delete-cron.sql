-- Deletes a named schedule; false when there is none of that name.
create or replace function agent.delete_cron(_name text) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    delete from agent.cron where name = _name;
    return found;
end
$$;
