-- What an event is: slack.app_mention; messages by Slack's subscription names, slack.message.im; slack.command.deploy.
create or replace function agent.event_kind(_event jsonb) returns text
language plpgsql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
    _inner jsonb := agent.slack_event(_event);
    _type text := _inner ->> 'type';
begin
    if _type = 'message' then
        return 'slack.message' || case _inner ->> 'channel_type'
            when 'im' then '.im' when 'mpim' then '.mpim' when 'channel' then '.channels' when 'group' then '.groups' else '' end;
    end if;
    return left(case when _type <> '' then 'slack.' || _type
                when _inner ->> 'command' <> '' then 'slack.command.' || ltrim(_inner ->> 'command', '/')
                else 'event' end, 200);
end
$$;
