-- However a head leaves the queue, its group gets the next one in the same transaction. One that lapsed and is deleted by hand,
-- which history does not know, may have killed its worker: its members go back unspent, as in every other way it may leave.
create or replace function agent.event_deleted() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if old.claimed_by is not null and old.vt <= agent.clock()
    and not exists (select from agent.event_hist where id = old.id and event_ts = old.event_ts) then
        perform agent.fence_members(array[old.group_key], agent.clock());
    end if;
    perform agent.promote(old.group_key);
    return null;
end
$$;

-- Created once: doing it again would keep inserts waiting until the migration ends.
do $$
begin
    if not exists (select from pg_trigger where tgrelid = 'agent.event'::regclass and tgname = 'event_deleted') then
        create trigger event_deleted after delete on agent.event
        for each row when (old.head and old.group_key is not null) execute function agent.event_deleted();
    end if;
end
$$;
