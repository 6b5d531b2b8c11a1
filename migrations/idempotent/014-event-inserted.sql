-- Wakes the workers. Identical payloads merge within a transaction; the notice is sent at commit.
create or replace function agent.event_inserted() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pg_notify('agent_event', '');
    return null;
end
$$;

-- A new member becomes the head of its group where the present head yields to it.
create or replace function agent.member_inserted() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
begin
    -- Looks before it locks: claims skip a locked head.
    if not agent.head_yields(new.group_key, new.kind, new.vt) then
        return null;
    end if;
    loop
        perform from agent.event where group_key = new.group_key and head for update;
        -- Not found, though there is one: another newcomer took over while we waited; the next statement sees it.
        exit when found or not exists (select from agent.event where group_key = new.group_key and head);
    end loop;
    if agent.head_yields(new.group_key, new.kind, new.vt) then
        update agent.event set head = false where group_key = new.group_key and head;
        update agent.event set head = true where id = new.id;
    end if;
    return null;
end
$$;

-- Created once: doing it again would keep inserts waiting until the migration ends.
do $$
begin
    if not exists (select from pg_trigger where tgrelid = 'agent.event'::regclass and tgname = 'event_inserted') then
        create trigger event_inserted after insert on agent.event for each statement execute function agent.event_inserted();
    end if;
    if not exists (select from pg_trigger where tgrelid = 'agent.event'::regclass and tgname = 'member_inserted') then
        create trigger member_inserted after insert on agent.event for each row when (not new.head) execute function agent.member_inserted();
    end if;
end
$$;
