-- The natural key of an event that comes from outside: the one given, else its own. Keys of named schedules and of webhooks are
-- theirs alone: an event under such a key would be found in place of a firing, which would then be skipped.
create or replace function agent.stored_item_key(_given text, _event jsonb) returns text
language plpgsql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
    _key text := coalesce(agent.bounded_key(_given), agent.event_item_key(_event));
begin
    return case when _key ~ '^(cron|webhook):' then agent.bounded_key('event:' || _key) else _key end;
end
$$;

-- Stores a Slack envelope or a bare event.
create or replace function agent.store_event(_event jsonb, _traceparent text, _item_key text, out id int8, out duplicate boolean)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
as $$
declare
    _new agent.event;
    _exact boolean;
begin
    if jsonb_typeof(_event) is distinct from 'object' then
        raise invalid_parameter_value using message = format('an event is a JSON object, not %s', coalesce(jsonb_typeof(_event), 'null'));
    end if;
    _new.vt := agent.clock();
    select happened.event_ts, happened.exact into _new.event_ts, _exact from agent.event_time(_event, _new.vt) as happened;
    _new.event := _event;
    _new.kind := agent.event_kind(_event);
    _new.item_key := agent.stored_item_key(_item_key, _event);
    _new.group_key := agent.event_group_key(_event);
    _new.traceparent := _traceparent;
    select added.id, added.duplicate into id, duplicate from agent.add_event(_new, _exact, true) as added;
end
$$;
