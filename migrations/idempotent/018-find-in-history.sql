-- The id of an event in history by its item key. An exact event_ts prunes the search to one chunk. Where it had to be replaced, now
-- or perhaps at the first delivery, the last 25 hours are searched: Slack retries for 24; those who send webhooks may for longer.
create or replace function agent.find_in_history(_item_key text, _event_ts timestamptz, _exact boolean) returns int8
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if _exact then
        -- A timestamp more than a day ahead is replaced, and the same one is not a little later: as it then lies ahead still, or only
        -- just behind, older ones need not be searched for.
        return coalesce((select id from agent.event_hist where item_key = _item_key and event_ts = _event_ts limit 1)
            , case when _event_ts > agent.clock() - interval '1 hour' then agent.find_in_history(_item_key, agent.clock(), false) end);
    end if;
    return (select id from agent.event_hist where item_key = _item_key
            and event_ts between _event_ts - case when _item_key like 'webhook:%' then interval '3 days' else interval '25 hours' end and _event_ts + interval '1 hour' limit 1);
end
$$;
