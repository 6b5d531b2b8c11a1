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

-- A new member joins its group as its transaction commits. It makes sure that there is a head, which cannot leave before the
-- member is committed and seen by the election. It becomes the head itself where there is none, or where the head yields to it.
-- Until then it holds no lock, so a transaction that stays open delays neither the group's claims nor its settles.
create or replace function agent.member_joins() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    _member record;
begin
    loop
        -- Its own transaction may have changed it since, or deleted it.
        select group_key, kind, vt into _member from agent.event where id = new.id and not head;
        exit when not found;
        if agent.lock_head(_member.group_key, _member.kind, _member.vt) then
            if agent.head_yields(_member.group_key, _member.kind, _member.vt) then
                update agent.event set head = false where group_key = _member.group_key and head;
                update agent.event set head = true, vt = greatest(vt, agent.clock()) where id = new.id;
            end if;
            exit;
        end if;
        begin
            update agent.event set head = true, vt = greatest(vt, agent.clock()) where id = new.id;
        exception when unique_violation then
            null; -- another newcomer has become the head: this one joins it
        end;
    end loop;
    return null;
end
$$;

-- Created once: doing it again would keep inserts waiting until the migration ends.
do $$
begin
    -- Its predecessor locked the head at once, until the transaction ended. First, as this takes the stronger lock.
    if exists (select from pg_trigger where tgrelid = 'agent.event'::regclass and tgname = 'member_inserted') then
        drop trigger member_inserted on agent.event;
        drop function agent.member_inserted();
    end if;
    if not exists (select from pg_trigger where tgrelid = 'agent.event'::regclass and tgname = 'event_inserted') then
        create trigger event_inserted after insert on agent.event for each statement execute function agent.event_inserted();
    end if;
    if not exists (select from pg_trigger where tgrelid = 'agent.event'::regclass and tgname = 'member_joins') then
        create constraint trigger member_joins after insert on agent.event deferrable initially deferred
        for each row when (not new.head) execute function agent.member_joins();
    end if;
end
$$;
