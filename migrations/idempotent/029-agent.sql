-- What agents keep: usage, ratings, rules, what was said.
--   store_said, read_said: what an agent says, for who follows it; workers, operators
--   thread_events: what was said in a thread; an agent's turn
--   said_since_turn: whether an agent follows a thread; a message that does not name it
--   waiting_messages, joined_turn: messages join a turn; its requests to the model, and they
--   count_usage, read_usage: what models used today; workers
--   remind_feedback, rate_turn: a person is told of ratings, or rates a turn; workers
--   set_rule, read_rules, drop_rule: workers

-- Stores what an agent says, fenced by the claim: _text, after _from characters of the response
-- _part. At 0 the part is told anew: it and later parts are removed first. A second call changes
-- nothing. Batches are steps with numbers from -2 down. Answers as store_step.
create or replace function agent.store_said(_id int8, _claim int4, _part int4, _from int4, _text json)
returns text
language plpgsql security definer set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
    _now timestamptz := agent.clock(); _held agent.event := agent.hold_running(_id, _claim);
    _latest int4 := (select min(s.nth) from agent.step as s
        where s.event_id = _id and s.name = 'said' and s.nth < -1);
    _place text := format('[%s, %s]', _part, _from);
begin
    if _held.id is null then
        return agent.unheld(_id, _claim);
    elsif _from = 0 then
        delete from agent.step as s where s.event_id = _id and s.name = 'said' and s.nth < -1
        and (s.arguments::json ->> 0)::int4 >= _part;
        if _text is null and not found then return 'done'; end if;
    elsif exists (select from agent.step as s
        where s.event_id = _id and s.name = 'said' and s.nth = _latest and s.arguments = _place) then
        return 'done';
    end if;
    insert into agent.step (event_id, name, nth, sort, event_ts, arguments, result, attempt, started_at
        , finished_at)
    values (_id, 'said', coalesce(_latest, -1) - 1, 'step', _held.event_ts, _place, coalesce(_text, '""')
        , _held.attempts, _now, _now);
    return 'done';
end $$;

-- Returns up to 100 batches of what an agent said after the batch with number _after, in order, and
-- whether the event has ended. Numbers never begin again, also where the event runs again.
create or replace function agent.read_said(_id int8, _after int4, out ended boolean, out said json)
language sql stable security definer set enable_seqscan = off as $$
    select not exists (select from agent.event where id = _id), coalesce((
        select json_agg(json_build_object('number', -1 - s.nth, 'part', s.arguments::json -> 0
            , 'from', s.arguments::json -> 1, 'value', s.result) order by s.nth desc)
        from (select * from agent.step where event_id = _id and name = 'said' and nth < -1 - _after
            order by nth desc limit 100) as s), '[]') $$;

-- What is stored of a Slack thread before the message _ts: its messages from the newest turn on, or
-- all of 90 days without a turn, and the edits in its channel that ended since, at most 500 of a
-- kind and outcome. A turn has a step _step that has ended. _group_keys: the thread's group, then
-- its first message's (_root) if it differs. whole: one came as a message of the channel.
create or replace function agent.thread_events
( _group_keys text[], _channel text, _root text, _ts text, _step text)
returns table (id int8, event_ts timestamptz, turn boolean, whole boolean, event jsonb, notes jsonb
, result jsonb) language plpgsql stable security definer
set plan_cache_mode = force_custom_plan set enable_bitmapscan = off set enable_sort = off as $$
declare
    _at timestamptz := agent.to_timestamptz(_ts::numeric);
    _first timestamptz := greatest(agent.to_timestamptz(_root::numeric), _at - interval '90 days');
begin
    return query with stored as materialized (
        select s.*, key = _group_keys[1] as inside from unnest(_group_keys) as key cross join lateral (
            (select h.id, h.event_ts, h.event, h.notes, h.result from agent.event_hist as h
             where h.group_key = key and h.finished_at >= _first - interval '1 minute'
             and h.event_ts >= _first
             and (h.reason is null or h.reason not like '%: deleted in Slack') order by h.finished_at desc
             limit 1000)
            union all select e.id, e.event_ts, e.event, e.notes, null
            from agent.live_between(key, '-infinity', _at) as e
        ) as s
    ), said as materialized (
        select s.*, m.message ->> 'ts' as ts, bool_or(m.message ->> 'type' = 'message') over () as whole
        , exists (select from agent.step as t
            where t.event_id = s.id and t.name = _step and t.nth = 1 and t.result is not null
            and t.finished_at is not null) as turn
        from stored as s cross join lateral (select agent.slack_event(s.event) as message offset 0) as m
        where m.message ->> 'type' in ('app_mention', 'message')
        and coalesce(m.message ->> 'subtype', '') not in ('message_changed', 'message_deleted')
        and m.message ->> 'ts' < _ts and (s.inside or m.message ->> 'ts' = _root)
    ), since as materialized (select max(s.ts) as ts from said as s where s.turn)
    select s.id, s.event_ts, s.turn, s.whole, s.event, s.notes, s.result from said as s, since
    where s.ts >= coalesce(since.ts, '')
    union all select h.* from agent.kind as edits
    cross join unnest(array['completed', 'failed', 'expired', 'cancelled']) as ending (outcome)
    cross join lateral (
        select e.id, e.event_ts, false, false, e.event, '{"edit": true}'::jsonb, null::jsonb
        from agent.event_hist as e
        where e.kind = edits.kind and e.outcome = ending.outcome and e.event_ts >= _first
        and coalesce(e.event #>> '{event,channel}', e.event ->> 'channel') = _channel
        and e.finished_at >= (select greatest(agent.to_timestamptz(since.ts::numeric)
                , _first) - interval '1 minute' from since)
        order by e.finished_at desc limit 500
    ) as h where edits.kind like any(array[E'slack.message\\_changed%', E'slack.message\\_deleted%']);
end $$;

-- The messages of a Slack thread since the newest turn that began in 24 hours before _at, the
-- oldest first; of those that ended the last 100. None: there is no such turn, or Slack's Stop
-- ended it. A turn has a step _step that has ended.
create or replace function agent.said_since_turn(_group_key text, _at timestamptz, _step text)
returns table (event jsonb) language sql stable security definer set enable_bitmapscan = off
set enable_sort = off as $$
    with said as materialized (
        (select h.id, h.event_ts, h.reason, h.event from agent.event_hist as h
         where h.group_key = _group_key and h.finished_at >= _at - interval '24 hours'
         and h.event_ts >= _at - interval '24 hours' and h.event_ts < _at
         order by h.finished_at desc limit 100)
        union all select e.id, e.event_ts, null, e.event from agent.live_in_group(_group_key) as e
        where e.event_ts < _at
    ), turn as materialized (
        select s.* from said as s where exists (select from agent.step as t
            where t.event_id = s.id and t.name = _step and t.nth = 1 and t.finished_at is not null)
        order by s.event_ts desc, s.id desc limit 1)
    select s.event from turn as t join said as s on s.event_ts >= t.event_ts
    where coalesce(t.reason not like '%: stopped in Slack', true) order by s.event_ts, s.id $$;

-- The first 20 later messages in some groups that may join the turn _id, of _at: none has a turn of
-- its own (a step _step). The first group is the turn's own. In others a claimed message has begun.
create or replace function agent.waiting_messages(_id int8, _at timestamptz, _group_keys text[], _step text)
returns table (id int8, kind text, event_ts timestamptz, group_key text, event jsonb)
language sql stable security definer as $$
    select e.id, e.kind, e.event_ts, e.group_key, e.event
    from unnest(_group_keys) with ordinality as g (key, nth)
    cross join lateral agent.live_between(g.key, _at, 'infinity') as e
    where e.event_ts > _at and e.cancelled_by is null and (nth = 1 or e.claimed_by is null)
    and not exists (select from agent.step as s where s.event_id = e.id and s.name = _step)
    and not exists (select from agent.step as s where s.event_id = _id and s.name = 'joined ' || e.id)
    order by e.event_ts, e.id limit 20 $$;

-- The key of the turn that the message _id, of _at, joined, and whether it runs; none that failed
-- or was cancelled, but by Slack's Stop. Else of the turn of _root in another group, while it runs.
create or replace function agent.joined_turn(_id int8, _at timestamptz, _group_keys text[], _root text)
returns table (key text, runs boolean) language sql stable security definer set enable_bitmapscan = off as $$
    select coalesce(t.item_key, t.id::text), t.runs
    from unnest(_group_keys) with ordinality as g (key, nth) cross join lateral (
        select e.id, e.item_key, e.claimed_by is not null or e.retrying or e.vt <= agent.clock() as runs
        , nth > 1 and agent.slack_event(e.event) ->> 'ts' = _root as roots
        from agent.live_between(g.key, '-infinity', _at) as e
        union all select h.id, h.item_key, false, false from agent.event_hist as h
        where h.group_key = g.key and h.finished_at >= _at - interval '1 minute' and h.event_ts < _at
        and h.event_ts >= _at - interval '8 days'
        and (h.outcome = 'completed' or h.reason like '%: stopped in Slack')
    ) as t left join agent.step as s on s.event_id = t.id and s.name = 'joined ' || _id
    where s.finished_at is not null or t.runs and t.roots order by s.finished_at limit 1 $$;

-- Counts a model's response for its workspace and person, on today's row. A second call for the
-- response that was counted last changes nothing: the answer to the first one may have been lost.
create or replace function agent.count_usage
( _owner_id text, _user_id text, _model text, _input_tokens int8, _output_tokens int8, _cost numeric
, _response text) returns void language sql security definer begin atomic
    insert into agent.model_usage as u (day, owner_id, user_id, model, requests, input_tokens, output_tokens
        , cost, latest)
    values ((agent.clock() at time zone 'utc')::date, _owner_id, _user_id, _model, 1, _input_tokens
        , _output_tokens, _cost, _response)
    on conflict (day, owner_id, user_id, model) do update set requests = u.requests + 1
    , input_tokens = u.input_tokens + _input_tokens, output_tokens = u.output_tokens + _output_tokens
    , cost = u.cost + _cost, latest = _response where u.latest <> _response;
end;

create or replace function agent.read_usage
( _owner_id text, _user_id text, out tokens int8, out cost numeric, out person_tokens int8
, out person_cost numeric) language sql stable security definer begin atomic
    select coalesce(sum(u.input_tokens + u.output_tokens), 0), coalesce(sum(u.cost), 0)
    , coalesce(sum(u.input_tokens + u.output_tokens) filter (where u.user_id = _user_id), 0)
    , coalesce(sum(u.cost) filter (where u.user_id = _user_id), 0)
    from agent.model_usage as u where u.day = (select (agent.clock() at time zone 'utc')::date)
    and u.owner_id = _owner_id;
end;

-- Counts that a person is told of the buttons, so many times. False: it was three times before.
create or replace function agent.remind_feedback(_owner_id text, _user_id text, _times int4) returns boolean
language sql security definer begin atomic
    with counted as (insert into agent.feedback as f (event_id, owner_id, user_id, channel, kind, version
        , model, rating, click, at) values (0, _owner_id, _user_id, '', '', '', '', _times, 0, agent.clock())
        on conflict (event_id, owner_id, user_id) do update set rating = f.rating + excluded.rating
        where f.rating < 3 returning 1)
    select exists (select from counted);
end;

-- Stores what a person thinks of a turn in the channel. The later click counts. The same rating
-- again changes the reason alone, if it has one. False: there is no such turn in the channel.
create or replace function agent.rate_turn
( _event_id int8, _owner_id text, _user_id text, _channel text, _rating int4, _reason jsonb, _model text
, _click int8) returns boolean language sql security definer set enable_seqscan = off begin atomic
    with found as materialized (
        select agent.base_kind(t.kind, t.notes) as kind, coalesce(t.notes ->> 'version', '1') as version
        from (select e.kind, e.notes, e.event from agent.event as e where e.id = _event_id
            union all select h.kind, h.notes, h.event from agent.event_hist as h where h.id = _event_id
            limit 1) as t
        where agent.event_channel(t.event) = _channel
    ), rated as (
        insert into agent.feedback as f (event_id, owner_id, user_id, channel, kind, version, model, rating
            , reason, click, at)
        select _event_id, _owner_id, _user_id, _channel, kind, version, _model, _rating, _reason, _click
        , agent.clock() from found
        on conflict (event_id, owner_id, user_id) do update set model = excluded.model
        , rating = excluded.rating, reason = excluded.reason, click = excluded.click, at = excluded.at
        where f.click < excluded.click and (f.rating <> excluded.rating or excluded.reason is not null))
    select count(agent.remind_feedback(_owner_id, _user_id, 3)) > 0 from found;
end;

-- Sets a workspace's rule _about a channel, a person or itself, or corrects the rule with this _id.
-- Behind "memory " in _about, it is what agents remember. False: there are as many as may be.
create or replace function agent.set_rule(_owner_id text, _id int8, _about text, _said text, _set_by text)
returns boolean language plpgsql security definer as $$ begin
    -- The next statement counts rules of concurrent calls, too. A turn's name shows no id.
    perform agent.await_turn('set_rule ' || (hashtext(_owner_id || ' ' || _about) & 255), '2s');
    insert into agent.rule as here (owner_id, id, about, said, set_by, set_at)
    select _owner_id, _id, _about, _said, _set_by, agent.clock()
    where exists (select from agent.rule as r where r.id = _id)
    or (select count(*) from agent.rule as r where r.owner_id = _owner_id and r.about = _about)
        < case when starts_with(_about, 'memory ') then 20 else 10 end
    on conflict (id) do update set said = excluded.said, set_by = excluded.set_by
    where (here.owner_id, here.about) = (excluded.owner_id, excluded.about);
    return found;
end $$;

create or replace function agent.read_rules(_owner_id text, _about text[])
returns table (id int8, about text, said text, set_by text) language sql stable security definer begin atomic
    select r.id, r.about, r.said, r.set_by from agent.rule as r
    where r.owner_id = _owner_id and r.about = any(_about)
    order by array_position(_about, r.about), r.set_at, r.id;
end;

create or replace function agent.drop_rule(_owner_id text, _about text, _id int8) returns boolean
language plpgsql security definer as $$ begin
    delete from agent.rule as r where r.id = _id and r.owner_id = _owner_id and r.about = _about;
    return found;
end $$;
