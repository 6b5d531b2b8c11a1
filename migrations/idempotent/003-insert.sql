-- Everything that stores an event: Slack's, webhooks' and programs'.
--
--   require_read_committed: refuses stricter transactions; all inserts
--   register_kinds: adds new kinds; inserts, announcements, sweeps
--   attempts_of: the maximum of attempts per kind; claims, failures, peeks
--   blame_foreign: names what somebody else added to the queue's table; the next one, promote
--   live_message, known_message: another delivery of a message; inserts
--   add_event: stores one row, or finds its duplicate; all that store singly
--   stored_item_key, says_the_same, slack_row, store_event, known_event: one Slack event;
--     insert_event, insert_events
--   insert_event: a program stores a Slack event
--   store_new_events: the new ones of a batch in one statement; insert_events
--   insert_events: ingest, for each batch
--   require_kind: refuses kinds that stand for a person; jobs
--   is_producer, stored_by_caller: what a program may change; duplicates, signals
--   job_from_json: a job as a row; the next one, schedules, webhooks
--   given_job: the same of a caller's job; enqueue, fan-outs, children
--   require_same_kind: a key belongs to one kind; enqueue_job, enqueue_jobs
--   enqueue_job: stores or moves one job; enqueue, schedules
--   add_change, after_lapse: the changes that an event keeps; all that move one
--   move_event: another time for a waiting event; enqueue_job, reschedule_event
--   enqueue: a program stores a job
--   add_new_jobs: the new ones of a batch in one statement; enqueue_jobs, rerun_events
--   enqueue_jobs: Queue.enqueue, for one job or many
--   fire_trigger: ingest, for a webhook's call
--   takes_events: ingest, where an event is refused: are all?

-- Raises an error outside of READ COMMITTED: at a higher level, the look into history after an
-- insert would not see a duplicate that moved there meanwhile.
create or replace function agent.require_read_committed() returns void
language plpgsql volatile as $$
begin
    if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
        raise invalid_transaction_state
            using message = 'events can be inserted in READ COMMITTED transactions only'
        , hint = 'At ' || upper(current_setting('transaction_isolation'))
        || ' a duplicate of an event that is moving to history would be stored.';
    end if;
end $$;

-- Adds kinds that are new to agent.kind. A kind that another transaction is just adding is left to
-- it after 30 ms. If that rolls back, the next insert of the kind or the next sweep adds it.
create or replace function agent.register_kinds(_kinds text[]) returns void
language plpgsql volatile security definer
set plan_cache_mode = force_generic_plan set lock_timeout = '30ms' as $$
declare
    _kind text;
begin
    for _kind in select distinct given from unnest(_kinds) as given
        where not exists (select from agent.kind where kind = given) order by given loop
        begin
            insert into agent.kind (kind) values (_kind) on conflict do nothing;
        exception when lock_not_available or deadlock_detected then
            null;
        end;
    end loop;
end $$;

-- How many attempts an event of each kind may have without a maximum of its own: what the kind's
-- workers announced, else what is given, else 3.
create or replace function agent.attempts_of(_kinds text[], _given int4) returns int4[]
language plpgsql stable security definer
set plan_cache_mode = force_generic_plan as $$
begin
    return array(
        select coalesce(known.max_attempts, _given, 3)
        from unnest(_kinds) with ordinality as wanted (kind, nth)
        left join agent.kind as known on known.kind = wanted.kind order by nth);
end $$;

-- Raises an error that names the unique indexes and triggers that others added to agent.event: one
-- of them refuses a row without an error of its own. Without any it does nothing.
create or replace function agent.blame_foreign() returns void
language plpgsql stable security definer as $$
declare
    _names text := (
        select string_agg(foreign_to_us.name, ', ' order by foreign_to_us.name) from (
            select 'index ' || i.indexrelid::regclass::text as name from pg_index as i
            where i.indrelid = 'agent.event'::regclass and (i.indisunique or i.indisexclusion)
            and i.indexrelid <> all(array[
                'agent.event_pkey', 'agent.event_item_key', 'agent.event_dedupe_key'
                    , 'agent.event_group_head']::regclass[])
            union all
            select 'trigger ' || t.tgname from pg_trigger as t join pg_proc as p on p.oid = t.tgfoid
            where t.tgrelid = 'agent.event'::regclass and not t.tgisinternal
            and p.pronamespace <> 'agent'::regnamespace
        ) as foreign_to_us);
begin
    if _names is not null then
        raise unique_violation
            using message = format('agent.event refuses a row because of what is not Surelane''s: %s'
            , left(_names, 500))
        , hint = 'Drop it, or make it let every row pass.', schema = 'agent', table = 'event';
    end if;
end $$;

-- The live event of a message, other than _but. A waiting event is found by its dedupe key, a held
-- event in its group. event is null if it is being cancelled.
create or replace function agent.live_message
( _address text, _item_key text, _group_key text, _but int8, out id int8, out event jsonb)
language plpgsql volatile security definer
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
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

-- The event of a message, live or in history, as live_message finds it. Planned at each call, as
-- find_in_history is. Clocks differ: an event_ts may be up to 25 hours older than the message.
create or replace function agent.known_message
( _event jsonb, _item_key text default null, _but int8 default null, out id int8, out event jsonb)
language plpgsql volatile security definer
set plan_cache_mode = force_custom_plan as $$
declare
    _address text := agent.message_key(_event);
    _posted timestamptz := coalesce(agent.message_time(_event), '-infinity');
    _since timestamptz := least(_posted, agent.clock()) - interval '25 hours';
begin
    if _address is null then
        return;
    end if;
    select live.id, live.event into id, event
    from agent.live_message(_address, _item_key, agent.event_group_key(_event), _but) as live;
    if id is not null then
        return;
    end if;
    select t.id, case when t.outcome <> 'cancelled' then t.event end into id, event from (
        select h.* from agent.event_hist as h where h.dedupe_key = _address and h.event_ts >= _since
        union all select h.* from agent.event_hist as h where h.item_key = _item_key and h.event_ts >= _since
    ) as t where t.id is distinct from _but limit 1;
end $$;

-- Puts one row into the queue, or finds the row with its item key (_in_history: also in history) or
-- dedupe key. All inserts end here, except the batches of store_new_events and add_new_jobs. The
-- trigger member_joins lets the row take over as its group's head where it should.
create or replace function agent.add_event(_new agent.event, _exact boolean, _in_history boolean, out id int8
    , out duplicate boolean)
language plpgsql volatile security definer
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
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
            , coalesce(_new.claimed, '{}'), _new.event, _new.kind
            , _new.item_key, _new.dedupe_key, _new.group_key
            , _new.group_key is null or not agent.enter_group(_new.group_key)
            , agent.lane_for(_new.kind, agent.priority_of(_new.lane), _new.group_key, _new.event)
            , _new.max_attempts, _new.deadline, coalesce(_new.enqueued_at, agent.clock())
            , coalesce(_new.enqueued_by, session_user)
            , coalesce(_new.errors, '[]'), _new.traceparent, _new.continuation_id, _new.waits_for
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
        if duplicate then
            return;
        end if;
        -- The duplicate has moved to history, or another row has become the head: look again. That
        -- would not end where what others added refuses the row.
        if _turn % 10 = 0 then
            perform agent.blame_foreign();
        end if;
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
                id := _known;
                duplicate := true;
            end if;
        end;
    end if;
end $$;

-- The natural key of an event that comes from outside: the one given, else its own.
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

-- The row of a Slack envelope or a bare event.
create or replace function agent.slack_row(_event jsonb, _traceparent text
    , _item_key text) returns agent.event
language plpgsql volatile security definer as $$
declare
    _new agent.event;
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

-- Stores a Slack envelope or a bare event. A message that comes again is a duplicate. If its author
-- has given it a new text meanwhile, it is an edit: it is stored as Slack reports others.
create or replace function agent.store_event(_event jsonb, _traceparent text, _item_key text, out id int8
    , out duplicate boolean)
language plpgsql volatile security definer
set plan_cache_mode = force_generic_plan as $$
declare
    _new agent.event;
    _before jsonb;
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

-- The id of an event with this one's natural key, or of the same message: in the queue, from which
-- it moves, or in history.
create or replace function agent.known_event(_event jsonb, _item_key text) returns int8
language plpgsql volatile security definer as $$
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
-- of the event that is there already, whether it is queued, running or in history.
create or replace function agent.insert_event(_event jsonb) returns int8
language sql volatile security definer
as $$ select id from agent.store_event(_event, null, null) $$;

-- Stores the new events of a batch in one statement and returns their ids (of _ids). _apart: the
-- kinds without a group. Rows go in group by group, and within a group in the order in which they
-- happened: its first event becomes its head, and a claim meanwhile sees the first ones. Each locks
-- the head of its group first, so batches wait in one order. Events of one moment, or without a
-- group, go by key; events without a time of their own as they arrived. Left out: duplicates of the
-- queue, history or the batch, edited messages, and the first one of a group that just got a head.
create or replace function agent.store_new_events
( _ids int8[], _events jsonb[], _traceparents text[], _item_keys text[], _kinds text[]
, _apart text[]) returns int8[]
language plpgsql volatile security definer
set enable_seqscan = off as $$
declare
    _now timestamptz := agent.clock();
    _stored int8[];
    _stored_keys text[];
    _first timestamptz;
    _last timestamptz;
    _known_keys text[];
    _addresses text[];
    _again int8[];
    _shared text[] := array(select kind from agent.band where workspace is not null)
        || array(select kind from agent.kind_limit where parks);
begin
    with new as (
        select distinct on (read.item_key) id, event, event_ts, kind, read.item_key, group_key, traceparent
        , case when exact then event_ts else least(event_ts, agent.message_time(event)) end as since
        , case when group_key is not null then event_ts end as first
        , case when group_key is null or exact then read.item_key end as second
        from unnest(_ids, _events, _traceparents, _item_keys, _kinds) with ordinality as given (id, event
            , traceparent, item_key, kind, nth)
        cross join lateral agent.event_time(event, _now)
        -- "offset 0": the keys are read once, however often they are used.
        cross join lateral (select coalesce(agent.bounded_key(given.item_key)
                , agent.event_item_key(event)) as key offset 0) as own
        cross join lateral (
            select case when kind <> all(_apart) then agent.event_group_key(event) end as group_key
            , agent.outside_key(own.key) as item_key offset 0
        ) as read
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
        on conflict do nothing returning id, item_key, event_ts, dedupe_key
    )
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
            and agent.find_in_history(item_key, event_ts, event_ts <> _now) is not null
            returning id
        )
        select array(select unnest(_stored) except select id from known) into _stored;
    end if;
    return _stored;
end $$;

-- Inserts a batch in one transaction; answers each event by its place. Gives up after waiting 500
-- ms for a lock (55P03): then the caller inserts singly, and one blocked event delays no other.
-- Batches lock groups and keys in one order, so they cannot deadlock. If an event lost the race to
-- be the first of its group, the batch is rolled back and stored again, in order.
create or replace function agent.insert_events(_events jsonb[], _traceparents text[] default null
    , _item_keys text[] default null)
returns table (ordinal int4, id int8, duplicate boolean)
language plpgsql volatile security definer
set plan_cache_mode = force_generic_plan set lock_timeout = '500ms' as $$
declare
    _ids int8[] := array(select nextval('agent.event_id_seq') from generate_series(1, cardinality(_events)));
    _stored int8[];
    _given record;
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
        exception when sqlstate 'SL001' then
            null;
        end;
    end loop;
    return query select nth::int4, given.id, false from unnest(_ids) with ordinality as given (id, nth)
        where given.id = any(_stored);
    if cardinality(_stored) = cardinality(_ids) then
        return;
    end if;
    -- The others one by one; almost all are repeated deliveries. A known event locks no group.
    for _given in
        select g.event, g.traceparent, g.item_key, g.nth
        from unnest(_ids, _events, _traceparents, _item_keys) with ordinality as g (id, event, traceparent
            , item_key, nth)
        where g.nth <= cardinality(_ids) and g.id <> all(_stored)
        order by agent.stored_group_key(agent.event_kind(g.event), g.event)
        , (agent.event_time(g.event, agent.clock())).event_ts, g.nth
    loop
        ordinal := _given.nth;
        id := null;
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

-- Raises an error where the caller may not store or move events of a kind. Slack's events and
-- answers to questions stand for a person: ingest stores them, and of programs workers. Jobs that
-- close a message or call a failure hook are stored by the end of an event alone.
create or replace function agent.require_kind(_kind text) returns void
language plpgsql stable as $$
begin
    if _kind = 'surelane.close' or starts_with(_kind, 'surelane.failed:') then
        raise insufficient_privilege
            using message = format('a job of kind %s is stored by the end of an event alone'
            , left(_kind, 200));
    elsif (_kind = 'surelane.answer' or _kind like 'slack.%')
    and not has_function_privilege(session_user, 'agent.send_signal(int8, text, json, boolean, text)'
        , 'execute') then
        raise insufficient_privilege
            using message = format('role %s may not act for a person: events of kind %s come from Slack'
            , session_user, left(_kind, 200));
    end if;
end $$;

-- Whether the session is a program's that may enqueue, but neither works nor operates.
create or replace function agent.is_producer() returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
return has_function_privilege(session_user, 'agent.enqueue_jobs(jsonb, text)', 'execute')
    and not has_function_privilege(session_user, 'agent.cancel_live(text, text, text, boolean)', 'execute');

-- Whether the caller may change an event, by its enqueued_by: a program only what its role stored.
create or replace function agent.stored_by_caller(_enqueued_by text) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
return _enqueued_by = session_user or starts_with(_enqueued_by, session_user || ': ')
    or not agent.is_producer();

-- A job in JSON, with the names of enqueue's parameters, as a row: {"kind": …, "payload": …, …}.
create or replace function agent.job_from_json(_job jsonb) returns agent.event
language plpgsql volatile security definer as $$
declare
    _new agent.event;
begin
    _new.kind := _job ->> 'kind';
    if _new.kind is null or _new.kind = '' or length(_new.kind) > 200 then
        raise invalid_parameter_value using message = 'a kind has 1 to 200 characters';
    end if;
    perform agent.require_kind(_new.kind);
    _new.enqueued_at := agent.clock(); _new.vt := greatest((_job ->> 'run_at')::timestamptz
        , _new.enqueued_at);
    -- Clients read no later year. A deadline may be infinite: there is none.
    if _new.vt >= '10000-01-01 00:00:00+00' then
        raise invalid_parameter_value
            using message = format('a job cannot run at %s: give a time before the year 10000', _new.vt);
    end if;
    _new.deadline := (_job ->> 'deadline')::timestamptz;
    if isfinite(_new.deadline)
    and _new.deadline not between '0001-01-02 00:00:00+00' and '9999-12-31 23:59:59.999999+00' then
        raise invalid_parameter_value
            using message = format('a job cannot expire at %s: give a time between the years 1 and 10000'
            , _new.deadline);
    end if;
    -- A job happens when it is due: so a group hands over due jobs in order.
    _new.event_ts := _new.vt;
    _new.event := coalesce(nullif(_job -> 'payload', 'null'), '{}');
    _new.dedupe_key := agent.bounded_key(_job ->> 'dedupe_key');
    _new.item_key := agent.bounded_key(_job ->> 'item_key');
    _new.group_key := agent.bounded_key(_job ->> 'group_key');
    _new.max_attempts := (_job ->> 'max_attempts')::int4;
    -- The constraint's own error would quote the row in PostgreSQL's log.
    if _new.max_attempts < 1 then
        raise invalid_parameter_value using message = 'max_attempts is at least 1';
    end if;
    if _job ->> 'priority' not in ('0', '1', '2', '3') then
        raise invalid_parameter_value using message = format('priority is 0, 1, 2 or 3, not %s'
            , left(_job ->> 'priority', 40));
    end if;
    -- Of its band; the row gets a lane as it is added.
    _new.lane := agent.lane_in(case _job ->> 'priority' when '0' then 1 when '2' then 2 when '3' then 3
            else 0 end, null);
    if _job ->> 'limit_key' is not null then
        _new.changes := jsonb_build_array(jsonb_build_object('limit_key'
                , agent.bounded_key('given:' || (_job ->> 'limit_key'))));
    end if;
    _new.enqueued_by := _job ->> 'enqueued_by';
    _new.traceparent := _job ->> 'traceparent';
    return _new;
end $$;

-- A job that a program or handler gives, as a row. Refuses the keys of schedules, webhooks, Slack
-- and events that run again: these would find the job, and store nothing. A schedule counts the
-- jobs of its group, too. A hash may stand for such a key: programs give none. What a program notes
-- as its requester follows its role.
create or replace function agent.given_job(_job jsonb) returns agent.event
language plpgsql volatile security definer as $$
declare
    _new agent.event := agent.job_from_json(_job);
    _kept text := (
        select key from unnest(array[_job ->> 'item_key', _job ->> 'group_key', _job ->> 'dedupe_key'])
            with ordinality as given (key, nth)
        where nth < 3 and (key like 'cron:%' or key like 'sha256:%' and agent.is_producer())
        -- A message of this address (agent.message_key) would be a duplicate of the job.
        or nth <> 2 and key ~ '^(message|mention):.*:[0-9]+[.][0-9]+$' and (nth = 3 or agent.is_producer())
        or nth = 1
        and key ~ '^(webhook:|event:(cron|webhook):|trigger:[0-9a-f]{64}$|Ev[0-9A-Z]{9,}$)|:rerun:[0-9]+$'
        limit 1);
begin
    if _kept is not null then
        raise invalid_parameter_value
            using message = format(
            'the key %s is kept for schedules, webhooks, Slack and events that run again', left(_kept, 200))
        , hint = 'Put a word of your own before it, such as report:.';
    elsif (_new.enqueued_by is null and _new.kind <> 'trigger-fire') or not agent.is_producer() then
        return _new;
    elsif _new.kind = 'trigger-fire' then
        raise insufficient_privilege
            using message = format(
            'role %s may not act for a webhook: events of kind trigger-fire come from ingest', session_user);
    end if;
    _new.enqueued_by := session_user || ': ' || _new.enqueued_by;
    return _new;
end $$;

-- Raises an error where the event that has a new job's key is of another kind: else the job would
-- be lost silently, or the other one would get its payload. The jobs that an event's end stores are
-- passed over: nothing may keep an event from its end.
create or replace function agent.require_same_kind(_id int8, _new agent.event) returns void
language plpgsql stable as $$
declare
    _found agent.event;
begin
    select e.* into _found from agent.event as e where e.id = _id;
    if _new.kind not in (_found.kind, agent.base_kind(_found.kind, _found.notes))
    and _new.kind <> 'surelane.close' and not starts_with(_new.kind, 'surelane.failed:') then
        raise unique_violation
            using message = format('event %s of kind %s has the %s %L: give a job of kind %s a key of its own'
            , _id
            , agent.base_kind(_found.kind, _found.notes)
            , case when _found.item_key = _new.item_key then 'item key' else 'dedupe key' end
            , case when _found.item_key = _new.item_key then _new.item_key else _new.dedupe_key end
            , _new.kind);
    end if;
end $$;

-- Adds a job, or finds the pending job with its dedupe key (or the live one with its item key).
-- skip leaves it, replace gives it the new payload, time, priority and limit key, earliest the
-- earlier time.
create or replace function agent.enqueue_job(_new agent.event, _on_duplicate text, out id int8
    , out duplicate boolean)
language plpgsql volatile security definer as $$
declare
    _found agent.event;
    _limit_key text;
begin
    if _on_duplicate not in ('skip', 'replace', 'earliest') then
        raise invalid_parameter_value
            using message = format('on a duplicate: skip, replace or earliest, not %L', _on_duplicate);
    end if;
    loop
        -- For update at once: adding locks the head for key share, and two that raise it deadlock.
        if _on_duplicate <> 'skip' then
            perform agent.hold_group(_new.group_key);
        end if;
        select added.id, added.duplicate into id, duplicate from agent.add_event(_new, true, false) as added;
        exit when not duplicate;
        perform agent.require_same_kind(id, _new);
        exit when _on_duplicate = 'skip';
        perform agent.hold_group((select t.group_key from agent.event as t where t.id = enqueue_job.id));
        select e.* into _found from agent.event as e where e.id = enqueue_job.id for update;
        -- Gone, or claimed meanwhile, which frees its dedupe key: look again.
        continue when not found or (_found.claimed <> '{}' and (_found.item_key = _new.item_key) is not true);
        -- A job that is running, or waits for its children or an answer, stays as it is.
        perform agent.require_kind(_found.kind);
        if not agent.stored_by_caller(_found.enqueued_by) then
            raise insufficient_privilege
                using message = format('role %s may not change event %s, which another role stored'
                , session_user, _found.id);
        end if;
        if isfinite(_found.vt) and (_found.claimed_by is null or _found.vt <= agent.clock()) then
            if _on_duplicate = 'replace' and agent.priority_of(_new.lane) <> agent.priority_of(_found.lane)
            then
                _found.lane := agent.lane_for(_found.kind, agent.priority_of(_new.lane), _found.group_key
                    , _new.event);
            end if;
            if _on_duplicate = 'replace' then
                _limit_key := _new.changes #>> '{0,limit_key}';
                if _found.lane < 0 then
                    _limit_key := agent.limit_key(_found.kind, _new.event, _limit_key);
                end if;
                update agent.event as e set changes = agent.with_limit_key(e.changes, _limit_key)
                where e.id = _found.id and _limit_key is not null;
            end if;
            perform agent.move_event(_found
                , case when _on_duplicate = 'earliest' then least(_new.vt, _found.vt) else _new.vt end
                , case when _on_duplicate = 'replace' then _new.event else _found.event end
                , case when _on_duplicate = 'replace' then 'replaced' else 'rescheduled' end
                , coalesce(_new.enqueued_by, session_user));
        end if;
        exit;
    end loop;
end $$;

-- Adds a change to those of an event: the first ten and the last 40, with a count of those between.
-- So an event that moves thousands of times stays small. Replaces what is no array, as somebody may
-- have written: it would stop each call that moves or rescues several events.
create or replace function agent.add_change(_changes jsonb, _change jsonb) returns jsonb
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp
return case when jsonb_typeof(_changes) <> 'array' then jsonb_build_array(_change)
    when jsonb_array_length(_changes) < 50 then _changes || jsonb_build_array(_change) else
    jsonb_path_query_array(_changes, '$[0 to 9]')
    || jsonb_build_array(jsonb_build_object('action', 'dropped', 'at', _changes -> -40 -> 'at', 'count'
        , jsonb_array_length(_changes) - 49
        + case when _changes -> 10 ->> 'action' = 'dropped' then (_changes -> 10 ->> 'count')::int4 - 1
            else 0 end))
    || jsonb_path_query_array(_changes, '$[last - 38 to last]')
    || jsonb_build_array(_change)
end;

-- The changes of an event whose claim is replaced: with its lapse, unless its rescue is recorded.
create or replace function agent.after_lapse(_changes jsonb, _claimed_by text, _vt timestamptz) returns jsonb
language sql stable parallel safe
set search_path = pg_catalog, pg_temp
return case when _claimed_by is null or _changes -> -1 ->> 'action' = 'rescued'
    and (_changes -> -1 ->> 'at')::timestamptz = _vt then _changes
    else agent.add_change(_changes, jsonb_build_object('action', 'lapsed', 'at', _vt, 'by', _claimed_by)) end;

-- Gives an event that is not running (a claim that lapsed ends here) another time, and perhaps
-- another payload and the lane in _old, and records it. The caller holds its lock and its head's.
create or replace function agent.move_event(_old agent.event, _vt timestamptz, _event jsonb, _action text
    , _by text) returns void
language plpgsql volatile security definer as $$
declare
    _new_vt timestamptz := greatest(_vt, agent.clock());
begin
    perform agent.fence_lapsed(array[_old.id]);
    update agent.event
    set vt = _new_vt, event = _event, lane = _old.lane, retrying = false, claimed_by = null
    , heartbeat_at = null
    -- By their event_ts history is searched for Slack's and bare events and webhooks.
    , event_ts = case when _old.kind like 'slack.%' or _old.kind = 'event' or _old.item_key like 'webhook:%'
        then event_ts else _new_vt end
    , changes = agent.add_change(agent.after_lapse(changes, claimed_by, vt)
        , jsonb_build_object('action', _action, 'at', agent.clock(), 'by', _by
        , 'from', jsonb_build_object('run_at', _old.vt), 'to', jsonb_build_object('run_at', _new_vt)))
    where id = _old.id;
    perform agent.note_parked(array[_old.id], true);
    perform agent.reelect(array[_old.group_key]);
    perform pg_notify('agent_event', '');
end $$;

-- Enqueues a job; returns its id, or the id of the job that has its dedupe key or item key.
-- _on_duplicate says what becomes of that job: skip, replace or earliest. _priority: 0 (first) to 3
-- (last); null is 1. It has no default, or calls of the form below would be ambiguous.
create or replace function agent.enqueue
( _kind text, _payload jsonb, _priority int4, _dedupe_key text default null, _run_at timestamptz default null
, _max_attempts int4 default null
, _group_key text default null, _item_key text default null, _enqueued_by text default null
, _deadline timestamptz default null, _traceparent text default null, _on_duplicate text default 'skip'
) returns int8
language sql volatile security definer
return (select id
    from agent.enqueue_job(agent.given_job(jsonb_build_object('kind', _kind, 'payload', _payload, 'dedupe_key'
        , _dedupe_key
    , 'run_at', _run_at, 'max_attempts', _max_attempts, 'group_key', _group_key, 'item_key', _item_key
    , 'enqueued_by', _enqueued_by
    , 'deadline', _deadline, 'traceparent', _traceparent, 'priority', _priority)), _on_duplicate));

-- The same with priority 1.
create or replace function agent.enqueue
( _kind text, _payload jsonb default '{}', _dedupe_key text default null, _run_at timestamptz default null
, _max_attempts int4 default null
, _group_key text default null, _item_key text default null, _enqueued_by text default null
, _deadline timestamptz default null, _traceparent text default null, _on_duplicate text default 'skip'
) returns int8
language sql volatile security definer
return agent.enqueue(_kind, _payload, null::int4, _dedupe_key, _run_at, _max_attempts, _group_key, _item_key
    , _enqueued_by, _deadline, _traceparent, _on_duplicate);

-- Adds jobs in one statement, in the order given, each under its id, once its group has been
-- entered. Returns the ids that it added. Left out: a job whose item key or dedupe key is taken,
-- and the first job of a group that another transaction is just giving a head.
create or replace function agent.add_new_jobs(_ids int8[], _jobs agent.event[]) returns int8[]
language plpgsql volatile security definer
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
    _added int8[];
    _shared text[] := array(select kind from agent.band where workspace is not null)
        || array(select kind from agent.kind_limit where parks);
begin
    with added as (
        insert into agent.event (id, event_ts, vt, event, kind, item_key, dedupe_key, group_key, head, lane
            , max_attempts, deadline, enqueued_at, enqueued_by, traceparent, claimed, errors, changes)
        select _ids[nth], (job).event_ts, (job).vt, (job).event, (job).kind, (job).item_key, (job).dedupe_key
        , (job).group_key, (job).group_key is null or not agent.enter_group((job).group_key)
        , case when (job).lane not between 0 and 15 or (job).kind = any(_shared)
            then agent.lane_for((job).kind, agent.priority_of((job).lane), (job).group_key, (job).event)
            else agent.lane_in(0, (job).group_key) end
        , (job).max_attempts, (job).deadline, coalesce((job).enqueued_at, agent.clock())
        , coalesce((job).enqueued_by, session_user), (job).traceparent
        , coalesce((job).claimed, '{}'), coalesce((job).errors, '[]'), coalesce((job).changes, '[]')
        from (select unnest(_jobs) as job, generate_subscripts(_jobs, 1) as nth) as given
        order by nth
        on conflict do nothing returning id
    )
    select coalesce(array_agg(id), '{}') into _added from added;
    return _added;
end $$;

-- Enqueues a JSON array of jobs as enqueue does, in one transaction; answers each by its place.
-- Locks are taken in the order of groups and keys, so batches that overlap do not deadlock, unless
-- they pair the same keys differently (item key 1 with dedupe key 2, and 2 with 1). A batch does
-- not wait for a kind that another transaction is just adding.
create or replace function agent.enqueue_jobs(_jobs jsonb, _on_duplicate text default 'skip')
returns table (ordinal int4, id int8, duplicate boolean)
language plpgsql volatile security definer as $$
declare
    _new agent.event[];
    _ids int8[];
    _nths int4[];
    _added int8[] := '{}';
    _place int4;
    _job agent.event;
begin
    if _on_duplicate not in ('skip', 'replace', 'earliest') then
        raise invalid_parameter_value
            using message = format('on a duplicate: skip, replace or earliest, not %L', _on_duplicate);
    end if;
    perform agent.require_read_committed();
    -- Times and ids follow the order of the batch, in which a group hands over its jobs.
    select array_agg(read.job order by (read.job).group_key, (read.job).item_key, (read.job).dedupe_key, nth)
    , array_agg(read.new_id order by (read.job).group_key, (read.job).item_key, (read.job).dedupe_key, nth)
    , array_agg(nth order by (read.job).group_key, (read.job).item_key, (read.job).dedupe_key, nth)
    into _new, _ids, _nths
    from (
        select agent.given_job(g.job) as job, nextval('agent.event_id_seq') as new_id, g.nth::int4 as nth
        from jsonb_array_elements(_jobs) with ordinality as g (job, nth)
    ) as read;
    perform agent.register_kinds(array(select j.kind from unnest(_new) as j));

    -- Batches that move duplicates take turns in a group: one that lost the race to be its first
    -- holds the head for key share, and two that raise that deadlock. 1,024 turns, as each is a
    -- lock. After two seconds a batch goes on: at worst one of two is rolled back, and sent again.
    if _on_duplicate <> 'skip' then
        for _place in select distinct hashtext(j.group_key) & 1023 as turn from unnest(_new) as j
            where j.group_key is not null order by turn loop
            exit when not agent.await_turn('enqueue_jobs ' || _place, '2s');
        end loop;
    end if;
    -- A duplicate that moves is locked in its place: jobs that may meet one go singly.
    if _on_duplicate = 'skip' or not exists (select from unnest(_new) as j
        where j.item_key is not null or j.dedupe_key is not null) then
        -- A job that was left out without a duplicate lost the race to be the first of its group.
        -- Going back to it would take a lock out of order: the batch is stored again.
        for _turn in 1..10 loop
            begin
                _added := agent.add_new_jobs(_ids, _new);
                exit when cardinality(_added) = cardinality(_ids) or _turn = 10;
                exit when not exists (
                    select from unnest(_ids) with ordinality as g (id, place)
                    cross join lateral (select (_new[g.place]).*) as job
                    where g.id <> all(_added)
                    and not exists (select from agent.event as e where e.item_key = job.item_key)
                    and not exists (select from agent.event as e
                        where e.dedupe_key = job.dedupe_key and e.claimed = '{}'));
                raise sqlstate 'SL001';
            exception when sqlstate 'SL001' then
                _added := '{}';
            end;
        end loop;
    end if;
    return query select g.nth, g.id, false from unnest(_nths, _ids) as g (nth, id)
        join unnest(_added) as a (id) on a.id = g.id;
    for _place in
        select g.place from unnest(_ids) with ordinality as g (id, place)
        where not exists (select from unnest(_added) as a (id) where a.id = g.id) order by g.place
    loop
        _job := _new[_place];
        ordinal := _nths[_place];
        id := null;
        duplicate := true;
        if _on_duplicate = 'skip' then
            -- Looks before it enters a group: that would take a lock out of order.
            id := coalesce((select e.id from agent.event as e where e.item_key = _job.item_key)
                , (select e.id from agent.event as e
                    where e.dedupe_key = _job.dedupe_key and e.claimed = '{}'));
            perform agent.require_same_kind(id, _job);
        end if;
        if id is null then
            select added.id, added.duplicate into id, duplicate
            from agent.enqueue_job(_job, _on_duplicate) as added;
            if not duplicate then
                _added := _added || id;
            end if;
        end if;
        return next;
    end loop;
    -- Without keys they went in as they were given.
    if exists (select from unnest(_new) as j
        where j.group_key is not null and (j.item_key is not null or j.dedupe_key is not null)) then
        perform agent.lead_with_first(_added);
    end if;
end $$;

-- Stores a webhook's call as an event of kind trigger-fire; a repeated delivery finds the first by
-- its key. Where name and id are too long, or a colon could make two calls equal, the key has their
-- hash. Its prefix stays: agent.find_in_history searches longer for it.
create or replace function agent.fire_trigger(_name text, _webhook_id text, _payload jsonb
    , _traceparent text default null, out id int8, out duplicate boolean)
language plpgsql volatile security definer as $$
declare
    _plain boolean := strpos(_name, ':') = 0 and length(_name || _webhook_id) <= 191;
    _call text := case when _plain then _name || ':' || _webhook_id
        else ':' || encode(sha256(convert_to(jsonb_build_array(_name, _webhook_id)::text, 'UTF8'))
            , 'hex') end;
    _new agent.event := agent.job_from_json(jsonb_build_object('kind', 'trigger-fire', 'traceparent'
            , _traceparent
        , 'item_key', 'webhook:' || _call, 'enqueued_by', 'webhook:' || _name
        , 'payload', jsonb_build_object('trigger', _name, 'webhook_id', _webhook_id, 'payload', _payload)));
begin
    select added.id, added.duplicate into id, duplicate from agent.add_event(_new, false, true) as added;
end $$;

-- Stores an event as ingest does, and takes it back. Its error says why the server takes none.
create or replace function agent.takes_events() returns void
language plpgsql volatile security definer as $$
begin
    perform agent.insert_events(array[jsonb_build_object('type', 'event_callback', 'event_id'
            , gen_random_uuid()
        , 'event', jsonb_build_object('type', 'app_mention', 'text', 'Does the server take events?'))]);
    raise sqlstate 'SL002';
exception when sqlstate 'SL002' then
    null;
end $$;
