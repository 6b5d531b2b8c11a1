-- Named schedules. The caller computes times, because it reads cron and time zones.
--   cron_sound: trigger: what could never fire is refused
--   set_cron, delete_cron: workers and programs, operators
--   due_cron, next_cron: what is due, and when the next one is; workers
--   fire_cron: stores the jobs of the times that passed; workers
--   note_cron: notes why a schedule does not fire; workers
--   store_firing: stores the job of one time, by the schedule's overlap; fire_cron, run_cron
--   read_cron, pause_cron, run_cron: operators

-- Refuses what could never fire, also where a row is written by hand. What stands already is left:
-- its firing notes the problem.
create or replace function agent.cron_sound() returns trigger
language plpgsql security definer as $$ declare _old agent.cron;
begin
    if tg_op = 'UPDATE' then _old := old; end if;
    if jsonb_typeof(new.payload) <> 'object' and new.payload is distinct from _old.payload then
        raise invalid_parameter_value using message = 'the payload of a schedule is a JSON object';
    elsif new.next_at not between '2000-01-01' and '9000-01-01' and new.next_at is distinct from _old.next_at
    then
        raise invalid_parameter_value using message = format(
            'a schedule is next due between the years 2000 and 9000, not at %s', new.next_at);
    elsif new.kind is distinct from _old.kind
    and (new.kind = 'surelane.close' or starts_with(new.kind, 'surelane.failed:')) then
        perform agent.require_kind(new.kind);
    end if;
    return new;
end $$;

-- Creates or changes a named schedule, and wakes the workers. _priority of its jobs: 0 (first) to 3
-- (last), null for 1. Null leaves as they are: _paused, _overlap (what a firing does while an
-- earlier job of the schedule is live) and _jitter, which the caller has added to _next_at.
create or replace function agent.set_cron
( _name text, _kind text, _schedule text, _next_at timestamptz, _payload jsonb default '{}'
, _time_zone text default 'UTC', _catch_up text default 'one', _paused boolean default false
, _priority int4 default null, _overlap text default null, _jitter interval default null) returns void
language plpgsql security definer as $$ declare _wrong text;
begin
    -- Not left to constraints, whose violations quote the row, payload and all, in the log.
    _wrong := (select problem from (values
        (jsonb_typeof(_payload) is distinct from 'object', 'the payload of a schedule is a JSON object')
        , (coalesce(length(_name), 0) not between 1 and 200, 'the name of a schedule has 1 to 200 characters')
        , (coalesce(length(_kind), 0) not between 1 and 200, 'a kind has 1 to 200 characters')
        , (_schedule is null or _time_zone is null or _next_at is null
            , 'a schedule has fields, a time zone and a next firing')
        , (coalesce(_catch_up, '') not in ('none', 'one', 'all', '1000')
            and coalesce(_catch_up, '') !~ '^[1-9][0-9]{0,2}$'
            , 'what was missed is caught up with: none, one, all or a number up to 1000')
        , (_overlap not in ('allow', 'skip', 'queue', 'replace')
            , 'an overlap is allowed, or jobs skip, queue or replace')
        , (_jitter not between interval '0' and interval '1 day', 'the jitter of a schedule is at most a day')
        , (_priority not between 0 and 3, format('priority is 0, 1, 2 or 3, not %s', _priority))
    ) as known (holds, problem) where holds limit 1);
    if _wrong is not null then raise invalid_parameter_value using message = _wrong; end if;
    insert into agent.cron as c (name, kind, payload, schedule, time_zone, catch_up, paused, next_at, priority
        , overlap, jitter, updated_by)
    values (_name, _kind, _payload, _schedule, _time_zone, _catch_up, coalesce(_paused, false), _next_at
        , coalesce(_priority, 1)
    , coalesce(_overlap, 'allow'), coalesce(_jitter, '0'), agent.acting())
    on conflict (name) do update
    set kind = excluded.kind, payload = excluded.payload, schedule = excluded.schedule
    , time_zone = excluded.time_zone
    , catch_up = excluded.catch_up, paused = coalesce(_paused, c.paused), priority = excluded.priority
    , overlap = coalesce(_overlap, c.overlap), jitter = coalesce(_jitter, c.jitter)
    , updated_at = agent.clock(), updated_by = agent.acting(), problem = null
    -- An unchanged schedule keeps its next firing: a declaration at each start skips none.
    , next_at = case when (c.schedule, c.time_zone, c.paused, c.jitter) = (excluded.schedule
            , excluded.time_zone, coalesce(_paused, c.paused), coalesce(_jitter, c.jitter)) then c.next_at
        else excluded.next_at end;
    perform pg_notify('agent_event', '');
end $$;

create or replace function agent.delete_cron(_name text) returns boolean
language sql security definer begin atomic
    with deleted as (delete from agent.cron where name = _name returning 1)
    select exists (select from deleted);
end;

create or replace function agent.due_cron()
returns table (name text, kind text, schedule text, time_zone text, catch_up text, jitter interval
, next_at timestamptz, now_at timestamptz) language sql security definer begin atomic
    select c.name, c.kind, c.schedule, c.time_zone, c.catch_up, c.jitter
    , greatest(c.next_at, 'epoch'), n.now_at
    from (select agent.clock() as now_at offset 0) as n join agent.cron as c
    on not c.paused and c.next_at <= n.now_at order by c.next_at;
end;

-- Seconds until the next schedule is due, by the database's clock; null: there is none.
create or replace function agent.next_cron() returns float8 language sql security definer
return (select extract(epoch from min(next_at) - n.now_at)
    from (select agent.clock() as now_at offset 0) as n join agent.cron
    on not paused and next_at > n.now_at and isfinite(next_at) group by n.now_at);

-- Stores the job of a schedule's time, and returns its id; null: it is skipped. Where overlap is
-- not allowed, the jobs share a group: one runs at a time. A replaced job that runs is stopped
-- first; its successor waits for its end, ten seconds at most.
create or replace function agent.store_firing(_cron agent.cron, _time timestamptz, _by text) returns int8
language plpgsql security definer set enable_seqscan = off as $$
declare
    _group_key text := case when _cron.overlap <> 'allow' then agent.bounded_key('cron:' || _cron.name) end;
    _live int8[] := array(select id from agent.event where group_key = _group_key);
begin
    if jsonb_typeof(_cron.payload) <> 'object' then
        raise invalid_parameter_value using message = 'the payload of a schedule is a JSON object';
    elsif _cron.overlap = 'skip' and _live <> '{}' then
        return null;
    elsif _cron.overlap = 'replace' and _live <> '{}' then
        perform agent.hold_group(_group_key);
        perform agent.cancel_jobs(_live, _by, 'replaced by the firing of ' || _time);
    end if;
    return (agent.enqueue_job(agent.job_from_json(jsonb_build_object('kind', _cron.kind
        , 'enqueued_by', _by, 'priority', _cron.priority, 'item_key', 'cron:' || _cron.name || ':'
        || to_char(_time at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), 'group_key', _group_key
        , 'payload', _cron.payload || jsonb_build_object('cron', _cron.name, 'scheduled_at', _time)))
        , 'skip')).id;
end $$;

-- Fires a schedule for the times given and sets its next one, if its next firing is still _due: of
-- all the workers that try, one does. Returns how many jobs it enqueued.
create or replace function agent.fire_cron
( _name text, _due timestamptz, _times timestamptz[], _next_at timestamptz) returns int4
language plpgsql security definer as $$ declare _cron agent.cron;
begin
    update agent.cron set next_at = _next_at, last_at = agent.clock(), problem = null
    where name = _name and greatest(next_at, 'epoch') = _due and not paused returning * into _cron;
    if not found then
        return 0;
    elsif _cron.overlap = 'replace' then
        _times := _times[cardinality(_times):];  -- the last one would replace the others
    end if;
    return (select count(agent.store_firing(_cron, at, 'cron:' || _name)) from unnest(_times) as at);
end $$;

-- Notes why a schedule that is still _due does not fire. _next_at: its next try; null: stays due.
create or replace function agent.note_cron(_name text, _due timestamptz, _problem text, _next_at timestamptz)
returns void language sql security definer begin atomic
    update agent.cron set problem = left(_problem, 500), next_at = coalesce(_next_at, next_at)
    where name = _name and greatest(next_at, 'epoch') = _due
    and (problem is distinct from left(_problem, 500) or _next_at is not null);
end;

create or replace function agent.read_cron() returns setof agent.cron
language sql stable security definer as $$ select * from agent.cron order by name $$;

-- Pauses or resumes a named schedule; false when there is none of that name. _next_at: its next
-- firing where it is resumed, which the caller computes.
create or replace function agent.pause_cron(_name text, _paused boolean, _next_at timestamptz) returns boolean
language plpgsql security definer as $$ begin
    update agent.cron set paused = _paused
    , next_at = case when paused and not _paused then _next_at else next_at end
    , updated_at = agent.clock(), updated_by = agent.acting() where name = _name and paused <> _paused;
    if found then
        perform pg_notify('agent_event', '');
        return true;
    end if;
    return exists (select from agent.cron where name = _name);
end $$;

-- Enqueues a job of a named schedule now, paused or not, and returns its id; its next firing stays.
-- A second call in one second, or a skipped overlap, finds the live job. null: no such schedule.
create or replace function agent.run_cron(_name text) returns int8
language plpgsql security definer as $$ declare _cron agent.cron;
begin
    -- For update: firings of one schedule come one after another.
    select * into _cron from agent.cron where name = _name for update;
    if not found then return null; end if;
    return coalesce(agent.store_firing(_cron, date_trunc('second', agent.clock()), left(agent.acting(), 200))
        , (select min(id) from agent.event where group_key = agent.bounded_key('cron:' || _name)));
end $$;
