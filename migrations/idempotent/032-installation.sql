-- Installations of the Slack app by OAuth. The services seal tokens before they come here. People's
-- accounts at other servers are rows, too: owner_id is the workspace, a space, and the server.
--   save_installation, use_oauth_state: ingest, at an install
--   add_account: workers, as a person is to connect an account at another server
--   wake_installed: events that wait for it; save_installation
--   find_installation: ingest, workers
--   await_installation: a worker, whose event has none, or whose turn needs a person's
--   wake_connected: turns that wait for a person's; ingest
--   note_report, other_reporter: who else reported a shared message; ingest, workers
--   delete_installation, uninstall: ingest, as Slack reports it
--   erase_uninstalled: workers, once the grace has passed
--   begin_refresh, end_refresh, expiring_installations: workers; the end also ingest
--   installations_to_seal, seal_installation: a rotation of keys; operators

-- Save the rows of one installation together: the bot's (an empty user id), a person's, or both. A
-- later one replaces it, but keeps what an uninstall will erase. The bot's wakes waiting events.
create or replace function agent.save_installation
( _enterprise_wide boolean, _owner_id text, _app_id text, _user_ids text[], _details jsonb[], _sealed bytea[]
, _expire timestamptz[]) returns void language plpgsql security definer as $$ begin
    insert into agent.installation as i (enterprise_wide, owner_id, user_id, app_id, details, sealed
        , expires_at, installed_at)
    select _enterprise_wide, _owner_id, given.user_id, coalesce(_app_id, ''), given.details, given.sealed
    , given.expires_at, (select agent.clock())  -- once: all rows have the same time
    from unnest(_user_ids, _details, _sealed, _expire) as given (user_id, details, sealed, expires_at)
    order by given.user_id
    on conflict (owner_id, enterprise_wide, user_id) do update
    set app_id = excluded.app_id, details = excluded.details, sealed = excluded.sealed, previous = null
    , expires_at = excluded.expires_at
    , version = i.version + 1, refreshing_until = null, installed_at = excluded.installed_at;
    delete from agent.uninstall where owner_id = _owner_id and enterprise_wide = _enterprise_wide
    and erasure_id is null;
    if '' = any(_user_ids) then perform agent.wake_installed(_enterprise_wide, _owner_id); end if;
end $$;

-- Add the row of an account at another server, or of the app as its client, unless there is one.
-- Its first tokens come as refreshed ones, so one process makes them: begin_refresh, end_refresh.
create or replace function agent.add_account(_owner_id text, _user_id text, _sealed bytea) returns void
language sql security definer begin atomic
    insert into agent.installation (enterprise_wide, owner_id, user_id, details, sealed, installed_at)
    values (false, _owner_id, _user_id, '{}', _sealed, agent.clock()) on conflict do nothing;
end;

-- Record that an event waits for an installation, or for a person's row, until a deadline. True: it
-- is there by now. Forgets some waits that are long over.
create or replace function agent.await_installation
( _id int8, _enterprise_wide boolean, _owner_id text, _until timestamptz
, _user_id text default '') returns boolean
language plpgsql security definer set enable_seqscan = off as $$ begin
    delete from agent.install_wait where event_id in (
        select event_id from agent.install_wait where until < (select agent.clock()) - interval '1 hour'
        limit 20 for update skip locked);
    if not exists (select from agent.install_wait
        where event_id = _id and until = _until and user_id = _user_id) then
        insert into agent.install_wait (event_id, owner_id, enterprise_wide, until, user_id)
        values (_id, _owner_id, _enterprise_wide, _until, _user_id)
        on conflict (event_id) do update
        set owner_id = excluded.owner_id, enterprise_wide = excluded.enterprise_wide, until = excluded.until
        , user_id = excluded.user_id;
    end if;
    -- In a new statement: it sees an installation that was stored meanwhile.
    return exists (
        select from agent.installation as i
        where i.owner_id = _owner_id and i.enterprise_wide = _enterprise_wide and i.user_id = _user_id);
end $$;

-- Tell the turns that wait for a person's account that there is one now. They look whether it is
-- the right one. A turn that is locked for two seconds is left out: it looks again by itself.
create or replace function agent.wake_connected(_user_id text) returns void
language plpgsql security definer set enable_seqscan = off as $$ declare _id int8;
begin
    for _id in select event_id from agent.install_wait
        where user_id = _user_id and _user_id <> '' and until > agent.clock() limit 100 loop
        begin
            perform agent.send_signal(_id, 'account', null, false, _user_id);
        exception when lock_not_available then null;
        end;
    end loop;
end $$;

-- Note who else reported a stored message of a shared channel, unless it ended. Forget old notes.
create or replace function agent.note_report(_id int8, _enterprise_wide boolean, _owner_id text) returns void
language plpgsql security definer set enable_seqscan = off as $$ begin
    delete from agent.other_report as r where r.event_id in (
        select o.event_id from agent.other_report as o
        where o.at < (select agent.clock()) - interval '1 hour'
        and not exists (select from agent.event as e where e.id = o.event_id)
        order by o.at limit 20 for update skip locked);
    insert into agent.other_report (event_id, owner_id, enterprise_wide, at)
    select _id, _owner_id, _enterprise_wide, agent.clock()
    where exists (select from agent.event where id = _id)
    on conflict do nothing;
end $$;

-- Who else reported an event and has a bot's installation now: the first of them. No row: no other.
create or replace function agent.other_reporter(_id int8)
returns table (enterprise_wide boolean, owner_id text) language sql stable security definer begin atomic
    select r.enterprise_wide, r.owner_id from agent.other_report as r
    where r.event_id = _id and exists (
        select from agent.installation as i
        where i.owner_id = r.owner_id and i.enterprise_wide = r.enterprise_wide and i.user_id = '')
    order by r.at, r.owner_id limit 1;
end;

-- Make events visible that wait for an installation, and wake the workers. Leaves out claimed and
-- locked events, and all beyond a thousand: they are tried again by themselves.
create or replace function agent.wake_installed(_enterprise_wide boolean, _owner_id text) returns int4
language plpgsql security definer
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off
set enable_mergejoin = off as $$ declare _ids int8[];
begin
    -- Heads alone: such an event holds back its group.
    _ids := array(
        select e.id from agent.install_wait as w join agent.event as e on e.id = w.event_id
        where w.owner_id = _owner_id and w.enterprise_wide = _enterprise_wide and w.user_id = '' and e.head
        and e.claimed_by is null and e.vt > agent.clock()
        order by e.id limit 1000 for update of e skip locked);
    if _ids <> '{}' then
        update agent.event set vt = agent.clock() where id = any(_ids);
        perform agent.note_parked(_ids, false);
        delete from agent.install_wait where event_id = any(_ids);
        perform pg_notify('agent_event', '');
    end if;
    return cardinality(_ids);
end $$;

-- The rows of an installation: the bot's, and that person's. Null: the person who installed last.
create or replace function agent.find_installation
( _enterprise_wide boolean, _owner_id text, _user_id text default null)
returns table (user_id text, app_id text, details jsonb, sealed bytea, expires_at timestamptz, version int8
, installed_at timestamptz) language sql stable security definer begin atomic
    select i.user_id, i.app_id, i.details, i.sealed, i.expires_at, i.version, i.installed_at
    from agent.installation as i where i.owner_id = _owner_id and i.enterprise_wide = _enterprise_wide
    and i.user_id in ('', coalesce(_user_id, (
        select p.user_id from agent.installation as p
        where p.owner_id = _owner_id and p.enterprise_wide = _enterprise_wide and p.user_id <> ''
        order by p.installed_at desc, p.user_id limit 1)));
end;

-- Delete rows of an installation: of some people and the bot (an empty id), or all (null).
-- Rows that were installed after _until stay: Slack may report an old removal late.
create or replace function agent.delete_installation
( _enterprise_wide boolean, _owner_id text, _user_ids text[] default null
, _until timestamptz default 'infinity') returns int4 language sql security definer begin atomic
    with deleted as (
        delete from agent.installation where owner_id = _owner_id and enterprise_wide = _enterprise_wide
        and (_user_ids is null or user_id = any(_user_ids)) and installed_at <= _until returning 1)
    select count(*)::int4 from deleted;
end;

-- Delete an installation that was removed from Slack, with its people's accounts at other servers,
-- and record that. What is newer than _until stays: the report is late. Returns how many went.
create or replace function agent.uninstall
( _enterprise_wide boolean, _owner_id text, _enterprise_id text, _until timestamptz) returns int4
language plpgsql security definer as $$
declare
    _deleted int4 := agent.delete_installation(_enterprise_wide, _owner_id, null, _until);
    _accounts int4;
begin
    delete from agent.installation
    where owner_id like '% %' and split_part(owner_id, ' ', 1) = _owner_id and installed_at <= _until;
    get diagnostics _accounts = row_count;
    insert into agent.uninstall (owner_id, enterprise_wide, enterprise_id, at)
    select _owner_id, _enterprise_wide, nullif(_enterprise_id, _owner_id), least(_until, agent.clock())
    where _owner_id ~ '^[A-Za-z0-9]{2,50}$'
    and not exists (select from agent.installation
        where owner_id = _owner_id and enterprise_wide = _enterprise_wide)
    on conflict do nothing;
    return _deleted + _accounts;
end $$;

-- Does one bounded step of the erasures after uninstalls (agent.erase_step): of an owner that
-- removed the app for _grace, one owner and one worker at a time. Keeps a workspace while its
-- organization has the app and for the grace after that, and an organization while one of its
-- workspaces has the app. Passes over the owners _but. Returns the owner, the receipt's number and
-- key, the place ("done" or "left" at the end), and how many have not ended; nulls: nothing to do.
create or replace function agent.erase_uninstalled
( _grace interval, _by text, _limit int4 default 500, _but text[] default '{}', out owner text
, out receipt int8, out key text, out place text, out waiting int4) language plpgsql security definer as $$
declare _since timestamptz := agent.clock() - _grace; _u agent.uninstall; _filter jsonb;
begin
    if not agent.take_turn('erase_uninstalled') then return; end if;
    select u.* into _u from agent.uninstall as u
    where u.owner_id <> all(_but) and (u.erasure_id is not null or u.at <= _since and not exists (
        select from agent.installation as i
        where i.owner_id = u.owner_id and i.enterprise_wide = u.enterprise_wide
        or i.enterprise_wide and i.owner_id = u.enterprise_id or u.enterprise_wide
        and i.details ->> 'enterprise_id' = u.owner_id)
    and not exists (select from agent.uninstall as o
        where o.owner_id = u.enterprise_id and o.enterprise_wide and o.at > _since))
    order by u.erasure_id, u.at limit 1 for update skip locked;
    if not found then return; end if;
    owner := _u.owner_id;
    _filter := jsonb_build_object('team', owner);
    select e.id, e.key into receipt, key from agent.erasure as e
    where e.id = _u.erasure_id and e.finished_at is null;
    if not found then
        select begun.id, begun.key into receipt, key
        from agent.begin_erasure(_filter, format('%s, after an uninstall at %s', _by, _u.at)) as begun;
        update agent.uninstall as u set erasure_id = receipt
        where u.owner_id = _u.owner_id and u.enterprise_wide = _u.enterprise_wide;
    end if;
    select step.place, step.waiting into place, waiting
    from agent.erase_step(receipt, _filter, _limit) as step;
    if place = 'done' then
        delete from agent.uninstall as u
        where u.owner_id = _u.owner_id and u.enterprise_wide = _u.enterprise_wide;
    end if;
end $$;

-- Claim the refresh of a row's tokens for some seconds. No transaction stays open meanwhile.
-- No row: another process refreshes them, or they have changed since that version.
create or replace function agent.begin_refresh
( _enterprise_wide boolean, _owner_id text, _user_id text, _version int8, _for interval)
returns table (sealed bytea, version int8) language sql security definer begin atomic
    update agent.installation as i set refreshing_until = agent.clock() + _for, version = i.version + 1
    where i.owner_id = _owner_id and i.enterprise_wide = _enterprise_wide and i.user_id = _user_id
    and i.version = _version and coalesce(i.refreshing_until, '-infinity') <= agent.clock()
    returning i.sealed, i.version;
end;

-- Store refreshed tokens. False: the row has changed meanwhile, and nothing is stored.
create or replace function agent.end_refresh
( _enterprise_wide boolean, _owner_id text, _user_id text, _version int8, _sealed bytea
, _expires_at timestamptz) returns boolean language sql security definer begin atomic
    with refreshed as (
        update agent.installation as i
        set sealed = _sealed, previous = null, expires_at = _expires_at, version = i.version + 1
        , refreshing_until = null
        where i.owner_id = _owner_id and i.enterprise_wide = _enterprise_wide and i.user_id = _user_id
        and i.version = _version returning 1)
    select exists (select from refreshed);
end;

-- The tokens of Slack that expire before a time and that no process refreshes, soonest first. Tried
-- ones come last: else installations that Slack refuses would fill the list.
create or replace function agent.expiring_installations(_within interval, _limit int4 default 100)
returns table (enterprise_wide boolean, owner_id text, user_id text, version int8, expires_at timestamptz)
language sql stable security definer begin atomic
    -- A worker reads no time before the year 1.
    select i.enterprise_wide, i.owner_id, i.user_id, i.version, greatest(i.expires_at, '0001-01-02 00:00+00')
    from agent.installation as i
    where i.expires_at <= (select agent.clock()) + _within and strpos(i.owner_id, ' ') = 0
    and coalesce(i.refreshing_until, '-infinity') <= (select agent.clock())
    order by greatest(i.expires_at, i.refreshing_until) limit _limit;
end;

create or replace function agent.installations_to_seal
( _limit int4 default 100, _after_owner text default '', _after_wide boolean default false
, _after_user text default '')
returns table (owner_id text, enterprise_wide boolean, user_id text, sealed bytea, previous bytea)
language sql stable security definer begin atomic
    select i.owner_id, i.enterprise_wide, i.user_id, i.sealed, i.previous from agent.installation as i
    where (i.owner_id, i.enterprise_wide, i.user_id) > (_after_owner, _after_wide, _after_user)
    order by i.owner_id, i.enterprise_wide, i.user_id limit _limit;
end;

-- Store re-encrypted tokens, and keep the previous ones. _anew null confirms that they were opened:
-- the previous ones go. False: they have changed meanwhile.
create or replace function agent.seal_installation
( _owner_id text, _enterprise_wide boolean, _user_id text, _sealed bytea, _anew bytea) returns boolean
language sql security definer begin atomic
    with changed as (
        update agent.installation set sealed = coalesce(_anew, sealed)
        , previous = case when _anew is not null then coalesce(previous, sealed) end
        where owner_id = _owner_id and enterprise_wide = _enterprise_wide and user_id = _user_id
        and sealed = _sealed returning 1)
    select exists (select from changed);
end;

-- Record that the state of an OAuth install was used. False: it was used before.
create or replace function agent.use_oauth_state(_state bytea, _expires_at timestamptz) returns boolean
language sql security definer return agent.use_id('oauth ' || encode(_state, 'hex'), _expires_at);
