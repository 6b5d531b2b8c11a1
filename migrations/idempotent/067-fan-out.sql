-- Starts children (a JSON array of jobs) and the continuation that runs once, when all of them have ended, however they did.
-- {"fails_with_children": true} on the continuation makes it end as failed with the first child that does not complete.
-- Returns the continuation's id; its handler asks agent.children for their outcomes.
create or replace function agent.fan_out(_children jsonb, _continuation jsonb, _continues int8 default null) returns int8
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    _waiting agent.event := agent.job_from_json(_continuation);
    _child agent.event;
    _given record;
    _id int8;
    -- Taken beforehand: children are added in the order of their keys, and known by the order they were given in.
    _ids int8[] := array(select nextval('agent.event_id_seq') from generate_series(1, jsonb_array_length(_children)));
begin
    _waiting.continuation_id := _continues;
    _waiting.fails_with_children := coalesce((_continuation ->> 'fails_with_children')::boolean, false);
    _waiting.waits_for := cardinality(_ids);
    if _ids <> '{}' then
        _waiting.vt := 'infinity';
    end if;
    select added.id into _id from agent.add_event(_waiting, true, false) as added where not added.duplicate;
    if _id is null then
        raise unique_violation using message = format('a continuation under item key %L is in the queue already', _waiting.item_key);
    end if;
    for _given in
        select g.job, g.nth from jsonb_array_elements(_children) with ordinality as g (job, nth)
        order by g.job ->> 'group_key', g.job ->> 'item_key', g.nth
    loop
        _child := agent.job_from_json(_given.job);
        _child.id := _ids[_given.nth];
        _child.continuation_id := _id;
        _child.dedupe_key := null;
        if (select added.duplicate from agent.add_event(_child, true, false) as added) then
            raise unique_violation using message = format('a child under item key %L is in the queue already', _child.item_key);
        end if;
    end loop;
    return _id;
end
$$;
