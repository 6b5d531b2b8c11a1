-- Stores Slack's events: singly, and in batches.
--   require_read_committed: refuses stricter transactions; all inserts
--   live_message, known_message: another delivery of a message; inserts
--   add_event: stores one row, or finds its duplicate; all that store singly
--   stored_item_key, says_the_same, slack_row, store_event, known_event: one Slack event;
--     insert_event, insert_events
--   insert_event: a program stores a Slack event
--   store_new_events: the new ones of a batch in one statement; insert_events
--   insert_events: ingest, for each batch
--   takes_events: whether all events are refused; ingest

-- Refuses stricter transactions: their look into history after an insert would not see a duplicate
-- that moved there meanwhile.
create or replace function agent.require_read_committed() returns void language plpgsql as $$ begin
    if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
        raise invalid_transaction_state
            using message = 'events can be inserted in READ COMMITTED transactions only'
        , hint = 'At ' || upper(current_setting('transaction_isolation'))
        || ' a duplicate of an event that is moving to history would be stored.';
    end if;
end $$;

-- The live event of a message, other than _but: a waiting one by its dedupe key, a held one in its
-- group. event is null while it is being cancelled.
create or replace function agent.live_message
( _address text, _item_key text, _group_key text, _but int8, out id int8, out event jsonb)
language plpgsql security definer set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
begin
    select t.id, case when t.cancelled_by is null then t.event end into id, event from (
        select e.* from agent.event as e where e.dedupe_key = _address and e.claimed = '{}'
        union all select e.* from agent.event as e
        where e.dedupe_key = _address and e.claimed <> '{}' and e.claimed_by is null
        union all select e.* from agent.event as e
        where e.group_key = _group_key and e.head and e.dedupe_key = _address
        union all select e.* from agent.event as e
        where e.group_key = _group_key and not e.head and e.claimed_by is not null and e.dedupe_key = _address
        union all select e.* from agent.event as e where e.item_key = _item_key
    ) as t where t.id is distinct from _but limit 1;
end $$;

-- The event of a message, live or in history. Planned at each call, as find_in_history is. Clocks
-- differ: an event_ts may be 25 hours older than the message.
create or replace function agent.known_message
( _event jsonb, _item_key text default null, _but int8 default null, out id int8, out event jsonb)
language plpgsql security definer set plan_cache_mode = force_custom_plan as $$
declare
    _address text := agent.message_key(_event);
    _posted timestamptz := coalesce(agent.message_time(_event), '-infinity');
    _since timestamptz := least(_posted, agent.clock()) - interval '25 hours';
begin
    if _address is null then return; end if;
    select live.id, live.event into id, event
    from agent.live_message(_address, _item_key, agent.event_group_key(_event), _but) as live;
    if id is not null then return; end if;
    select t.id, case when t.outcome <> 'cancelled' then t.event end into id, event from (
        select h.* from agent.event_hist as h where h.dedupe_key = _address and h.event_ts >= _since
        union all select h.* from agent.event_hist as h where h.item_key = _item_key and h.event_ts >= _since
    ) as t where t.id is distinct from _but limit 1;
end $$;

-- Puts one row into the queue, or finds the row with its item key (_in_history: also in history) or
-- dedupe key. All inserts end here, except the batches of store_new_events and add_new_jobs.
create or replace function agent.add_event
( _new agent.event, _exact boolean, _in_history boolean, out id int8, out duplicate boolean)
language plpgsql security definer set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
begin
    perform agent.require_read_committed();
    if not exists (select from agent.kind where kind = _new.kind) then
        perform agent.register_kinds(array[_new.kind]);
    end if;
    duplicate := false;
    for _turn in 1..2147483647 loop
        insert into agent.event as e (id, event_ts, vt, claimed, event, kind, item_key, dedupe_key, group_key
            , head, lane, max_attempts
            , deadline, enqueued_at, enqueued_by, errors, traceparent, continuation_id, waits_for
            , fails_with_children, changes)
        values (coalesce(_new.id, nextval('agent.event_id_seq')), _new.event_ts, _new.vt
            , coalesce(_new.claimed, '{}'), _new.event, _new.kind, _new.item_key, _new.dedupe_key
            , _new.group_key, _new.group_key is null or not agent.enter_group(_new.group_key)
            , agent.lane_for(_new.kind, agent.priority_of(_new.lane), _new.group_key, _new.event)
            , _new.max_attempts, _new.deadline, coalesce(_new.enqueued_at, agent.clock())
            , coalesce(_new.enqueued_by, session_user), coalesce(_new.errors, '[]'), _new.traceparent
            , _new.continuation_id, _new.waits_for
            , coalesce(_new.fails_with_children, false), coalesce(_new.changes, '[]'))
        on conflict do nothing returning e.id into id;
        exit when id is not null;
        select e.id into id from agent.event as e where e.item_key = _new.item_key;
        if id is null and _new.id is not null then
            select e.id into id from agent.event as e where e.id = _new.id;
        end if;
        if id is null and _new.dedupe_key is not null then
            select e.id into id from agent.event as e
            where e.dedupe_key = _new.dedupe_key and e.claimed = '{}';
        end if;
        duplicate := id is not null;
        if duplicate then return; end if;
        -- The duplicate has moved to history, or another row has become the head: look again. That
        -- would not end where an index that others added refuses the row.
        if _turn % 10 = 0 then perform agent.blame_foreign(); end if;
    end loop;
    if _in_history then
        declare
            -- In a new statement: it sees a duplicate that was moving to history meanwhile.
            _known int8 := agent.find_in_history(_new.item_key, _new.event_ts, _exact);
        begin
            if _known is null and _new.dedupe_key is not null then
                select found.id into _known from agent.known_message(_new.event, null, add_event.id) as found;
            end if;
            if _known is not null then
                delete from agent.event as e where e.id = add_event.id;
                id := _known; duplicate := true;
            end if;
        end;
    end if;
end $$;

create or replace function agent.stored_item_key(_given text, _event jsonb) returns text
language sql immutable parallel safe
return agent.outside_key(coalesce(agent.bounded_key(_given), agent.event_item_key(_event)));

-- Whether two deliveries of a message have the same text and files. null: they are encrypted.
create or replace function agent.says_the_same(_one jsonb, _other jsonb) returns boolean
language sql immutable parallel safe
return (
    select bool_and(said ->> 'text' = agent.slack_event(_one) ->> 'text'
        and jsonb_path_query_array(said, '$.files[*].id')
            = jsonb_path_query_array(agent.slack_event(_one), '$.files[*].id'))
    from agent.slack_event(_other) as said);

create or replace function agent.slack_row(_event jsonb, _traceparent text, _item_key text)
returns agent.event language plpgsql security definer as $$ declare _new agent.event;
begin
    _new.vt := agent.clock(); _new.enqueued_at := _new.vt; -- one reading: the clock may jump
    _new.event_ts := (agent.event_time(_event, _new.vt)).event_ts;
    _new.event := _event;
    _new.kind := agent.event_kind(_event);
    _new.item_key := agent.stored_item_key(_item_key, _event);
    _new.dedupe_key := agent.message_key(_event);
    _new.group_key := agent.stored_group_key(_new.kind, _event);
    _new.traceparent := _traceparent;
    return _new;
end $$;

-- Stores a Slack envelope or a bare event. A message that comes again is a duplicate, unless its
-- author has given it a new text: then it is stored as Slack reports edits.
create or replace function agent.store_event
( _event jsonb, _traceparent text, _item_key text, out id int8, out duplicate boolean)
language plpgsql security definer set plan_cache_mode = force_generic_plan as $$
declare _new agent.event; _before jsonb;
begin
    if jsonb_typeof(_event) is distinct from 'object' then
        raise invalid_parameter_value using message = format('an event is a JSON object, not %s'
            , coalesce(jsonb_typeof(_event), 'null'));
    end if;
    _new := agent.slack_row(_event, _traceparent, _item_key);
    if agent.is_edited(_event) then
        select known.id, known.event into id, _before
        from agent.known_message(_event, _new.item_key) as known;
        duplicate := id is not null and (agent.event_item_key(_before) = agent.event_item_key(_event)
            or agent.says_the_same(_before, _event));
        if duplicate then
            return;
        elsif id is not null then
            _new.kind := 'slack.message_changed';
            _new.item_key := agent.stored_item_key(null, _event);
            _new.dedupe_key := null;
            _new.group_key := agent.stored_group_key(_new.kind, _event);
        end if;
    end if;
    select added.id, added.duplicate into id, duplicate
    from agent.add_event(_new, (agent.event_time(_event, _new.vt)).exact, true) as added;
    if agent.is_interactive(_new.kind) then
        perform pg_notify('agent_event', 'interactive');
    end if;
end $$;

-- The id of an event with this one's natural key, or of the same message, live or ended.
create or replace function agent.known_event(_event jsonb, _item_key text) returns int8
language plpgsql security definer as $$
declare
    _key text := agent.stored_item_key(_item_key, _event);
    _id int8 := (select id from agent.event where item_key = _key);
begin
    if _id is null then
        select agent.find_in_history(_key, happened.event_ts, happened.exact) into _id
        from agent.event_time(_event, agent.clock()) as happened;
    end if;
    return coalesce(_id, (select known.id from agent.known_message(_event) as known));
end $$;

-- Inserts a Slack event: the whole envelope or a bare event. Returns its id; of a duplicate, the id
-- of the event that is queued, runs or has ended.
create or replace function agent.insert_event(_event jsonb) returns int8
language sql security definer as $$ select id from agent.store_event(_event, null, null) $$;

-- Stores the new events of a batch in one statement; returns their ids (of _ids). _apart: the kinds
-- without a group. Rows go in by group and then by time, so a group's first event becomes its head.
-- Each locks its group's head first: batches wait in one order. Left out: duplicates of the queue,
-- history or the batch, edited messages, and the first one of a group that just got a head.
create or replace function agent.store_new_events
( _ids int8[], _events jsonb[], _traceparents text[], _item_keys text[], _kinds text[]
, _apart text[]) returns int8[] language plpgsql security definer set enable_seqscan = off as $$
declare
    _now timestamptz := agent.clock();
    _stored int8[]; _stored_keys text[]; _first timestamptz; _last timestamptz;
    _known_keys text[]; _addresses text[]; _again int8[];
    _shared text[] := array(select kind from agent.band where workspace is not null)
        || array(select kind from agent.kind_limit where parks)
        || array(select kind from agent.kind where exists (select from agent.arriving));
begin
    with new as (
        select distinct on (read.item_key) id, event, event_ts, kind, read.item_key, group_key, traceparent
        , case when exact then event_ts else least(event_ts, agent.message_time(event)) end as since
        , case when group_key is not null then event_ts end as first
        , case when group_key is null or exact then read.item_key end as second
        from unnest(_ids, _events, _traceparents, _item_keys, _kinds) with ordinality
            as given (id, event, traceparent, item_key, kind, nth)
        cross join lateral agent.event_time(event, _now)
        -- "offset 0": the keys are read once, however often they are used.
        cross join lateral (select coalesce(agent.bounded_key(given.item_key)
                , agent.event_item_key(event)) as key offset 0) as own
        cross join lateral (
            select case when kind <> all(_apart) then agent.event_group_key(event) end as group_key
            , agent.outside_key(own.key) as item_key offset 0) as read
        where jsonb_typeof(event) = 'object' and not agent.is_edited(event)
        order by read.item_key, nth
    ), stored as (
        insert into agent.event
        (id, event_ts, vt, event, kind, item_key, dedupe_key, group_key, head, lane, enqueued_at, traceparent)
        select id, event_ts, agent.clock(), event, kind, item_key, agent.message_key(event), group_key
        , group_key is null or not agent.lock_head(group_key, kind, _now, several, event_ts, id)
        , case when kind = any(_shared) then agent.lane_for(kind, 1::int2, group_key, event)
            else agent.lane_in(0, group_key) end
        , agent.clock(), traceparent
        from (
            select *, min(kind) over same_group <> max(kind) over same_group as several from new
            window same_group as (partition by group_key
                order by first, second, id rows between unbounded preceding and unbounded following)
        ) as grouped
        order by group_key, first, second, id
        on conflict do nothing returning id, item_key, event_ts, dedupe_key)
    select coalesce(array_agg(id), '{}'), array_agg(item_key)
    , array_agg(dedupe_key) filter (where dedupe_key is not null), (select min(since) from new), max(event_ts)
    into _stored, _stored_keys, _addresses, _first, _last from stored;
    -- In a new statement: it sees a duplicate that was moving to history meanwhile. First whether
    -- there may be any. A hypertable's chunks are children of history.
    _first := _first - interval '3 days';
    _last := _last + interval '1 hour';
    if exists (select from pg_catalog.pg_inherits where inhparent = 'agent.event_hist'::regclass) then
        _known_keys := agent.keys_in_history(_stored_keys, _first, _last);
        _addresses := agent.messages_in_history(_addresses, _first, _last);
    else
        -- Of one table the plan for all values is as good, and need not be made at each call.
        _known_keys := array(select item_key from agent.event_hist
            where item_key = any(_stored_keys) and event_ts between _first and _last);
        _addresses := array(
            select dedupe_key from agent.event_hist
            where dedupe_key = any(_addresses) and event_ts between _first and _last);
    end if;
    -- Messages under another event id: in history, claimed once, or held in their group.
    _again := array(
        select e.id from agent.event as e where e.id = any(_stored) and e.dedupe_key is not null
        and (e.dedupe_key = any(_addresses)
            or exists (
                select from agent.event as t
                where t.dedupe_key = e.dedupe_key and t.claimed <> '{}' and t.claimed_by is null)
            or not e.head and exists (
                select from agent.event as t
                where t.group_key = e.group_key and t.head and t.dedupe_key = e.dedupe_key)
            -- Not "exists": it would read the held events of all groups at once.
            or not e.head and (
                select true from agent.event as t
                where t.group_key = e.group_key and not t.head and t.claimed_by is not null
                and t.dedupe_key = e.dedupe_key limit 1)));
    if _again <> '{}' then
        delete from agent.event where id = any(_again);
        _stored := array(select unnest(_stored) except select unnest(_again));
    end if;
    if _known_keys <> '{}' then
        with known as (
            delete from agent.event where id = any(_stored) and item_key = any(_known_keys)
            and agent.find_in_history(item_key, event_ts, event_ts <> _now) is not null returning id
        )
        select array(select unnest(_stored) except select id from known) into _stored;
    end if;
    return _stored;
end $$;

-- Inserts a batch in one transaction; answers each event by its place. Gives up after 500 ms of a
-- lock (55P03): the caller then inserts singly. Batches lock groups and keys in one order, so they
-- cannot deadlock. If an event lost the race to be the first of its group, the batch is rolled back
-- and stored again, in order.
create or replace function agent.insert_events
( _events jsonb[], _traceparents text[] default null, _item_keys text[] default null)
returns table (ordinal int4, id int8, duplicate boolean)
language plpgsql security definer set plan_cache_mode = force_generic_plan set lock_timeout = '500ms' as $$
declare
    _ids int8[] := array(select nextval('agent.event_id_seq') from generate_series(1, cardinality(_events)));
    _stored int8[]; _given record;
    _kinds text[] := array(select agent.event_kind(event) from unnest(_events) as event);
    _apart text[];
begin
    perform agent.require_read_committed();
    -- At once, not at commit: waiting for a head is bounded here.
    set constraints agent.member_joins immediate;
    perform agent.register_kinds(_kinds);
    _apart := array(select distinct kind from unnest(_kinds) as kind where agent.is_interactive(kind));
    if _apart <> '{}' then
        perform pg_notify('agent_event', 'interactive');
        _apart := array(select one from unnest(_apart) as one
            where not exists (select from agent.kind where kind = one and ordered));
    end if;
    for _turn in 1..4 loop
        begin
            _stored := agent.store_new_events(_ids, _events, _traceparents, _item_keys, _kinds, _apart);
            exit when cardinality(_stored) = cardinality(_ids) or _turn = 4;
            exit when not exists (
                select from unnest(_ids, _events, _item_keys) as g (id, event, item_key)
                where g.id <> all(_stored) and jsonb_typeof(g.event) = 'object'
                and not agent.is_edited(g.event)
                and agent.known_event(g.event, g.item_key) is null);
            raise sqlstate 'SL001';
        exception when sqlstate 'SL001' then null;
        end;
    end loop;
    return query select nth::int4, given.id, false from unnest(_ids) with ordinality as given (id, nth)
        where given.id = any(_stored);
    if cardinality(_stored) = cardinality(_ids) then return; end if;
    -- The others one by one; almost all are repeated deliveries. A known event locks no group.
    for _given in
        select g.event, g.traceparent, g.item_key, g.nth
        from unnest(_ids, _events, _traceparents, _item_keys) with ordinality
            as g (id, event, traceparent, item_key, nth)
        where g.nth <= cardinality(_ids) and g.id <> all(_stored)
        order by agent.stored_group_key(agent.event_kind(g.event), g.event)
        , (agent.event_time(g.event, agent.clock())).event_ts, g.nth
    loop
        ordinal := _given.nth; id := null;
        if not agent.is_edited(_given.event) then
            id := agent.known_event(_given.event, _given.item_key);
        end if;
        duplicate := true;
        if id is not null then
            return next;
            continue;
        end if;
        select stored.id, stored.duplicate into id, duplicate
        from agent.store_event(_given.event, _given.traceparent, _given.item_key) as stored;
        return next;
    end loop;
end $$;

-- Stores an event as ingest does, and takes it back. Its error says why the server takes none.
create or replace function agent.takes_events() returns void language plpgsql security definer as $$ begin
    perform agent.insert_events(array[jsonb_build_object(
        'type', 'event_callback', 'event_id', gen_random_uuid()
        , 'event', jsonb_build_object('type', 'app_mention', 'text', 'Does the server take events?'))]);
    raise sqlstate 'SL002';
exception when sqlstate 'SL002' then null;
end $$;
