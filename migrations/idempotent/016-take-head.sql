-- Makes a new member the head of its group where the present one is not held, not retrying and visible only later.
create or replace function agent.take_head(_id int8, _group_key text, _vt timestamptz) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    _head record;
begin
    loop
        select id, vt, claimed_by, retrying into _head from agent.event where group_key = _group_key and head for no key update;
        exit when found;
        -- Another newcomer took over while we waited for the lock; the next statement sees it.
        if not exists (select from agent.event where group_key = _group_key and head) then
            perform agent.promote(_group_key);
        end if;
    end loop;
    if _head.claimed_by is null and not _head.retrying and _head.vt > _vt then
        update agent.event set head = false where id = _head.id;
        update agent.event set head = true where id = _id;
    end if;
end
$$;
