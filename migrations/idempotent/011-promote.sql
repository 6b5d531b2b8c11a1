-- Gives a group without a head its next one: a member still held, else one waiting for a retry (a retry blocks its
-- group), else the first visible one by (event_ts, id), else the one that will be visible first. Each by index.
-- Whatever becomes visible gets a vt that is not behind any claim cursor.
create or replace function agent.promote(_group_key text) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    _now timestamptz := agent.clock();
begin
    update agent.event set head = true, vt = greatest(vt, _now)
    where id = (
        select next.id from (
            (select id from agent.event where group_key = _group_key and not head and (claimed_by is not null)
             order by event_ts, id limit 1)
            union all
            (select id from agent.event where group_key = _group_key and not head and retrying order by event_ts, id limit 1)
            union all
            (select id from agent.event where group_key = _group_key and not head and not (claimed_by is not null) and vt <= _now
             order by event_ts, id limit 1)
            union all
            (select id from agent.event where group_key = _group_key and not head order by vt limit 1)
        ) as next limit 1);
    if found then
        perform pg_notify('agent_event', '');
    end if;
end
$$;
