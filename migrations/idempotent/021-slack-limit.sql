-- Slack's own rate limits, kept by all workers together (docs/adr/0045-slack-limits.md). A limit
-- allows a number of calls in a window of time. Each leased call counts until a window after the
-- last moment at which it may be made. The next call may begin once fewer than that number count.
--   lock_slack_limit: a limit's calls that count; the two below
--   lease_slack_calls: a worker, before it calls Slack
--   delay_slack_calls: a worker that Slack refused

-- Lock a limit's row, and return the ends of its calls that still count, in order. Null: another
-- transaction has locked it. It may wait for an insert, so callers set lock_timeout.
create or replace function agent.lock_slack_limit(_name text, _now timestamptz) returns timestamptz[]
language plpgsql set jit = off as $$ declare _busy timestamptz[];
begin
    select busy into _busy from agent.slack_limit where name = _name for update skip locked;
    if not found then
        insert into agent.slack_limit (name) values (_name) on conflict do nothing returning busy into _busy;
        if found and random() < 0.1 then
            -- Delete limits without recent calls: about as many as are added.
            delete from agent.slack_limit where name in (
                select name from agent.slack_limit
                where name <> _name and coalesce(busy[cardinality(busy)]
                    , '-infinity') < _now - interval '1 minute' limit 50 for update skip locked);
        end if;
    end if;
    return case when _busy is not null then array(select ends from unnest(_busy) as b (ends) where ends > _now
            order by ends) end;
end $$;

-- Lease calls of several limits at once. The arrays have an element per limit: its name, the calls
-- that it allows in a window, the window in seconds, the wanted calls, the spare calls, and the
-- seconds for which spare calls may be kept. Wanted calls begin within _within seconds. Spare calls
-- are leased only while a quarter of the limit is free.
-- A row has the seconds from now until each wanted call that was leased; the number of spare calls;
-- the seconds until the first call that was not leased (null: all were); and the number of live
-- workers. If another transaction has locked a limit, it has no row: ask again.
create or replace function agent.lease_slack_calls
( _names text[], _calls int4[], _windows float8[], _wanted int4[], _spare int4[], _keep float8[]
, _within float8) returns table (ordinal int4, waits float8[], at_hand int4, later float8, workers int4)
language plpgsql security definer set lock_timeout = '200ms' set jit = off as $$
declare
    _now timestamptz := agent.clock();
    _asked record; _busy timestamptz[]; _at timestamptz; _ends timestamptz;
begin
    workers := (select count(*) from agent.worker as w
        where w.died_at is null and agent.worker_alive(w.seen_at));
    for _asked in
        select * from unnest(_names, _calls, _windows, _wanted, _spare, _keep) with ordinality as a (name
            , calls, seconds, wanted, spare, keep, ordinal)
        order by a.name
    loop
        _busy := agent.lock_slack_limit(_asked.name, _now);
        continue when _busy is null;
        ordinal := _asked.ordinal; waits := '{}'; later := null; at_hand := 0;
        for _ in 1 .. _asked.wanted loop
            _at := coalesce(_busy[cardinality(_busy) - _asked.calls + 1], _now);
            if _at > _now + _within * interval '1 second' then
                later := extract(epoch from _at - _now);
                exit;
            end if;
            waits := waits || extract(epoch from _at - _now)::float8;
            _ends := _at + _asked.seconds * interval '1 second';
            _busy := case when _ends >= _busy[cardinality(_busy)] or _busy = '{}' then _busy || _ends
                else array(select ends from unnest(_busy || _ends) as b (ends) order by ends) end;
        end loop;
        while at_hand < _asked.spare and 4 * (cardinality(_busy) + 1) <= 3 * _asked.calls loop
            at_hand := at_hand + 1;
            _ends := _now + (_asked.seconds + _asked.keep) * interval '1 second';
            _busy := array(select ends from unnest(_busy || _ends) as b (ends) order by ends);
        end loop;
        update agent.slack_limit set busy = _busy where name = _asked.name;
        return next;
    end loop;
end $$;

-- Record that Slack refused a leased call: no call of this limit begins for so many seconds, and
-- then one after the other at the limit's rate. False: another transaction has locked the row.
create or replace function agent.delay_slack_calls(_name text, _calls int4, _window float8, _for float8)
returns boolean language plpgsql security definer set lock_timeout = '200ms' set jit = off as $$
declare _now timestamptz := agent.clock(); _busy timestamptz[] := agent.lock_slack_limit(_name, _now);
begin
    update agent.slack_limit
    set busy = array(
        select greatest(_busy[cardinality(_busy) - _calls + place]
            , _now + (_for + _window * (place - 1) / _calls) * interval '1 second')
        from generate_series(1, _calls) as p (place) order by 1)
    where name = _name and _busy is not null;
    return found;
end $$;
