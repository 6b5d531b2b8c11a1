-- The inner event of Slack's envelope; a bare event is its own.
create or replace function agent.slack_event(_event jsonb) returns jsonb
language sql immutable parallel safe
return case when _event ->> 'type' = 'event_callback' and jsonb_typeof(_event -> 'event') = 'object'
    then _event -> 'event' else _event end;
