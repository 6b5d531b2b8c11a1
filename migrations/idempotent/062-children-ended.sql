-- Counts children that ended (one entry each) off the continuations that wait for them. The last one makes a continuation
-- visible; one that fails with its children ends at once when _outcome is not completed. The youngest first: one that ends
-- here counts off an older one, so everybody locks inner continuations before outer ones.
create or replace function agent.children_ended(_continuations int8[], _outcome text) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    _ended record;
    _waiting agent.event;
begin
    for _ended in select id, count(*)::int4 as children from unnest(_continuations) as id group by id order by id desc loop
        perform agent.hold_group((select group_key from agent.event where id = _ended.id));
        update agent.event set waits_for = greatest(waits_for - _ended.children, 0) where id = _ended.id and waits_for > 0 returning * into _waiting;
        continue when not found;
        if _waiting.fails_with_children and _outcome <> 'completed' then
            perform agent.archive_events(array[_waiting.id], 'failed', 'child_' || _outcome);
        elsif _waiting.waits_for = 0 then
            update agent.event set vt = agent.clock() where id = _waiting.id;
            perform agent.reelect(array[_waiting.group_key]);
            perform pg_notify('agent_event', '');
        end if;
    end loop;
end
$$;
