-- Old history ends by its retention (docs/adr/0060-retention-and-erasing.md).
--   history_part: a chunk of history; retention, erasing
--   forget_events, delete_ended, delete_rows: delete what can be deleted; retention, erasing
--   drop_history: one step of retention; workers

-- History's first part that ends after _from: a chunk, or all of a plain table. Null at the end.
create or replace function agent.history_part(_from timestamptz, out first timestamptz, out last timestamptz)
language plpgsql stable security definer set jit = off as $$ begin
    if agent.history_is_hypertable() then
        execute 'select range_start, range_end from timescaledb_information.chunks'
            ' where hypertable_schema = $1 and hypertable_name = $2'
            ' and range_end > $3 order by range_end limit 1'
            into first, last using 'agent', 'event_hist', _from;
    elsif _from < 'infinity' then
        first := '-infinity'; last := 'infinity';
    end if;
end $$;

-- Deletes ended events of a range of time, and what hangs on them: steps, signals, feedback and
-- requests, not of live events. Returns how many rows of each.
create or replace function agent.forget_events(_ids int8[], _first timestamptz, _last timestamptz)
returns jsonb language plpgsql as $$ declare _ended int8[]; _events int4; _steps int4; _signals int4;
begin
    delete from agent.event_hist where id = any(_ids) and event_ts >= _first and event_ts < _last;
    get diagnostics _events = row_count;
    _ended := array(select given.id from unnest(_ids) as given (id)
        where not exists (select from agent.event as e where e.id = given.id));
    delete from agent.step where event_id = any(_ended);
    get diagnostics _steps = row_count;
    delete from agent.signal where event_id = any(_ended);
    get diagnostics _signals = row_count;
    delete from agent.feedback where event_id = any(_ended);
    delete from agent.request where event_id = any(_ended);
    return jsonb_build_object('event_hist', _events, 'step', _steps, 'signal', _signals);
end $$;

-- The same one event at a time, where one refuses: it stays whole (agent.in_halves).
create or replace function agent.delete_ended
( _ids int8[], _first timestamptz, _last timestamptz, out counts jsonb, out kept jsonb) language sql
return agent.in_halves(format('select agent.forget_events($1, %L, %L)', _first, _last), _ids, 'event');

-- Deletes rows of a table by their places, and counts them. A row that refuses stays.
create or replace function agent.delete_rows(_table text, _rows tid[], out counts jsonb, out kept jsonb)
language sql return agent.in_halves(format('with gone as (delete from agent.%I where ctid = any($1)'
        ' returning 1) select jsonb_build_object(%1$L, count(*)) from gone', _table), _rows, _table);

-- Retention: drops history older than _older_than by event_ts, with its steps and signals, in one
-- bounded step. A hypertable loses its oldest chunk, if all of it is that old. Of a plain table the
-- _limit rows after id _after are looked at. Returns where the next step begins (null at the end),
-- how many chunks or rows went, and whether another transaction's lock stopped it, after 100 ms at
-- most: others queue up behind a drop that waits. A second worker ends at once.
create or replace function agent.drop_history
( _older_than interval, _after int8 default 0, _limit int4 default 2000, out next int8, out dropped int4
, out blocked boolean) language plpgsql security definer
set plan_cache_mode = force_custom_plan set enable_seqscan = off set enable_sort = off
set enable_hashjoin = off
set enable_mergejoin = off set lock_timeout = '100ms' as $$
declare
    _cutoff timestamptz := agent.clock() - _older_than;
    _namespace text := (select n.nspname from pg_extension as x join pg_namespace as n
        on n.oid = x.extnamespace where x.extname = 'timescaledb');
    _last timestamptz; _old int8[]; _gone int8[];
    _full boolean; -- there is more to do
begin
    dropped := 0; blocked := false;
    if _older_than is null or _older_than < interval '3 days' then
        raise invalid_parameter_value
            using message = 'history is dropped by an age of at least 3 days, such as interval ''90 days'''
            , hint = 'Retries of Slack and of webhooks are found in history for so long.';
    elsif not agent.take_turn('drop_history') then
        return;
    end if;
    if agent.history_is_hypertable() then
        select part.last into _last from agent.history_part('-infinity') as part;
        begin
            if _last <= _cutoff then
                execute format('select count(*) from %I.drop_chunks(''agent.event_hist'', older_than => $1)'
                    , _namespace) into dropped using _last;
            end if;
        exception when lock_not_available or deadlock_detected then
            blocked := true;
        end;
        -- No event in history is older than its first chunk.
        _cutoff := least(_cutoff, (select part.first from agent.history_part('-infinity') as part));
        _gone := array(
            select s.event_id from agent.step as s where s.event_ts < _cutoff
            and not exists (select from agent.event as e where e.id = s.event_id) order by s.event_ts
            limit _limit);
        _full := dropped > 0 or (agent.delete_ended(_gone, null, null)).counts ->> 'step' > '0'
            and cardinality(_gone) = _limit;
        next := 0;
    else
        select array_agg(h.id) filter (where h.event_ts < _cutoff), max(h.id), count(*) = _limit
        into _old, next, _full
        from (select id, event_ts from agent.event_hist where id > _after order by id limit _limit) as h;
        -- Rows that somebody has locked are dropped another time.
        _old := array(select id from agent.event_hist where id = any(_old) for update skip locked);
        dropped := coalesce((agent.delete_ended(_old, '-infinity', _cutoff)).counts ->> 'event_hist', '0');
    end if;
    -- Signals for which nothing waited: no step says how old they are.
    if not _full then
        _full := (agent.delete_rows('signal', array(
                    select s.ctid from agent.signal as s where s.sent_at < _cutoff
                    and not exists (select from agent.event as e where e.id = s.event_id)
                    and not exists (select from agent.event_hist as h where h.id = s.event_id)
                    order by s.sent_at limit 100 for update skip locked))
            ).counts -> 'signal' is not distinct from '100';
        next := coalesce(next, _after);
    end if;
    if not _full then
        next := null;
        perform agent.delete_rows('model_usage', array(
                select ctid from agent.model_usage where day < (select agent.clock()) - _older_than
                order by day limit 10000 for update skip locked))
        , agent.delete_rows('feedback', array(
                select ctid from agent.feedback where event_id > 0 and at < _cutoff order by at limit 10000
                for update skip locked))
        , agent.delete_rows('dropped', array(
                select ctid from agent.dropped where at < (select agent.clock()) - interval '1 day'
                order by id limit 10000 for update skip locked));
        delete from agent.event_hist_outlier where event_week < _cutoff - interval '14 days';
        insert into agent.retention as r (older_than, done_at, blocked_at)
        values (_older_than, case when not blocked then agent.clock() end
            , case when blocked then agent.clock() end)
        on conflict (only_row) do update set older_than = excluded.older_than
        , done_at = coalesce(excluded.done_at, r.done_at)
        , blocked_at = case when blocked then coalesce(r.blocked_at, excluded.blocked_at) end;
    end if;
end $$;
