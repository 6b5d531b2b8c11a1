-- However a head leaves the queue, its group gets the next one in the same transaction.
create or replace function agent.event_deleted() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
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
