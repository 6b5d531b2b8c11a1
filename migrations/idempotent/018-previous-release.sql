-- Functions of the previous release, 0.1.0. Its services call them until the last one is replaced,
-- and calls that are running during the migration call them too: dropped, they would end such a
-- call with an error. The next release drops them.

create or replace function agent.announce_worker(_name text, _kinds text[], _version text, _clock_offset interval default null) returns void
language sql volatile security definer
set search_path = pg_catalog, pg_temp
begin atomic
    select agent.announce_worker(_name, _kinds, _version, _clock_offset, null::int4);
end;

create or replace function agent.sweep_events
( _max_attempts int4 default null, _max_vt_age interval default '1h', _kinds text[] default null, _by_age boolean default true, _limit int4 default 1000
) returns int4
language sql volatile security definer
set search_path = pg_catalog, pg_temp
begin atomic
    select agent.sweep_events(_max_attempts, _max_vt_age, _kinds, _by_age, _limit, true);
end;

create or replace function agent.sweep_exhausted(_max_attempts int4, _limit int4) returns int4
language sql volatile security definer
set search_path = pg_catalog, pg_temp
begin atomic
    select agent.sweep_exhausted(_max_attempts, _limit, null::text[]);
end;

create or replace function agent.fence_members(_group_keys text[], _now timestamptz) returns void
language sql volatile security definer
set search_path = pg_catalog, pg_temp
begin atomic
    select agent.fence_groups(_group_keys, _now);
end;

create or replace function agent.end_events
( _ids int8[], _claims int4[], _groups text[], _outcome text, _reasons text[], _results jsonb[], out ended int8[], out continuations int8[])
language sql volatile security definer
set search_path = pg_catalog, pg_temp
begin atomic
    select * from agent.end_events(_ids, _claims, _groups, _outcome, _reasons, _results
        , case when _groups is not null then agent.hold_continuations(_ids, _outcome) end);
end;

create or replace function agent.give_back(_held int8[], _pauses interval[] default null) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform agent.archive_events(array(select id from agent.event where id = any(_held) and cancelled_by is not null)
        , 'cancelled', 'cancelled while running');
    perform agent.return_events(_held, false, _held, _pauses);
end
$$;

-- Its workers know lanes 0 to 15 alone. What is in a lane beyond counts as in one of those, so that
-- they wake for it; their claims find it.
create or replace function agent.peek_events
( _kinds text[], _within interval, _max_attempts int4 default null, _cursors timestamptz[] default null
, out now_at timestamptz, out vts timestamptz[], out paused text[], out took interval
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    select peek.now_at, peek.paused, peek.took, array(
        select min(found.vt) from unnest(peek.vts) with ordinality as found (vt, nth)
        group by (found.nth - 1) % (16 * cardinality(_kinds)) order by (found.nth - 1) % (16 * cardinality(_kinds)))
    into now_at, paused, took, vts
    from agent.peek_lanes(_kinds, _within, _max_attempts, _cursors) as peek;
end
$$;

-- Schedules of priority 1.
create or replace function agent.set_cron
( _name text, _kind text, _schedule text, _next_at timestamptz, _payload jsonb default '{}', _time_zone text default 'UTC', _catch_up text default 'one'
, _paused boolean default false
) returns void
language sql volatile security definer
set search_path = pg_catalog, pg_temp
begin atomic
    select agent.set_cron(_name, _kind, _schedule, _next_at, _payload, _time_zone, _catch_up, _paused, null);
end;

create or replace function agent.hold_heads
( _kinds text[], _limit int4, _max_attempts int4, _now timestamptz, _cursors timestamptz[]
, out places tid[], out vts timestamptz[], out group_keys text[], out lapsed boolean[]
)
language sql volatile security definer
set search_path = pg_catalog, pg_temp
begin atomic
    select places, vts, group_keys, lapsed from agent.take_heads(_kinds, _limit, _max_attempts, _now, _cursors);
end;

create or replace function agent.hold_members
( _heads tid[], _head_vts timestamptz[], _group_keys text[], _lapsed boolean[], _kinds text[], _limit int4, _max_attempts int4, _now timestamptz
, out places tid[], out vts timestamptz[]
)
language sql volatile security definer
set search_path = pg_catalog, pg_temp
begin atomic
    select places, vts from agent.take_members(_heads, _head_vts, _group_keys, _lapsed, _kinds, _limit, _max_attempts, _now, 0);
end;

-- Without who asked for it, and why.
create or replace function agent.cancel_jobs(_ids int8[]) returns table (id int8, answer text)
language sql volatile security definer
set search_path = pg_catalog, pg_temp
begin atomic
    select * from agent.cancel_jobs(_ids, null, null, false);
end;

create or replace function agent.cancel_job(_id int8) returns text
language sql volatile security definer
set search_path = pg_catalog, pg_temp
begin atomic
    select agent.cancel_job(_id, null, null, false);
end;

create or replace function agent.store_new_events(_ids int8[], _events jsonb[], _traceparents text[], _item_keys text[]) returns int8[]
language sql volatile security definer
set search_path = pg_catalog, pg_temp
begin atomic
    select agent.store_new_events(_ids, _events, _traceparents, _item_keys
    , array(select agent.event_kind(event) from unnest(_events) as event)
    , array(select distinct kind from (select agent.event_kind(event) as kind from unnest(_events) as event) as given
        where agent.is_interactive(kind) and not exists (select from agent.kind as known where known.kind = given.kind and ordered)));
end;
