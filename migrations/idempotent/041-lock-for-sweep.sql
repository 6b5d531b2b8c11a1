-- Of some events, locks and returns those that no one else has locked and whose group no one is changing.
create or replace function agent.lock_for_sweep(_ids int8[]) returns int8[]
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    _groups text[] := agent.hold_groups(_ids);
begin
    return array(select id from agent.event where id = any(_ids) and (group_key is null or group_key = any(_groups)) order by id for update skip locked);
end
$$;
