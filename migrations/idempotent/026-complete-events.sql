-- Moves claimed events to history as completed, with their results; each answers done, stale or busy. What is left of a batch
-- after the plain events is looked at again, with its groups held.
create or replace function agent.complete_events(_ids int8[], _claims int4[], _results jsonb[] default null)
returns table (ordinal int4, answer text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    _ended int8[] := (select ended from agent.end_events(_ids, _claims, null, 'completed', null, _results));
    _others record;
begin
    if coalesce(cardinality(_ended), 0) < cardinality(_ids) then
        select * into _others from agent.end_events(_ids, _claims, agent.hold_groups(_ids), 'completed', null, _results);
        _ended := coalesce(_ended || _others.ended, '{}');
        if _others.continuations is not null then
            perform agent.children_ended(_others.continuations, 'completed');
        end if;
    end if;
    return query select a.ordinal, a.answer from agent.settle_answers(_ids, _claims, _ended) as a;
end
$$;
