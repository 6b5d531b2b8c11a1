-- Of a batch, completes members of groups and children of continuations; returns the ids that ended. Waits 30 ms at most, and
-- only where it cannot step over a row that another transaction has locked. Where that was too short it tries the halves, so
-- that everything but what needs that row ends.
create or replace function agent.complete_others(_ids int8[], _claims int4[], _results jsonb[]) returns int8[]
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '30ms'
as $$
declare
    _half int4 := cardinality(_ids) / 2;
    _others record;
begin
    begin
        select * into _others
        from agent.end_events(_ids, _claims, agent.hold_groups(_ids), 'completed', null, _results, agent.hold_continuations(_ids, 'completed'));
        if _others.continuations is not null then
            perform agent.children_ended(_others.continuations, 'completed');
        end if;
        return coalesce(_others.ended, '{}');
    exception when lock_not_available or deadlock_detected then
        if _half = 0 then
            return '{}';
        end if;
    end;
    return agent.complete_others(_ids[:_half], _claims[:_half], _results[:_half])
        || agent.complete_others(_ids[_half + 1:], _claims[_half + 1:], _results[_half + 1:]);
end
$$;

-- Moves claimed events to history as completed, with their results; each answers done, stale or busy. What is left of a batch
-- after the plain events is looked at again, with its groups and continuations held.
create or replace function agent.complete_events(_ids int8[], _claims int4[], _results jsonb[] default null)
returns table (ordinal int4, answer text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    _ended int8[] := (select ended from agent.end_events(_ids, _claims, null, 'completed', null, _results));
begin
    if coalesce(cardinality(_ended), 0) < cardinality(_ids) then
        _ended := coalesce(_ended, '{}') || agent.complete_others(_ids, _claims, _results);
    end if;
    return query select a.ordinal, a.answer from agent.settle_answers(_ids, _claims, _ended) as a;
end
$$;
