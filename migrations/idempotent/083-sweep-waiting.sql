-- Counts up to _limit continuations anew, by the children that are really there; returns how many had to be set right. Ended children are
-- counted off as they end; this is the net below, for children that an owner deleted by hand.
create or replace function agent.sweep_waiting(_limit int4 default 1000) returns int4
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    _waiting agent.event;
    _living int4;
    _healed int4 := 0;
begin
    -- Looks before it locks: children that end wait for the lock.
    for _waiting in
        select e.* from agent.event as e where e.waits_for is not null and e.waits_for > 0
        and e.waits_for > (select count(*) from agent.event as child where child.continuation_id = e.id)
        order by e.id limit _limit
    loop
        continue when agent.lock_for_sweep(array[_waiting.id]) = '{}';
        select * into _waiting from agent.event where id = _waiting.id;
        select count(*) into _living from agent.event where continuation_id = _waiting.id;
        if _living < _waiting.waits_for then
            perform agent.children_ended(array_fill(_waiting.id, array[_waiting.waits_for - _living]), 'cancelled');
            _healed := _healed + 1;
        end if;
    end loop;
    return _healed;
end
$$;
