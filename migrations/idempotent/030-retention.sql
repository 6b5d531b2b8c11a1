-- Old history ends by its retention (docs/adr/0060-retention-and-erasing.md).
--   history_part: a chunk of history; retention, erasing
--   forget_steps: the steps of events that go; retention, erasing
--   delete_old, drop_history: one step of retention; workers

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

-- Deletes what hangs on events that are in history no longer: steps, signals, feedback, requests.
-- Passes over live events. Returns how many steps and signals went.
create or replace function agent.forget_steps(_ids int8[], out steps int4, out signals int4)
language plpgsql security definer as $$ begin
    _ids := array(select given.id from unnest(_ids) as given (id)
        where not exists (select from agent.event as e where e.id = given.id));
    delete from agent.step where event_id = any(_ids);
    get diagnostics steps = row_count;
    delete from agent.signal where event_id = any(_ids);
    get diagnostics signals = row_count;
    delete from agent.feedback where event_id = any(_ids);
    delete from agent.request where event_id = any(_ids);
end $$;

-- Deletes rows of a plain history that are older than _cutoff. Skips locked rows, and rows that
-- refuse it, with a warning. Returns the deleted ids.
create or replace function agent.delete_old(_ids int8[], _cutoff timestamptz) returns int8[]
language plpgsql security definer as $$
declare
    _gone int8[];
    _half int4 := cardinality(_ids) / 2;
begin
    with held as (
        select id, event_ts from agent.event_hist where id = any(_ids) and event_ts < _cutoff
        for update skip locked
    ), deleted as (
        delete from agent.event_hist as h using held where h.id = held.id and h.event_ts = held.event_ts
        returning h.id
    )
    select coalesce(array_agg(id), '{}') into _gone from deleted;
    return _gone;
exception when others then
    if agent.is_outage(sqlstate) then
        raise;
    elsif _half > 0 then
        return agent.delete_old(_ids[:_half], _cutoff) || agent.delete_old(_ids[_half + 1:], _cutoff);
    end if;
    raise warning 'event % cannot be dropped from history: SQLSTATE %', _ids[1], sqlstate;
    return '{}';
end $$;

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
        _full := dropped > 0 or cardinality(_gone) = _limit;
        next := 0;
    else
        select array_agg(h.id) filter (where h.event_ts < _cutoff), max(h.id), count(*) = _limit
        into _old, next, _full
        from (select id, event_ts from agent.event_hist where id > _after order by id limit _limit) as h;
        _gone := agent.delete_old(_old, _cutoff);
        dropped := cardinality(_gone);
    end if;
    perform agent.forget_steps(_gone);
    -- Signals for which nothing waited: no step says how old they are.
    if not _full then
        _gone := array(
            select s.id from agent.signal as s where s.sent_at < _cutoff
            and not exists (select from agent.event as e where e.id = s.event_id)
            and not exists (select from agent.event_hist as h where h.id = s.event_id) order by s.sent_at
            limit 100);
        delete from agent.signal where id = any(_gone);
        _full := cardinality(_gone) = 100;
        next := coalesce(next, _after);
    end if;
    if not _full then
        next := null;
        delete from agent.model_usage where ctid = any(array(
            select ctid from agent.model_usage where day < agent.clock() - _older_than order by day
            limit 10000 for update skip locked));
        delete from agent.feedback where ctid = any(array(
            select ctid from agent.feedback where event_id > 0 and at < _cutoff order by at limit 10000
            for update skip locked));
        delete from agent.dropped where id in (
            select o.id from agent.dropped as o
            where o.at < agent.clock() - interval '1 day' order by o.id limit 10000 for update skip locked);
        delete from agent.event_hist_outlier where event_week < _cutoff - interval '14 days';
        insert into agent.retention as r (older_than, done_at, blocked_at)
        values (_older_than, case when not blocked then agent.clock() end
            , case when blocked then agent.clock() end)
        on conflict (only_row) do update set older_than = excluded.older_than
        , done_at = coalesce(excluded.done_at, r.done_at)
        , blocked_at = case when blocked then coalesce(r.blocked_at, excluded.blocked_at) end;
    end if;
end $$;
