-- Of some events, locks and returns those that no one else has locked and whose group no one is changing.
create or replace function agent.lock_for_sweep(_ids int8[]) returns int8[]
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    _groups text[] := agent.hold_groups(_ids);
begin
    return array(select id from agent.event where id = any(_ids) and (group_key is null or group_key = any(_groups)) order by id for update skip locked);
end
$$;

-- Archives events whose locks the caller holds; returns how many. One that history refuses (a unique index, a constraint, a trigger
-- of the owner's) stays in the queue with a warning: it does not keep the others. Halving finds it in few subtransactions.
create or replace function agent.archive_possible(_ids int8[], _outcome text, _reason text) returns int4
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    _half int4 := cardinality(_ids) / 2;
begin
    if cardinality(_ids) = 0 then
        return 0;
    end if;
    begin
        perform agent.archive_events(_ids, _outcome, _reason);
        return cardinality(_ids);
    exception when others then
        -- A conflict with another transaction, a lack of resources, a timeout: that is not the event's fault.
        if left(sqlstate, 2) in ('40', '53', '55', '57', '58', 'XX') then
            raise;
        elsif _half = 0 then
            -- Without the error's own text, which may quote the event.
            raise warning 'event % cannot be moved to history: SQLSTATE %', _ids[1], sqlstate;
            return 0;
        end if;
    end;
    return agent.archive_possible(_ids[:_half], _outcome, _reason) + agent.archive_possible(_ids[_half + 1:], _outcome, _reason);
end
$$;
