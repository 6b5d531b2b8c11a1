-- Gives a group without a head its next one. A member still held, if there is one. Else, among kinds that workers claim before
-- all others: one waiting for a retry (a retry blocks its group), else the first visible one by (event_ts, id), else the one
-- that will be visible first. Each by index. Whatever becomes visible gets a vt that is not behind any claim cursor.
-- Steps over waiting members that another transaction has locked. Waits only where it must: for a member that is held, as its
-- group may not go to another worker meanwhile, and where all are locked. Settles bound that by their lock_timeout.
create or replace function agent.promote(_group_key text) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
    _now timestamptz := agent.clock();
    _next int8;
    _waits boolean;
begin
    loop
        if exists (select from agent.event where group_key = _group_key and not head and claimed_by is not null) then
            select id into _next from agent.event where group_key = _group_key and not head and claimed_by is not null
            order by event_ts, id limit 1 for update skip locked;
            if not found then
                perform from agent.event where group_key = _group_key and not head and claimed_by is not null
                order by event_ts, id limit 1 for update;
                continue;
            end if;
        else
            select waiting.id into _next
            from (values (agent.claimable_kinds()), (null)) as preferred (kinds)
            cross join lateral (
                select id from (
                    select id from agent.event where group_key = _group_key and not head and retrying
                    and (kinds is null or kind = any(kinds)) order by event_ts, id limit 1 for update skip locked) as retried
                union all
                select id from (
                    select id from agent.event where group_key = _group_key and not head and claimed_by is null and vt <= _now
                    and (kinds is null or kind = any(kinds)) order by event_ts, id limit 1 for update skip locked) as visible
                union all
                select id from (
                    select id from agent.event where group_key = _group_key and not head
                    and (kinds is null or kind = any(kinds)) order by vt limit 1 for update skip locked) as later
            ) as waiting limit 1;
            if not found then
                perform from agent.event where group_key = _group_key and not head order by vt limit 1 for update;
                -- Not found: there is none, or it has just been deleted by hand. The next statement sees which.
                exit when not found and not exists (select from agent.event where group_key = _group_key and not head);
                continue;
            end if;
        end if;
        update agent.event set head = true, vt = greatest(vt, _now) where id = _next returning claimed_by is null into _waits;
        exit when found;
    end loop;
    if _waits then
        perform pg_notify('agent_event', '');
    end if;
end
$$;
