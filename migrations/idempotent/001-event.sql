-- What is derived from an event: its kind, keys, group, time, workspace and lane. Python reads
-- Slack's payloads by the same rules (surelane.slack). tests/sql/test_payloads.py compares both.
--   bounded_key: a key short enough to index; all that store a key
--   text_at, slack_event: a text in an object, the event in Slack's envelope; below
--   event_kind, event_item_key, event_time: inserts
--   base_kind: the kind without the version of a run; what a run leaves behind
--   event_group_key, stored_group_key: the group of an event, and of a new one; inserts
--   is_interactive: whether a person waits for it; inserts, and workers
--   outside_key: a key that cannot be a schedule's or a webhook's; inserts
--   team_at, posted_by, event_workspace: whose event it is; lane_for, share_kind, limits
--   message_key, message_time, is_edited: of messages, under any event id; inserts
--   event_channel, event_user: where it comes from; limits, lists
--   lane_in, lane_for: the lane of a row; inserts, elections
--   band_of, priority_of: what a lane says; sweeps, views
--   use_band: records a band; lane_for, share_kind, sweeps
--   claim_stands: the fence of claims; settles, history, answers, steps
--   register_kinds: adds a kind that is new; inserts, announcements, sweeps
--   attempts_of: the maximum of attempts per kind; claims, failures, peeks
--   add_change, after_lapse: the changes that an event keeps; all that move one

-- A key short enough to index: long ones are replaced by their hash.
create or replace function agent.bounded_key(_key text) returns text language sql immutable parallel safe
return case when length(_key) <= 200 then _key
    else 'sha256:' || encode(sha256(convert_to(_key, 'UTF8')), 'hex') end;

-- The text in a field; null where there is none, an empty one or anything else.
create or replace function agent.text_at(_object jsonb, _field text) returns text
language sql immutable parallel safe
return case jsonb_typeof(_object -> _field) when 'string' then nullif(_object ->> _field, '') end;

create or replace function agent.slack_event(_event jsonb) returns jsonb language sql immutable parallel safe
return case when _event ->> 'type' = 'event_callback' and jsonb_typeof(_event -> 'event') = 'object'
    then _event -> 'event' else _event end;

-- What an event is: slack.app_mention; messages by Slack's subscription names, slack.message.im;
-- slack.message_changed and slack.message_deleted of all channels; slack.command.deploy.
create or replace function agent.event_kind(_event jsonb) returns text
language plpgsql immutable parallel safe as $$
declare _inner jsonb := agent.slack_event(_event); _type text := agent.text_at(_inner, 'type');
begin
    if _type = 'message' and _inner ->> 'subtype' in ('message_changed', 'message_deleted') then
        -- Slack replaces a deleted message that has replies by another one, a tombstone.
        return case when _inner #>> '{message,subtype}' = 'tombstone' then 'slack.message_deleted'
            else 'slack.' || (_inner ->> 'subtype') end;
    elsif _type = 'message' then
        -- Slack leaves out the type of some channels: then the first letter of the id decides.
        return 'slack.message' || case coalesce(agent.text_at(_inner, 'channel_type')
                , left(agent.text_at(_inner, 'channel'), 1))
            when 'im' then '.im' when 'app_home' then '.im' when 'D' then '.im' when 'mpim' then '.mpim'
            when 'channel' then '.channels' when 'C' then '.channels'
            when 'group' then '.groups' when 'G' then '.groups' else '' end;
    end if;
    -- Clicks on the worker's own buttons, and its own modals: ctx.ask, ctx.stoppable.
    if _type = 'block_actions' and _inner -> 'actions' -> 0 ->> 'action_id' like 'surelane.%'
    or _type = 'view_submission' and _inner #>> '{view,callback_id}' like 'surelane.%' then
        return 'surelane.answer';
    end if;
    return left(coalesce('slack.' || _type
        , 'slack.command.' || ltrim(agent.text_at(_inner, 'command'), '/'), 'event'), 200);
end $$;

create or replace function agent.base_kind(_kind text, _notes jsonb) returns text
language sql immutable parallel safe
return case when right(_kind, length(_notes ->> 'version') + 1) = '@' || (_notes ->> 'version')
    then left(_kind, -length(_notes ->> 'version') - 1) else _kind end;

-- The natural key: Slack's event_id, else a hash of the trigger_id (of an interaction) or content.
create or replace function agent.event_item_key(_event jsonb) returns text
language plpgsql immutable parallel safe as $$ begin
    return agent.bounded_key(coalesce(
        agent.text_at(_event, 'event_id')
        , 'trigger:' || encode(sha256(convert_to(agent.text_at(_event, 'trigger_id'), 'UTF8')), 'hex')
        , 'sha256:' || encode(sha256(convert_to(_event::text, 'UTF8')), 'hex')));
end $$;

-- Team, channel and thread. A message that starts no thread yet has the key of its replies' thread.
-- Top-level direct messages (their channel's id begins with D), and clicks and reactions on them,
-- have team and channel. No channel: no group. In a shared channel teams differ: its key has none.
create or replace function agent.event_group_key(_event jsonb) returns text
language plpgsql immutable parallel safe as $$
declare
    _inner jsonb := agent.slack_event(_event);
    _channel text := coalesce(agent.text_at(_inner, 'channel'), agent.text_at(_inner -> 'channel', 'id')
        , agent.text_at(_inner -> 'item', 'channel'));
    -- A click on a message that one person alone sees names it in its container only.
    _message text := coalesce(agent.text_at(_inner, 'ts'), agent.text_at(_inner -> 'item', 'ts')
        , agent.text_at(_inner -> 'message', 'ts'), agent.text_at(_inner -> 'original_message', 'ts')
        , agent.text_at(_inner, 'message_ts'), agent.text_at(_inner -> 'container', 'message_ts'));
    _thread text := coalesce(agent.text_at(_inner, 'thread_ts')
        , agent.text_at(_inner -> 'message', 'thread_ts')
        , agent.text_at(_inner -> 'original_message', 'thread_ts')
        , agent.text_at(_inner -> 'assistant_thread', 'thread_ts')
        , agent.text_at(_inner -> 'container', 'thread_ts'));
    _direct boolean := coalesce(_inner ->> 'channel_type' = 'im' or left(_channel, 1) = 'D', false);
begin
    if _channel is null then return null; end if;
    if _direct then
        _thread := nullif(_thread, _message); -- the message that began a thread is a top-level one
    else
        _thread := coalesce(_thread, _message);
    end if;
    return agent.bounded_key(concat_ws(':', case when _event @> '{"is_ext_shared_channel": true}' then null
        else nullif(agent.event_workspace(_event), '') end, _channel, _thread));
end $$;

-- Whether events of a kind wait for no others: commands and interactions, clicks on the worker's
-- own buttons, links to show, and what may end a run: Slack's Stop, and edits of messages.
create or replace function agent.is_interactive(_kind text) returns boolean
language sql immutable parallel safe
return _kind like 'slack.command.%' or _kind in ('slack.block_actions', 'slack.block_suggestion'
    , 'slack.dialog_cancellation', 'slack.dialog_submission', 'slack.dialog_suggestion'
    , 'slack.interactive_message', 'slack.message_action', 'slack.shortcut', 'slack.view_closed'
    , 'slack.view_submission', 'slack.workflow_step_edit', 'surelane.answer', 'slack.agent_session_stopped'
    , 'slack.message_changed', 'slack.message_deleted', 'slack.link_shared'
    , 'slack.entity_details_requested');

-- The key of an event from outside. The keys of schedules and webhooks are theirs alone: a firing
-- would be skipped if an event under its key were found.
create or replace function agent.outside_key(_key text) returns text language sql immutable parallel safe
return case when left(_key, 5) = 'cron:' or left(_key, 8) = 'webhook:'
    then agent.bounded_key('event:' || _key) else _key end;

-- The group of a new event. Commands and interactions have none, and so wait for no other event,
-- unless a handler keeps their thread's order.
create or replace function agent.stored_group_key(_kind text, _event jsonb) returns text
language plpgsql stable parallel safe as $$ begin
    if agent.is_interactive(_kind) and not exists (select from agent.kind where kind = _kind and ordered) then
        return null;
    end if;
    return agent.event_group_key(_event);
end $$;

-- When an event happened: its event_ts, else the envelope's event_time, else now; exact says which.
-- Timestamps before 2013 or more than a day ahead do not count: each would open a chunk of history.
create or replace function agent.event_time
( _event jsonb, _now timestamptz, out event_ts timestamptz, out exact boolean)
language plpgsql stable parallel safe as $$ declare _given text := agent.slack_event(_event) ->> 'event_ts';
begin
    foreach _given in array array[_given, _event ->> 'event_time'] loop
        if _given ~ '^[0-9]{1,11}([.][0-9]{1,20})?$' then
            event_ts := agent.to_timestamptz(_given::numeric);
            if event_ts >= '2013-01-01 00:00:00+00' and event_ts <= _now + interval '1 day' then
                exact := true;
                return;
            end if;
        end if;
    end loop;
    event_ts := _now; exact := false;
end $$;

-- The id of a workspace in a field; null where there is none, or an organization's.
create or replace function agent.team_at(_object jsonb, _field text) returns text
language sql immutable parallel safe
return case when left(agent.text_at(_object, _field), 1) <> 'E' then agent.text_at(_object, _field) end;

-- The workspace whose installation posted the message that a person uses. null: the app did not
-- post it. A link that the app shows stands in another's message.
create or replace function agent.posted_by(_event jsonb) returns text language sql immutable parallel safe
return (
    select case when agent.text_at(_event, 'api_app_id') = agent.text_at(message, 'app_id')
        or _event ->> 'type' in ('block_actions', 'block_suggestion', 'interactive_message')
            and not message ? 'app_id' and not _event ? 'app_unfurl'
            and agent.text_at(message, 'bot_id') is not null then agent.team_at(message, 'team') end
    from (select coalesce(_event -> 'message', _event -> 'original_message')) as used (message));

-- The workspace whose installation an event is for: Slack reports to it, or it opened the view or
-- posted the message; else the payload, or a webhook's body, names it. Empty where there is none.
create or replace function agent.event_workspace(_event jsonb) returns text
language sql immutable parallel safe
return coalesce(agent.team_at(_event -> 'authorizations' -> 0, 'team_id')
    , agent.team_at(_event -> 'view', 'app_installed_team_id'), agent.team_at(_event -> 'view', 'team_id')
    , agent.posted_by(_event), agent.text_at(_event, 'team_id'), agent.text_at(_event -> 'team', 'id')
    , agent.text_at(_event, 'team'), agent.text_at(_event -> 'user', 'team_id')
    , agent.text_at(_event -> 'payload', 'team_id'), '');

-- The address of a message, the same under all event ids. A mention and its channel's message have
-- two: Slack delivers both. In a shared channel teams differ: its addresses have none. null: no
-- message, or an edit's. The planner inlines it: no concat_ws, which is not immutable.
create or replace function agent.message_key(_event jsonb) returns text language sql immutable parallel safe
return case when agent.slack_event(_event) ->> 'type' in ('message', 'app_mention')
    and coalesce(agent.slack_event(_event) ->> 'subtype' not in ('message_changed', 'message_deleted'), true)
    and agent.text_at(agent.slack_event(_event), 'ts') is not null
    then left(case when agent.slack_event(_event) ->> 'type' = 'app_mention'
            and agent.slack_event(_event) ->> 'channel' not like 'D%' then 'mention:' else 'message:' end
        || case when not _event @> '{"is_ext_shared_channel": true}' then agent.event_workspace(_event) || ':'
            else '' end
        || agent.text_at(agent.slack_event(_event), 'channel')
        || ':' || (agent.slack_event(_event) ->> 'ts'), 200) end;

-- When a message was posted; null: it has no such timestamp.
create or replace function agent.message_time(_event jsonb) returns timestamptz
language sql immutable parallel safe
return (
    select case when given ~ '^[0-9]{1,11}([.][0-9]{1,20})?$' then agent.to_timestamptz(given::numeric) end
    from (select agent.slack_event(_event) ->> 'ts' as given offset 0) as read);

-- Whether an event is a message that its author has edited: Slack delivers such a mention again.
create or replace function agent.is_edited(_event jsonb) returns boolean language sql immutable parallel safe
return coalesce(agent.slack_event(_event) #>> '{edited,ts}' <> '', false)
    and agent.message_key(_event) is not null;

-- The channel of an event, which Slack names in different places. Empty where there is none.
create or replace function agent.event_channel(_event jsonb) returns text language sql immutable parallel safe
return (
    select coalesce(agent.text_at(e, 'channel'), agent.text_at(e -> 'channel', 'id')
        , agent.text_at(e -> 'item', 'channel')
    , agent.text_at(e, 'channel_id'), agent.text_at(e -> 'assistant_thread', 'channel_id')
    , agent.text_at(e -> 'container', 'channel_id'), '')
    from (select agent.slack_event(_event) offset 0) as given (e));

create or replace function agent.event_user(_event jsonb) returns text language sql immutable parallel safe
return (
    select coalesce(agent.text_at(e, 'user'), agent.text_at(e -> 'user', 'id'), agent.text_at(e, 'user_id')
        , agent.text_at(e -> 'message', 'user'), agent.text_at(e -> 'assistant_thread', 'user_id'), '')
    from (select agent.slack_event(_event) offset 0) as given (e));

-- A lane of a band: a group's own, else a random one. Band 0 has lanes 0 to 15, the others have
-- four each: band 1 lanes 16 to 19, and so on up to band 11.
create or replace function agent.lane_in(_band int4, _group_key text) returns int2 language sql parallel safe
return case when _band = 0 then coalesce(hashtextextended(_group_key, 0) & 15, floor(random() * 16)::int8)
    else 12 + 4 * _band + coalesce(hashtextextended(_group_key, 0) & 3, floor(random() * 4)::int8) end::int2;

-- The band of a lane. Lanes -1 to -4 hold the parked events of bands 0 to 3 (agent.hold_limited).
create or replace function agent.band_of(_lane int4) returns int4 language sql immutable parallel safe
return case when _lane < 0 then -1 - _lane when _lane < 16 then 0 else (_lane - 12) / 4 end;

-- The priority of the events in a lane: bands 1 to 3 hold priorities 0, 2, 3; so do lanes 61 to 63.
create or replace function agent.priority_of(_lane int4) returns int2 language sql immutable parallel safe
return case when _lane between 16 and 19 or _lane in (-2, 61) then 0
    when _lane between 20 and 23 or _lane in (-3, 62) then 2
    when _lane between 24 and 27 or _lane in (-4, 63) then 3 else 1 end::int2;

-- The lane of a new event, or of a member that becomes head. Priority 1 has band 0, unless a
-- workspace has a backlog there (agent.share_kind); 0, 2 and 3 have bands 1, 2 and 3, and the first
-- event records the band. Events of limited kinds are parked; of a workspace that moves here, held.
create or replace function agent.lane_for(_kind text, _priority int2, _group_key text, _event jsonb)
returns int2
language plpgsql security definer set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare _band int4 := 0;
begin
    if (select bool_or(workspace = agent.event_workspace(_event)) from agent.arriving) then
        return 60 + case _priority when 1 then 0 else greatest(_priority, 1) end;
    elsif exists (select from agent.kind_limit where kind = _kind and parks) then
        return -1 - case _priority when 1 then 0 else greatest(_priority, 1) end;
    end if;
    if _priority = 1 then
        if exists (select from agent.band where kind = _kind and workspace is not null) then
            _band := coalesce((
                select band from agent.band
                where kind = _kind and workspace in ('', agent.event_workspace(_event))
                order by workspace desc limit 1), 0);
        end if;
    else
        _band := greatest(_priority, 1);
        perform agent.use_band(_kind, _band);
    end if;
    return agent.lane_in(_band, _group_key);
end $$;

-- Records that a kind has events in a band. Waits for no other: a record may be there twice.
create or replace function agent.use_band(_kind text, _band int4) returns void
language plpgsql security definer set plan_cache_mode = force_generic_plan as $$ begin
    if _band > 0 and not exists (select from agent.band
        where kind = _kind and workspace is null and band = _band) then
        insert into agent.band (kind, band) values (_kind, _band);
    end if;
end $$;

-- Whether a claim stands, by its number and, where the session names one, by its worker: after a
-- failover that lost a claim, another worker may get its number.
create or replace function agent.claim_stands
( _claimed_by text, _claimed timestamptz[], _claim int4
, _worker text default nullif(current_setting('surelane.worker', true), '')) returns boolean
language sql stable parallel safe
return array_upper(_claimed, 1) = _claim and _claimed_by = coalesce(_worker, _claimed_by);

-- Adds new kinds to agent.kind. Another transaction may be adding the same kind: after 30 ms, it is
-- left to that one. If that rolls back, the next insert of the kind or sweep adds it. A row that
-- refuses is named, and stops no insert.
create or replace function agent.register_kinds(_kinds text[]) returns void
language plpgsql security definer set plan_cache_mode = force_generic_plan set lock_timeout = '30ms' as $$
declare _new text[] := array(select distinct given from unnest(_kinds) as given
        where not exists (select from agent.kind where kind = given) order by given);
begin
    if _new = '{}' then return; end if;
    perform agent.in_halves('with new as (insert into agent.kind (kind) select unnest($1)'
        ' on conflict do nothing returning 1) select jsonb_build_object(''kind'', count(*)) from new'
        , _new, 'kind');
end $$;

-- How many attempts an event of each kind may have without a maximum of its own: as the kind's
-- workers announced, else as given, else 3.
create or replace function agent.attempts_of(_kinds text[], _given int4) returns int4[]
language plpgsql stable security definer set plan_cache_mode = force_generic_plan as $$ begin
    return array(
        select coalesce(known.max_attempts, _given, 3)
        from unnest(_kinds) with ordinality as wanted (kind, nth)
        left join agent.kind as known on known.kind = wanted.kind order by nth);
end $$;

-- Adds a change to an event's: the first ten and the last 40 are kept, and how many lay between. A
-- value that is no array is replaced: it would stop each call that moves several events.
create or replace function agent.add_change(_changes jsonb, _change jsonb) returns jsonb
language sql immutable parallel safe set search_path = pg_catalog, pg_temp
return case when jsonb_typeof(_changes) <> 'array' then jsonb_build_array(_change)
    when jsonb_array_length(_changes) < 50 then _changes || jsonb_build_array(_change) else
    jsonb_path_query_array(_changes, '$[0 to 9]')
    || jsonb_build_array(jsonb_build_object('action', 'dropped', 'at', _changes -> -40 -> 'at'
        , 'count', jsonb_array_length(_changes) - 49
        + case when _changes -> 10 ->> 'action' = 'dropped' then (_changes -> 10 ->> 'count')::int4 - 1
            else 0 end))
    || jsonb_path_query_array(_changes, '$[last - 38 to last]') || jsonb_build_array(_change)
end;

-- The changes of an event that is claimed again: its last claim lapsed, unless it was rescued.
create or replace function agent.after_lapse(_changes jsonb, _claimed_by text, _vt timestamptz) returns jsonb
language sql stable parallel safe set search_path = pg_catalog, pg_temp
return case when _claimed_by is null or _changes -> -1 ->> 'action' = 'rescued'
    and (_changes -> -1 ->> 'at')::timestamptz = _vt then _changes
    else agent.add_change(_changes, jsonb_build_object('action', 'lapsed', 'at', _vt, 'by', _claimed_by)) end;
