-- The children of a continuation and how they ended, in the order they were started.
create or replace function agent.children(_continuation_id int8)
returns table (id int8, kind text, item_key text, payload jsonb, status text, result jsonb, reason text, error text)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set jit = off
as $$
begin
    return query
    select j.id, j.kind, j.item_key, j.payload, j.status, j.result, j.reason, j.error
    from agent.job as j where j.continuation_id = _continuation_id order by j.id;
end
$$;
