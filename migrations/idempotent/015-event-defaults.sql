-- Makes a plain insert into agent.event (event_ts, event) a sound row: this is how people move events back by hand.
create or replace function agent.event_defaults() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if new.kind is null then
        new.kind := agent.event_kind(new.event);
        new.item_key := coalesce(new.item_key, agent.event_item_key(new.event));
        new.group_key := coalesce(new.group_key, agent.event_group_key(new.event));
    end if;
    new.lane := coalesce(new.lane, agent.lane(new.group_key));
    if new.group_key is not null then
        new.head := not agent.enter_group(new.group_key, new.kind, new.vt);
    else
        new.head := true;
    end if;
    -- Whoever copies an event back out of history under its old id means to move it.
    delete from agent.event_hist where id = new.id and event_ts = new.event_ts;
    perform agent.register_kinds(array[new.kind]);
    return new;
end
$$;

-- Created once: doing it again would keep inserts waiting until the migration ends.
do $$
begin
    if not exists (select from pg_trigger where tgrelid = 'agent.event'::regclass and tgname = 'event_defaults') then
        create trigger event_defaults before insert on agent.event
        for each row when (new.kind is null or new.lane is null or new.head is null) execute function agent.event_defaults();
    end if;
end
$$;
