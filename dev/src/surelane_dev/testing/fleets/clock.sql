-- Turn a migrated database into one of virtual time. Run once, as a superuser.
create or replace function agent.clock() returns timestamptz language sql volatile parallel safe
return pg_catalog.to_timestamp(pg_catalog.current_setting('simulation.now')::float8);
-- The statistics are the server's own, of all that ran here before: no worker vacuums by them.
create or replace function agent.dead_share() returns float8 language sql return null::float8;
-- Called stable, as a condition without a column then holds before anything else of its query runs.
create function agent.clock_is(_now text, _worker text) returns boolean language plpgsql stable as $$
begin
    perform pg_catalog.set_config('simulation.now', _now, false);
    perform pg_catalog.set_config('surelane.worker', _worker, false);
    return true;
end
$$;
grant execute on function agent.clock_is to public;
-- A simulated restart sets it, in milliseconds: the server itself runs on.
create sequence agent.server_start;
create function agent.server_since() returns timestamptz language sql security definer
return pg_catalog.to_timestamp((select last_value / 1000.0 from agent.server_start)::float8);

do $$
declare
    _default record;
begin
    for _default in select d.adrelid::regclass as stored, a.attname as name from pg_attrdef as d
        join pg_attribute as a on a.attrelid = d.adrelid and a.attnum = d.adnum join pg_class as c on c.oid = d.adrelid
        where c.relnamespace = 'agent'::regnamespace and a.attgenerated = ''
        and pg_get_expr(d.adbin, d.adrelid) in ('now()', 'clock_timestamp()') loop
        execute format('alter table %s alter %I set default agent.clock()', _default.stored, _default.name);
    end loop;
end $$;

-- Tell of a notification in the answer of its statement: an observer would need a statement of its
-- own to hear of it.
-- What a subtransaction that is rolled back notifies of is told, too: a wake-up too many.
create function agent.tell(_channel text, _payload text) returns void language plpgsql volatile as $$
begin
    raise info 'notified % %', _channel, _payload;
end
$$;
grant execute on function agent.tell to public;
do $$
declare _source text;
begin
    for _source in select replace(replace(pg_get_functiondef(oid), 'pg_notify(', 'agent.tell(')
            , 'pg_postmaster_start_time(', 'agent.server_since(') from pg_proc
        where pronamespace = 'agent'::regnamespace
        and case when prokind = 'f' then pg_get_functiondef(oid) end
            ~ '(pg_notify|pg_postmaster_start_time)[(]' loop
        execute _source;
    end loop;
end $$;

-- What another transaction has locked stays locked while a statement waits: they take turns.
do $$
declare _function regprocedure;
begin
    for _function in select p.oid::regprocedure from pg_proc as p, unnest(p.proconfig) as setting
        where p.pronamespace = 'agent'::regnamespace and setting like 'lock_timeout=%' loop
        execute format('alter function %s set lock_timeout = ''2ms''', _function);
    end loop;
end $$;
