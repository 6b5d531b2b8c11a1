-- Heals up to _limit groups that have lost their head; returns how many. The rules of groups leave none: this is the net below.
create or replace function agent.sweep_headless(_limit int4 default 1000) returns int4
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
    _group_key text;
    _healed int4 := 0;
begin
    for _group_key in
        with recursive member (group_key) as (
            (select group_key from agent.event where not head order by group_key limit 1)
            union all
            select (select group_key from agent.event where not head and group_key > member.group_key order by group_key limit 1)
            from member where member.group_key is not null
        )
        select member.group_key from member
        where member.group_key is not null and not exists (select from agent.event as e where e.group_key = member.group_key and e.head)
        limit _limit
    loop
        begin
            perform agent.promote(_group_key);
            _healed := _healed + 1;
        exception when unique_violation then
            null; -- another transaction gave it a head meanwhile
        end;
    end loop;
    return _healed;
end
$$;
