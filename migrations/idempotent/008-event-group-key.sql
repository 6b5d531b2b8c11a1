-- The entity of a Slack event: team, channel and thread; of a top-level direct message, team and channel.
-- A message that starts no thread yet is the thread its replies will be in. No channel: no entity.
create or replace function agent.event_group_key(_event jsonb) returns text
language plpgsql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
    _inner jsonb := agent.slack_event(_event);
    _channel text := case jsonb_typeof(_inner -> 'channel') when 'string' then _inner ->> 'channel'
        when 'object' then _inner #>> '{channel,id}' else _inner #>> '{item,channel}' end;
    _thread text := coalesce(_inner ->> 'thread_ts', _inner #>> '{message,thread_ts}');
begin
    if _channel is null or _channel = '' then
        return null;
    end if;
    if _thread is null and (_inner ->> 'channel_type') is distinct from 'im' then
        _thread := coalesce(_inner ->> 'ts', _inner #>> '{item,ts}', _inner #>> '{message,ts}');
    end if;
    return agent.bounded_key(concat_ws(':', coalesce(_event ->> 'team_id', _inner ->> 'team', _inner #>> '{team,id}'), _channel, _thread));
end
$$;
