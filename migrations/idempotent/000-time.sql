-- The clock, Slack's timestamps, and turns, by which one transaction at a time does something.
--   clock: the time, in every function
--   to_timestamptz: Slack's timestamp as a time; inserts, and people
--   from_timestamptz: the way back; people
--   take_turn, await_turn: take a turn; claims of limited kinds, sweeps, operators
--   is_outage: errors that are no item's fault; what goes on without an item that refuses
--   try_out: runs a statement, and takes it back; first_calls, why_refused

-- The one clock of the queue: what every function means by now. Time goes on within a transaction.
create or replace function agent.clock() returns timestamptz
language sql parallel safe return pg_catalog.clock_timestamp();

-- Slack's Unix timestamp as a timestamptz, exact to the microsecond (double precision is not).
create or replace function agent.to_timestamptz(_ts numeric) returns timestamptz
language plpgsql immutable strict parallel safe set search_path = pg_catalog, pg_temp as $$ begin
    -- From PostgreSQL's first day to the last of 9999: beyond, the product would not be exact.
    if _ts = 'NaN' or _ts < -210866803200 or _ts >= 253402300800 then
        raise invalid_parameter_value using message = format('%s is not a Unix timestamp in seconds'
            , left(_ts::text, 40)), hint = 'Slack writes timestamps as 1469470591.759709.';
    end if;
    return timestamptz 'epoch' + interval '1 second' * trunc(_ts)::float8
        + interval '1 microsecond' * round((_ts - trunc(_ts)) * 1000000)::float8;
end $$;

-- The same for Slack's text form, such as '1469470591.759709'.
create or replace function agent.to_timestamptz(_ts text) returns timestamptz
language plpgsql immutable strict parallel safe set search_path = pg_catalog, pg_temp as $$ begin
    if _ts !~ '^[[:space:]]*[+-]?[0-9]{1,20}([.][0-9]{0,20})?[[:space:]]*$' then
        raise invalid_parameter_value using message = format('%L is not a Unix timestamp in seconds'
            , left(_ts, 40)), hint = 'Slack writes timestamps as 1469470591.759709.';
    end if;
    return agent.to_timestamptz(_ts::numeric);
end $$;

create or replace function agent.from_timestamptz(_ts timestamptz) returns numeric
language plpgsql immutable strict parallel safe set search_path = pg_catalog, pg_temp as $$ begin
    if not isfinite(_ts) then
        raise invalid_parameter_value using message = format('%s has no Unix timestamp', _ts);
    end if;
    return extract(epoch from _ts);
end $$;

-- Takes the turn of a name until the transaction ends. False: another transaction has it.
create or replace function agent.take_turn(_name text) returns boolean
language plpgsql security definer as $$ begin
    perform from agent.turn where name = _name for update skip locked;
    -- It waits only for a transaction that is just adding the name.
    return found or (not exists (select from agent.turn where name = _name) and agent.await_turn(_name));
end $$;

-- The same, after a wait. A claim of 600 events has the turn of its key for 15 to 25 ms.
create or replace function agent.await_turn(_name text, _most text default '30ms') returns boolean
language plpgsql security definer set lock_timeout = '30ms' as $$ begin
    perform set_config('lock_timeout', _most, true); -- until this function returns
    insert into agent.turn (name) values (_name) on conflict do nothing;
    perform from agent.turn where name = _name for update;
    return found;
exception when lock_not_available or deadlock_detected then return false;
end $$;

-- Whether an error tells of another transaction, a lack of resources, a timeout or the server. Else
-- one event may be at fault, or its row is damaged (XX001), and the others go on without it.
create or replace function agent.is_outage(_sqlstate text) returns boolean
language sql immutable parallel safe
return left(_sqlstate, 2) in ('40', '53', '55', '57', '58', 'XX') and _sqlstate <> 'XX001';

-- Runs a statement, and takes it back. What failed has the server's SQLSTATE, message and object.
create or replace function agent.try_out(_statement text, out code text, out message text, out object text)
language plpgsql as $$ declare _schema text; _table text; _constraint text; _context text;
begin
    execute _statement;
    set constraints all immediate;
    raise sqlstate 'SL002';
exception
    when sqlstate 'SL002' then null;
    when others or assert_failure then
        get stacked diagnostics code = returned_sqlstate, message = message_text, _schema = schema_name
        , _table = table_name, _constraint = constraint_name, _context = pg_exception_context;
        object := array_to_string(array_remove(array[_schema, _table, _constraint], ''), '.');
        object := coalesce(nullif(object, ''), substring(_context from 'PL/pgSQL[^(]* ([^ (]+)[(]'));
end $$;
