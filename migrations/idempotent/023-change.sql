-- What operators and programs change: they cancel and reschedule events, and pause kinds.
--   acting: who changes something; all that keep it
--   cancel_event, cancel_jobs, cancel_job, cancel_live: cancel; operators, programs
--   live_messages, replace_message: an edited or deleted message's turn; workers
--   stop_turns: the turns in a thread; workers
--   cancel_grace, why_cancelled, with_live_children, end_waiting: parts of these
--   expire_jobs, reschedule_event: operators, programs
--   pause_kind, resume_kind: operators

-- Who acts in this transaction: the person or program that begin_action named, else the role.
create or replace function agent.acting() returns text
language sql stable set search_path = pg_catalog, pg_temp
return coalesce(case when has_function_privilege(session_user
        , 'agent.begin_action(text, text, text, text, jsonb)', 'execute')
    then nullif(current_setting('surelane.acting', true), '') end, session_user);

-- How long an attempt may go on after its event was asked to be cancelled. Then its claim lapses.
create or replace function agent.cancel_grace() returns interval
language sql immutable parallel safe return interval '10 seconds';

-- Who asked to cancel an event while it ran, and why, where they said so.
create or replace function agent.why_cancelled(_id int8) returns text
language plpgsql stable security definer as $$ begin
    return (
        select 'cancelled while running by ' || e.cancelled_by || coalesce(': ' || (change ->> 'reason'), '')
        from agent.event as e cross join lateral (select jsonb_path_query_array(e.changes
                , 'strict $[*] ? (@.action == "cancelling")') -> -1) as latest (change)
        where e.id = _id and e.cancelled_by is not null and (change ->> 'named')::boolean);
exception when others then return null;
end $$;

-- Some events and their live children: those that handlers await; with _all, continuations' too.
create or replace function agent.with_live_children(_ids int8[], _all boolean) returns int8[]
language sql stable security definer set enable_seqscan = off
return array(
    with recursive below as (
        select unnest(_ids) as id
        union
        select e.id from below join agent.event as e
        on e.continuation_id = below.id and (_all or agent.if_failed(e.changes) = 'cancel'))
    select below.id from below);

-- Cancels events by their ids; answers each as cancel_event does, or busy where another transaction
-- has it or its group locked. An unknown id is left out. It steps over locks, so operators can
-- cancel many in bounded steps. _by and _why: who asked for it, and why. Includes the children that
-- handlers await; with _children also continuations' children.
create or replace function agent.cancel_jobs
( _ids int8[], _by text default null, _why text default null, _children boolean default false)
returns table (id int8, answer text) language plpgsql security definer set enable_seqscan = off as $$
declare
    _now timestamptz := agent.clock(); _who text := left(coalesce(_by, agent.acting()), 200);
    _held int8[]; _running int8[];
begin
    _ids := agent.with_live_children(_ids, _children);
    _held := agent.lock_for_sweep(_ids);
    _running := array(
        select e.id from agent.event as e
        where e.id = any(_held) and (e.claimed_by is not null and e.vt > _now or e.notes ? 'undo'));
    -- Of a group the head's lease counts for all that are held with it.
    update agent.event as e set cancelled_by = _who
    , vt = case when e.head then least(e.vt, _now + agent.cancel_grace()) else e.vt end
    , changes = agent.add_change(e.changes
        , jsonb_strip_nulls(jsonb_build_object('action', 'cancelling', 'at', _now, 'by', _who
            , 'reason', left(_why, 1000), 'named', _who <> session_user or _why is not null)))
    where e.id = any(_running) and e.cancelled_by is null and (e.notes ? 'undo') is not true;
    if _running <> '{}' then
        perform agent.note_parked(_running, false);
        -- A notification has less than 8,000 bytes; an empty one concerns all.
        perform pg_notify('agent_cancel'
            , case when cardinality(_running) <= 300 then array_to_string(_running, ' ') else '' end);
    end if;
    return query select * from agent.end_waiting(_ids, _held, _running, 'cancelled'
        , 'cancelled by ' || _who || coalesce(': ' || left(_why, 1000), ''));
end $$;

-- Moves events into history as expired, and says _why; answers each: expired, running (it was left
-- alone, or begins its undos), or busy, where it or its group is locked. An unknown id is left out.
-- By this alone an event ends whose undos no worker runs.
create or replace function agent.expire_jobs(_ids int8[], _why text) returns table (id int8, answer text)
language plpgsql security definer set enable_seqscan = off as $$
declare _held int8[] := agent.lock_for_sweep(_ids);
begin
    return query select * from agent.end_waiting(_ids, _held
        , array(select e.id from agent.event as e
            where e.id = any(_held) and e.claimed_by is not null and e.vt > agent.clock())
        , 'expired', 'expired by ' || left(agent.acting(), 200) || coalesce(': ' || left(_why, 1000), ''));
end $$;

-- Ends the events of _ids that the caller holds and that do not run: all of _held but _running.
-- Answers each that is in the queue: the outcome, running, or busy.
create or replace function agent.end_waiting
( _ids int8[], _held int8[], _running int8[], _outcome text, _reason text)
returns table (id int8, answer text) language plpgsql as $$
declare _now timestamptz := agent.clock(); _unfenced text[]; _known int8[]; _left int8[];
begin
    -- As where a claim finds them: members that were held with a lapsed head go back unspent. A
    -- head with a member that another transaction has locked stays.
    _unfenced := agent.fence_lapsed(_held);
    if _unfenced <> '{}' then
        _held := array(select e.id from agent.event as e
            where e.id = any(_held) and not (e.head and e.claimed_by is not null and e.vt <= _now
            and e.group_key is not null and e.group_key = any(_unfenced)));
    end if;
    _known := array(select e.id from agent.event as e where e.id = any(_ids));
    perform agent.archive_possible(
        array(select unnest(_held) except select unnest(_running)), _outcome, _reason);
    _left := array(select e.id from agent.event as e where e.id = any(_ids));
    _running := _running || array(select e.id from agent.event as e
        where e.id = any(_held) and e.notes ? 'undo');
    return query select given, case when given = any(_running) then 'running'
        when given = any(_held) and given <> all(_left) then _outcome else 'busy' end
    from unnest(_ids) as given where given = any(_known);
end $$;

-- Cancels an event by its id, as cancel_event does. Answers busy after two seconds of a lock.
create or replace function agent.cancel_job
( _id int8, _by text default null, _why text default null, _children boolean default false) returns text
language plpgsql security definer set lock_timeout = '2s' set enable_seqscan = off as $$ begin
    begin
        perform agent.hold_group((select group_key from agent.event where id = _id));
        perform from agent.event where id = _id for update;
        -- Its children, too: cancel_jobs passes over locked rows.
        perform from agent.event where id = any(agent.with_live_children(array[_id], _children)) order by id
        for update;
    exception when lock_not_available or deadlock_detected then return 'busy';
    end;
    return (select answer from agent.cancel_jobs(array[_id], _by, _why, _children) where id = _id);
end $$;

-- Cancels an event by its item key. Answers 'cancelled' (in history now), 'running' (its handler is
-- stopped; if the attempt completes all the same, so does the event; or it runs its undos first),
-- 'busy' (it is locked: try again), or null: it is not in the queue.
create or replace function agent.cancel_event(_item_key text) returns text
language sql security definer set enable_seqscan = off as $$ select agent.cancel_job(
    (select id from agent.event where item_key = agent.bounded_key(_item_key)), null, null, false) $$;

-- The same by its natural key or its id.
create or replace function agent.cancel_live(_key text, _by text, _why text, _children boolean) returns text
language sql security definer as $$ select agent.cancel_job(agent.live_event(_key), _by, _why, _children) $$;

-- The live events about an event's message, with its text then, unless they are being cancelled.
create or replace function agent.live_messages(_event jsonb)
returns table (id int8, kind text, event_ts timestamptz, claimed timestamptz[], held boolean, event jsonb)
language plpgsql stable security definer
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
    _group_key text := agent.event_group_key(_event);
    _ts text := agent.slack_event(_event) ->> 'ts';
begin
    return query select e.id, e.kind, e.event_ts, e.claimed, e.claimed_by is not null, e.event
    from agent.live_in_group(_group_key) as e
    where e.cancelled_by is null and agent.slack_event(e.event) ->> 'ts' = _ts
    and (e.kind = 'slack.app_mention' or starts_with(e.kind, 'slack.message'));
end $$;

-- Cancels the turn of a message that a person edited or deleted, and with _restart stores _event
-- under _item_key. _event is the message as it is now, in Slack's envelope, at the edit's time.
-- So of two edits the later one counts, in either order. A turn is an event that no handler has
-- begun, or that has a step named _step. Answers as cancel_job does, busy also where a worker holds
-- the event, or soon will and it has no step: it may become a turn yet; null: there is no turn.
create or replace function agent.replace_message
( _event jsonb, _item_key text, _step text, _restart boolean, _by text, _why text) returns text
language plpgsql security definer set enable_seqscan = off as $$
declare
    _kind text := agent.event_kind(_event);
    _at timestamptz := (agent.event_time(_event, agent.clock())).event_ts;
    _id int8; _turn boolean; _soon boolean; _new agent.event; _answer text;
begin
    select e.id
    , e.claimed = '{}' or exists (select from agent.step as s where s.event_id = e.id and s.name = _step)
    , e.held or l.vt < agent.clock() + interval '1 minute'
        and not exists (select from agent.step as s where s.event_id = e.id)
    into _id, _turn, _soon
    from agent.live_messages(_event) as e join agent.event as l using (id)
    where e.kind = _kind and e.event_ts < _at order by e.id limit 1;
    if not _turn then return case when _soon then 'busy' end; end if;
    _answer := agent.cancel_job(_id, _by, _why);
    if _restart and _answer in ('cancelled', 'running') then
        _new := agent.slack_row(_event, null, _item_key);
        _new.dedupe_key := null; -- the message is stored already
        perform agent.add_event(_new, true, false);
    end if;
    return _answer;
end $$;

-- Cancels the turns in the thread of _event that began before _at. A turn begins as its step _step
-- ends. Answers busy where one is locked: try again; else as cancel_job; null: there is none.
create or replace function agent.stop_turns
( _event jsonb, _at timestamptz, _step text, _by text, _why text) returns text
language sql security definer set enable_seqscan = off begin atomic
    select min(agent.cancel_job(e.id, _by, _why))
    -- A direct message that begins a thread is in the group of all such messages.
    from unnest(array[agent.event_group_key(_event), agent.event_group_key(_event #- '{event,thread_ts}')])
        with ordinality as found (key, nth) cross join agent.live_in_group(found.key) as e
    where (found.nth = 1
        or agent.slack_event(e.event) ->> 'ts' = agent.slack_event(_event) ->> 'thread_ts')
    and exists (select from agent.step as s
        where s.event_id = e.id and s.name = _step and s.finished_at < _at);
end;

-- Moves an event to another time by its item key, or its id. Answers 'rescheduled', 'running' or
-- 'waiting' (for children or an answer; nothing changed), or null: the queue has no such event.
create or replace function agent.reschedule_event(_item_key text, _run_at timestamptz) returns text
language plpgsql security definer set enable_seqscan = off as $$
declare _found agent.event; _id int8 := agent.live_event(_item_key);
begin
    if coalesce(_run_at >= '10000-01-01 00:00:00+00' or _run_at = '-infinity', true) then
        raise invalid_parameter_value using message = format('an event cannot be rescheduled to %s'
            , coalesce(_run_at::text, 'null'));
    end if;
    perform agent.hold_group((select group_key from agent.event where id = _id));
    select * into _found from agent.event where id = _id for update;
    if not found then
        return null;
    elsif _found.claimed_by is not null and _found.vt > agent.clock() then
        return 'running';
    elsif _found.vt = 'infinity' then
        return 'waiting';
    end if;
    perform agent.move_event(_found, _run_at, _found.event, 'rescheduled', session_user);
    return 'rescheduled';
end $$;

-- Pauses a kind: its waiting events are neither claimed nor expired until it is resumed. Other
-- kinds of their groups go on: this frees 1,000 such groups; sweeps and clients (agent.free_groups)
-- free more. Raises 55P03 where another transaction changes the kind for two seconds.
create or replace function agent.pause_kind(_kind text) returns void
language plpgsql security definer set lock_timeout = '2s' as $$ begin
    insert into agent.kind (kind, paused, paused_at, paused_by)
    values (_kind, true, agent.clock(), agent.acting())
    on conflict (kind) do update set paused = true, paused_at = excluded.paused_at
    , paused_by = excluded.paused_by where not kind.paused;
    perform agent.free_groups();
end $$;

create or replace function agent.resume_kind(_kind text) returns void language sql security definer as $$
    update agent.kind set paused = false, paused_at = null, paused_by = null where kind = _kind and paused;
    select agent.free_groups(), pg_notify('agent_event', '') $$;
