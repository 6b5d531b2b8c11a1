-- Cancels events by their ids; answers each as cancel_event does, or busy where another transaction has it or its group locked. An
-- unknown id is left out. In one pass, stepping over locks, so that operators can cancel many in bounded steps.
create or replace function agent.cancel_jobs(_ids int8[]) returns table (id int8, answer text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    _now timestamptz := agent.clock();
    _held int8[] := agent.lock_for_sweep(_ids);
    _running int8[];
    _unfenced text[];
begin
    update agent.event set cancelled_by = session_user where id = any(_held) and claimed_by is not null and vt > _now;
    _running := array(select e.id from agent.event as e where e.id = any(_held) and e.claimed_by is not null and e.vt > _now);
    -- As where a claim finds them: members that were held with a head whose lease lapsed go back unspent. A head with a
    -- member that another transaction has locked stays.
    _unfenced := agent.fence_members(array(
        select e.group_key from agent.event as e where e.id = any(_held) and e.head and e.claimed_by is not null and e.vt <= _now
        and e.group_key is not null order by e.group_key), _now);
    if _unfenced <> '{}' then
        _held := array(select e.id from agent.event as e where e.id = any(_held) and not (e.head and e.claimed_by is not null and e.vt <= _now
            and e.group_key is not null and e.group_key = any(_unfenced)));
    end if;
    return query
    select given, case when given = any(_running) then 'running' when given = any(_held) then 'cancelled' else 'busy' end
    from unnest(_ids) as given where given = any(_held) or exists (select from agent.event as e where e.id = given);
    perform agent.archive_events(array(select unnest(_held) except select unnest(_running)), 'cancelled', 'cancelled by ' || session_user);
end
$$;

-- Cancels an event by its id, waiting for whoever has it or its group locked; answers as cancel_event does.
create or replace function agent.cancel_job(_id int8) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
begin
    perform agent.hold_group((select group_key from agent.event where id = _id));
    perform from agent.event where id = _id for update;
    return (select answer from agent.cancel_jobs(array[_id]));
end
$$;
