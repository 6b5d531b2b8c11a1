-- Refuses to insert where statements do not see what was committed before them: the second look for twins is sound only where they do.
create or replace function agent.require_read_committed() returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
        raise invalid_transaction_state using message = 'events can be inserted in READ COMMITTED transactions only'
        , hint = 'At ' || upper(current_setting('transaction_isolation')) || ' a duplicate of an event that is moving to history would be stored.';
    end if;
end
$$;

-- Adds kinds that are new to agent.kind. One that another transaction is just adding is left to it: an insert would wait until
-- that transaction ends. Should it roll back, the next insert of the kind or the next sweep adds it.
create or replace function agent.register_kinds(_kinds text[]) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    _new text;
begin
    for _new in
        select distinct given from unnest(_kinds) as given where not exists (select from agent.kind where kind = given) order by given
    loop
        if pg_try_advisory_xact_lock(hashtextextended('agent.kind ' || _new, 0)) then
            insert into agent.kind (kind) values (_new) on conflict do nothing;
        end if;
    end loop;
end
$$;

-- How many attempts an event of each of these kinds may have, where it has no maximum of its own: what the workers of the kind
-- announced, else what is given, else 3.
create or replace function agent.attempts_of(_kinds text[], _given int4) returns int4[]
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    return array(
        select coalesce(known.max_attempts, _given, 3) from unnest(_kinds) with ordinality as wanted (kind, nth)
        left join agent.kind as known on known.kind = wanted.kind order by nth);
end
$$;

-- Puts one row into the queue, or finds the one that is there under its item key (_in_history: or was) or dedupe key.
-- Every insert of ours ends here, but what store_new_events takes of a batch. Where the head of the row's group should yield to it, the insert trigger sees to that.
create or replace function agent.add_event(_new agent.event, _exact boolean, _in_history boolean, out id int8, out duplicate boolean)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    _joins boolean := false;
begin
    perform agent.require_read_committed();
    if not exists (select from agent.kind where kind = _new.kind) then
        perform agent.register_kinds(array[_new.kind]);
    end if;
    duplicate := false;
    loop
        if _new.group_key is not null then
            _joins := agent.enter_group(_new.group_key, _new.kind, _new.vt);
        end if;
        insert into agent.event as e (id, event_ts, vt, claimed, event, kind, item_key, dedupe_key, group_key, head, lane, max_attempts
            , deadline, enqueued_at, enqueued_by, errors, traceparent, continuation_id, waits_for, fails_with_children, changes)
        values (coalesce(_new.id, nextval('agent.event_id_seq')), _new.event_ts, _new.vt, coalesce(_new.claimed, '{}'), _new.event, _new.kind
            , _new.item_key, _new.dedupe_key, _new.group_key, not _joins, agent.lane(_new.group_key)
            , _new.max_attempts, _new.deadline, coalesce(_new.enqueued_at, agent.clock()), coalesce(_new.enqueued_by, session_user)
            , coalesce(_new.errors, '[]'), _new.traceparent, _new.continuation_id, _new.waits_for
            , coalesce(_new.fails_with_children, false), coalesce(_new.changes, '[]'))
        on conflict do nothing returning e.id into id;
        exit when id is not null;
        select e.id into id from agent.event as e where e.item_key = _new.item_key;
        if id is null and _new.id is not null then
            select e.id into id from agent.event as e where e.id = _new.id;
        end if;
        if id is null and _new.dedupe_key is not null then
            select e.id into id from agent.event as e where e.dedupe_key = _new.dedupe_key and e.claimed = '{}';
        end if;
        duplicate := id is not null;
        if duplicate then
            return;
        end if;
        -- The twin has just moved to history, or another row has just become the group's head: look again.
    end loop;
    if _in_history then
        declare
            -- In a new statement, after the insert: a twin that was moving to history meanwhile is seen here.
            _twin int8 := agent.find_in_history(_new.item_key, _new.event_ts, _exact);
        begin
            if _twin is not null then
                delete from agent.event as e where e.id = add_event.id;
                id := _twin;
                duplicate := true;
            end if;
        end;
    end if;
end
$$;
