-- Data keys, which the services seal before they come here.
--   data_keys_to_seal, seal_data_key, leave_data_key: a rotation of keys; operators
--   data_key, add_data_key, find_data_keys: services, programs
--   retire_data_key, destroy_data_keys: erasing
--   damaged_seals: surelane verify

-- The data key with which a workspace's values are encrypted now. No row: it has none yet.
create or replace function agent.data_key(_workspace text) returns table (id bytea, sealed bytea)
language sql stable security definer as $$ select k.id, k.sealed from agent.data_key as k
    where k.workspace = _workspace and k.retired_at is null and k.left_at is null $$;

-- Give a workspace its data key. Answers the key that counts: another process may have been first.
create or replace function agent.add_data_key(_workspace text, _id bytea, _sealed bytea)
returns table (id bytea, sealed bytea) language sql security definer begin atomic
    insert into agent.data_key (id, workspace, sealed) values (_id, _workspace, _sealed) on conflict
    do nothing;
    select k.id, k.sealed from agent.data_key(_workspace) as k;
end;

create or replace function agent.find_data_keys(_ids bytea[])
returns table (id bytea, workspace text, sealed bytea) language sql stable security definer
as $$ select k.id, k.workspace, k.sealed from agent.data_key as k where k.id = any(_ids) $$;

create or replace function agent.data_keys_to_seal(_limit int4 default 100, _after bytea default '')
returns table (id bytea, workspace text, sealed bytea, previous bytea) language sql stable security definer
as $$ select k.id, k.workspace, k.sealed, k.previous from agent.data_key as k where k.id > _after
    order by k.id limit _limit $$;

-- Store a re-encrypted data key, and keep the previous value. _anew null confirms that it was
-- opened: the previous value goes. False: it has changed meanwhile.
create or replace function agent.seal_data_key(_id bytea, _sealed bytea, _anew bytea) returns boolean
language sql security definer begin atomic
    with changed as (
        update agent.data_key set sealed = coalesce(_anew, sealed)
        , previous = case when _anew is not null then coalesce(previous, sealed) end
        where id = _id and sealed = _sealed returning 1)
    select exists (select from changed);
end;

-- Leave a data key that a rotation could not open: its workspace gets another one. It stays, for
-- what it encrypted: a later rotation may have the key that opens it.
create or replace function agent.leave_data_key(_id bytea, _sealed bytea) returns void
language sql security definer as $$ update agent.data_key set left_at = coalesce(left_at, agent.clock())
    where id = _id and sealed = _sealed $$;

-- Let a workspace's data key encrypt nothing more. Processes take another one within their cache's
-- period. Returns how long the last of its keys has been retired; null: it has none.
create or replace function agent.retire_data_key(_workspace text) returns interval
language sql security definer begin atomic
    -- A key that is retired already will be destroyed by an interrupted erasure.
    update agent.data_key set retired_at = agent.clock() where workspace = _workspace and retired_at is null
    and not exists (select from agent.data_key where workspace = _workspace and retired_at is not null);
    select agent.clock() - max(retired_at) from agent.data_key
    where workspace = _workspace and retired_at is not null;
end;

-- Destroy a workspace's retired data keys, so what they encrypted is lost. Returns how many.
create or replace function agent.destroy_data_keys(_workspace text, _retired_for interval) returns int4
language sql security definer begin atomic
    with destroyed as (
        delete from agent.data_key where workspace = _workspace and retired_at <= agent.clock() - _retired_for
        returning 1)
    select count(*)::int4 from destroyed;
end;

-- Rows with nothing sealed, and of the oldest _limit live events those whose data key is gone.
create or replace function agent.damaged_seals(_limit int4) returns setof text
language sql stable security definer set jit = off as $$
    select format('installation of %s %s', owner_id, user_id) from agent.installation where sealed = ''
    union all
    select 'data key ' || encode(id, 'hex') from agent.data_key where sealed = ''
    union all
    select 'event ' || e.id from (select id, event from agent.event order by id limit _limit) as e
    cross join lateral (select coalesce(e.event ->> 'surelane.sealed'
            , e.event -> 'payload' ->> 'surelane.sealed')) as s (sealed)
    where s.sealed is not null and case when s.sealed ~ '^[A-Za-z0-9+/]{12}'
        then not exists (select from agent.data_key
            where id = substr(decode(left(s.sealed, 12), 'base64'), 2)) else true end $$;
