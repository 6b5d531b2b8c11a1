-- A worker that ends says so.
create or replace function agent.retire_worker(_name text) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    delete from agent.worker where name = _name;
end
$$;
