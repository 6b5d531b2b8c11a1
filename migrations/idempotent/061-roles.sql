-- The roles that services connect through. Roles belong to the cluster, not to the database, and another database's
-- migration may create them at this very moment.
do $$
declare
    _role text;
begin
    foreach _role in array array['agent_ingest', 'agent_worker', 'agent_operator'] loop
        if not exists (select from pg_roles where rolname = _role) then
            begin
                execute format('create role %I nologin', _role);
            exception
                when duplicate_object or unique_violation then
                    null;
                when insufficient_privilege then
                    raise notice 'role % is missing and this role may not create it; services must connect as the owner of schema agent', _role;
            end;
        end if;
    end loop;
end
$$;
