-- Gives up to _limit groups another head: those whose idle head is of a kind that nobody claims any more (paused, or its workers
-- gone) while members of other kinds wait behind it; and those that have lost their head, which the rules of groups leave none
-- of: this is the net below. Returns how many.
create or replace function agent.sweep_groups(_limit int4 default 1000) returns int4
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    _claimable text[] := agent.claimable_kinds();
    _group record;
    _healed int4 := 0;
begin
    for _group in
        with recursive member (group_key) as (
            (select group_key from agent.event where not head order by group_key limit 1)
            union all
            select (select group_key from agent.event where not head and group_key > member.group_key order by group_key limit 1)
            from member where member.group_key is not null
        )
        select member.group_key, h.id is null as headless
        from member left join agent.event as h on h.group_key = member.group_key and h.head
        where member.group_key is not null and (h.id is null
            or (h.claimed_by is null and h.kind <> all(_claimable)
                and exists (select from agent.event as m where m.group_key = member.group_key and not m.head and m.kind = any(_claimable))))
        limit _limit
    loop
        begin
            if _group.headless then
                perform agent.promote(_group.group_key);
            else
                perform from agent.event where group_key = _group.group_key and head and claimed_by is null for update skip locked;
                continue when not found;
                perform agent.reelect(array[_group.group_key]);
            end if;
            _healed := _healed + 1;
        exception when unique_violation then
            null; -- another transaction gave it a head meanwhile
        end;
    end loop;
    return _healed;
end
$$;
