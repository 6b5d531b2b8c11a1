-- Goes over groups in the order of their keys, from the one after _after on, and gives another head to those that need it: those
-- whose idle head is of a kind that nobody claims (paused, or its workers gone) while members of other kinds wait behind it; those
-- whose head will be visible later than a member that somebody claims, unless it waits for a retry; and those that have lost
-- their head, which the rules of groups leave none of: this is the net below. One bounded step: it ends after _limit of them,
-- or 20 times as many groups. Returns where the next step begins, null at the end, and how many it freed. Waits for no group.
create or replace function agent.free_groups(_after text default '', _limit int4 default 1000, out next text, out freed int4)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set lock_timeout = '30ms'
as $$
declare
    _now timestamptz := agent.clock();
    _claimable text[] := agent.claimable_kinds();
    _group record;
begin
    freed := 0;
    for _group in
        with recursive member (group_key, nth) as (
            (select group_key, 1 from agent.event where not head and group_key > coalesce(_after, '') order by group_key limit 1)
            union all
            select (select group_key from agent.event where not head and group_key > member.group_key order by group_key limit 1), nth + 1
            from member where member.group_key is not null and nth < _limit * 20
        )
        select member.group_key, nth, h.id is null as headless, wanting
        from member left join agent.event as h on h.group_key = member.group_key and h.head
        cross join lateral (select h.id is null
            or (h.claimed_by is null and h.kind <> all(_claimable)
                and exists (select from agent.event as m where m.group_key = member.group_key and not m.head and m.kind = any(_claimable)))
            or (h.claimed_by is null and h.vt > _now and not h.retrying
                and exists (select from agent.event as m where m.group_key = member.group_key and not m.head and m.vt < h.vt and m.kind = any(_claimable))) as wanting) as judged
        where member.group_key is not null and (wanting or nth = _limit * 20)
    loop
        begin
            if _group.headless then
                perform agent.promote(_group.group_key);
                freed := freed + 1;
            elsif _group.wanting then
                perform from agent.event where group_key = _group.group_key and head and claimed_by is null for update skip locked;
                if found then
                    perform agent.reelect(array[_group.group_key]);
                    freed := freed + 1;
                end if;
            end if;
        exception when unique_violation or lock_not_available then
            null; -- another transaction gave it a head meanwhile, or has all its members locked
        end;
        if freed >= _limit or _group.nth >= _limit * 20 then
            next := _group.group_key;
            return;
        end if;
    end loop;
end
$$;

-- The same from the first group on, until it has freed _limit. Returns how many.
create or replace function agent.sweep_groups(_limit int4 default 1000) returns int4
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    _next text := '';
    _step int4;
    _healed int4 := 0;
begin
    while _next is not null and _healed < _limit loop
        select next, freed into _next, _step from agent.free_groups(_next, _limit - _healed);
        _healed := _healed + _step;
    end loop;
    return _healed;
end
$$;
