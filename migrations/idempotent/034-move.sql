-- A workspace moves to another installation. The extension surelane-shards copies its rows, and
-- calls these functions as the owner of both schemas, who alone may (docs/scaling.md).
--   moving_tables: what moves
--   hold_workspace, free_workspace: there, no event is claimed from the one to the other
--   publish_copies: there, makes the copies rows of the queue
--   delete_moved: here, deletes what was copied, and notes the move

-- The tables whose rows move, in the order in which they are published, and a condition for the
-- rows. History comes first: a child that is published later would count down its parent again.
-- The temporary table moving has the ids of the events that move. stays: the rows also stay here.
create or replace function agent.moving_tables
( _team text, out name text, out condition text, out stays boolean) returns setof record
language sql immutable
begin atomic
    select t.name, format(t.condition, _team), t.stays
    from (values (1, 'event_hist', 'id in (select id from pg_temp.moving)', false)
        , (2, 'event', 'id in (select id from pg_temp.moving)', false)
        , (3, 'step', 'event_id in (select id from pg_temp.moving)', false)
        , (4, 'signal', 'event_id in (select id from pg_temp.moving)', false)
        , (5, 'feedback', 'event_id in (select id from pg_temp.moving)', false)
        , (6, 'other_report', 'event_id in (select id from pg_temp.moving)', false)
        , (7, 'install_wait', 'event_id in (select id from pg_temp.moving)', false)
        , (8, 'rule', 'owner_id = %L', false), (9, 'model_usage', 'owner_id = %L', false)
        -- Schedules that people made in chat.
        , (10, 'cron', $$starts_with(name, 'chat:' || %L || ':')$$, false)
        , (11, 'installation', 'split_part(owner_id, '' '', 1) = %L and not enterprise_wide', false)
        -- History that stays here needs its key.
        , (12, 'data_key', 'workspace = %L', true)) as t (nth, name, condition, stays)
    order by t.nth;
end;

-- Holds what the workspace has here, and what comes. Returns how many are not held: repeat until 0.
create or replace function agent.hold_workspace(_team text) returns int8 language plpgsql as $$ begin
    insert into agent.arriving values (_team) on conflict do nothing;
    update agent.event set lane = agent.lane_for(kind, agent.priority_of(lane), group_key, event)
    where head and claimed_by is null and lane < 60 and agent.event_workspace(event) = _team;
    return (select count(*) from agent.event
        where (claimed_by <> '' or head and lane < 60) and agent.event_workspace(event) = _team);
end $$;

-- Ends a hold; returns whether it freed events. Steps over locked ones. A sweep frees those, and
-- what a transaction stored that began before.
create or replace function agent.free_workspace(_team text) returns boolean
language plpgsql set enable_seqscan = off as $$ declare _freed int8[];
begin
    delete from agent.arriving where workspace = _team;
    _freed := array(select id from agent.event where head and lane >= 60 and agent.event_workspace(event)
        not in (select workspace from agent.arriving) for update skip locked);
    update agent.event set vt = greatest(vt, agent.clock())
    , lane = agent.lane_for(kind, agent.priority_of(lane), group_key, event) where id = any(_freed);
    perform agent.note_parked(_freed, false), pg_notify('agent_event', '') where _freed <> '{}';
    return _freed <> '{}';
end $$;

-- Makes the copies in schema _copies rows of the queue, and drops the schema. A name without a
-- schema is a copy; the tables of the queue are named with theirs. Slack's events and webhooks'
-- calls that both have, or that were held, are stored again as if they came now: a duplicate drops.
create or replace function agent.publish_copies(_copies text) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$ begin
    perform set_config('search_path', quote_ident(_copies), true);
    create table again as
    with here as (
        delete from agent.event where claimed = '{}' and kind ~ '^(slack[.]|trigger-fire$)'
        and (item_key in (select item_key from event union all select item_key from event_hist)
            or dedupe_key in (select dedupe_key from event union all select dedupe_key from event_hist))
        returning *
    ), came as (
        delete from event as c where claimed = '{}' and kind ~ '^(slack[.]|trigger-fire$)'
        -- A message that an edit replaced is known there: what replaced it, without a key, is not.
        and (lane >= 60 and (dedupe_key is not null or agent.message_key(event) is null)
            or exists (select from agent.event as e where e.claimed <> '{}'
                and (e.item_key = c.item_key or e.dedupe_key = c.dedupe_key))) returning *)
    select * from came union all select * from here;
    -- History's triggers would start again what these events started when they ended.
    create table ended as select id, event_ts, outcome, notes, continuation_id from event_hist;
    update event_hist set outcome = 'completed', notes = null, continuation_id = null;
    insert into agent.event_hist select * from event_hist;
    update agent.event_hist as h
    set outcome = e.outcome, notes = e.notes, continuation_id = e.continuation_id
    from ended as e where h.id = e.id and h.event_ts = e.event_ts;
    alter table event alter head drop not null;
    update event set head = null, lane = agent.lane_for(kind, agent.priority_of(lane), group_key, event);
    insert into agent.event select * from event order by event_ts, id;
    perform case a.kind when 'trigger-fire' then (agent.add_event(row(a.*)::agent.event, false, true)).id
        else (agent.store_event(a.event, a.traceparent, a.item_key)).id end
    from (select * from again order by event_ts, id offset 0) as a;
    insert into agent.step select * from step;
    insert into agent.signal (event_id, name, value, sent_at, sent_by, taken_by, decides)
    select event_id, name, value, sent_at, sent_by, taken_by, decides from signal order by id;
    insert into agent.feedback select * from feedback on conflict do nothing;
    insert into agent.other_report select * from other_report on conflict do nothing;
    insert into agent.install_wait select * from install_wait on conflict do nothing;
    insert into agent.rule select * from rule on conflict do nothing;
    insert into agent.cron select * from cron on conflict do nothing;
    insert into agent.model_usage as here select * from model_usage
    on conflict (day, owner_id, user_id, model) do update
    set requests = here.requests + excluded.requests, input_tokens = here.input_tokens + excluded.input_tokens
    , output_tokens = here.output_tokens + excluded.output_tokens, cost = here.cost + excluded.cost;
    insert into agent.installation select * from installation on conflict do nothing;
    -- A key that encrypts for the workspace already goes on. The copied key opens what came.
    update data_key as k set left_at = agent.clock()
    from agent.data_key as h
    where h.workspace = k.workspace and h.id <> k.id and h.retired_at is null and h.left_at is null;
    insert into agent.data_key select * from data_key on conflict (id) do nothing;
    set constraints all immediate;
    -- A group's first event does not always lead: a retry may, or an event that was here before.
    perform agent.hold_group(g.group_key), agent.reelect(array[g.group_key])
    from (select distinct group_key from event where group_key is not null order by 1 offset 0) as g
    join agent.event as h on h.group_key = g.group_key and h.head
    where agent.outranked(h, agent.claimable_kinds(), agent.clock());
    execute format('drop schema %I cascade', _copies);
end $$;

-- Deletes what was copied, and notes the move as an operator's action. Deletion and note are one
-- transaction: by the note, the move's repetition knows that the copies count.
create or replace function agent.delete_moved(_team text, _who text, _detail jsonb, _result jsonb)
returns void language plpgsql as $$ declare _table record;
begin
    for _table in select name, condition from agent.moving_tables(_team) where not stays loop
        execute format('delete from agent.%I where %s', _table.name, _table.condition);
    end loop;
    insert into agent.operator_action (who, via, role, action, target, detail, result, at, seen_at
        , finished_at)
    select _who, 'command', session_user, 'move', 'workspace ' || _team, _detail, _result, now, now, now
    from agent.clock() as now;
end $$;
