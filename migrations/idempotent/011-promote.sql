-- Gives a group without a head its next one. A member still held, if there is one. Else, among kinds that workers claim before
-- all others: one waiting for a retry (a retry blocks its group), else the first visible one by (event_ts, id), else the one
-- that will be visible first. Each by index. Whatever becomes visible gets a vt that is not behind any claim cursor.
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
        select id into _next from agent.event where group_key = _group_key and not head and claimed_by is not null
        order by event_ts, id limit 1;
        if not found then
            exit when not exists (select from agent.event where group_key = _group_key and not head);
            select waiting.id into _next
            from (values (agent.claimable_kinds()), (null)) as preferred (kinds)
            cross join lateral (
                (select id from agent.event where group_key = _group_key and not head and retrying
                 and (kinds is null or kind = any(kinds)) order by event_ts, id limit 1)
                union all
                (select id from agent.event where group_key = _group_key and not head and claimed_by is null and vt <= _now
                 and (kinds is null or kind = any(kinds)) order by event_ts, id limit 1)
                union all
                (select id from agent.event where group_key = _group_key and not head
                 and (kinds is null or kind = any(kinds)) order by vt limit 1)
            ) as waiting limit 1;
        end if;
        update agent.event set head = true, vt = greatest(vt, _now) where id = _next returning claimed_by is null into _waits;
        -- Not found: somebody has just deleted it by hand. The next statement sees that.
        exit when found;
    end loop;
    if _waits then
        perform pg_notify('agent_event', '');
    end if;
end
$$;
