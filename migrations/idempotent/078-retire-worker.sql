-- A worker that ends says so. Its kinds count as handled for three more minutes, in which another may take its place.
create or replace function agent.retire_worker(_name text) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    _kinds text[];
begin
    delete from agent.worker where name = _name returning kinds into _kinds;
    -- Does not wait for an operator who is just pausing a kind.
    update agent.kind set handled_at = agent.clock()
    where kind in (select kind from agent.kind where kind = any(_kinds) order by kind for no key update skip locked);
end
$$;
