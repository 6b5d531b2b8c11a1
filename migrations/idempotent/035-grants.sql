-- The settings that all functions share, the triggers, and who may call what. It makes none.

-- No function states these settings. A function that runs as its owner pins its search path: a
-- caller's brings nothing in. Where bitmap scans are off, sequential scans are off, too. Where
-- sorts are off, the index that has the rows in order is read, and only as far as needed:
-- statistics from before a backlog would prefer another index of the group or the lane, read all of
-- it and sort. A pinned plan is not compiled: an unavoidable scan or sort has a huge estimated cost
-- then, and JIT would take 100 ms per call. A function that no role may call has its caller's.
do $$
declare _function record;
begin
    for _function in
        select p.oid::regprocedure as name, concat_ws(' '
            , case when p.prosecdef then 'set search_path = pg_catalog, pg_temp' end
            , case when 'enable_bitmapscan=off' = any(p.proconfig) then 'set enable_seqscan = off' end
            , case when p.proconfig && array['enable_seqscan=off', 'enable_bitmapscan=off', 'enable_sort=off']
                then 'set jit = off' end) as settings
        from pg_proc as p where p.pronamespace = 'agent'::regnamespace and pg_has_role(p.proowner, 'usage')
        and not exists (select from pg_depend as d where d.objid = p.oid and d.deptype = 'e')
    loop
        if _function.settings <> '' then
            execute format('alter function %s %s', _function.name, _function.settings);
        end if;
    end loop;
end $$;

-- The triggers, each created once: doing it again would keep inserts waiting until the migration
-- ends. A question is a reply in a step, so its note has the step's name.
do $do$
declare _missing record;
begin
    for _missing in
        select * from (values
            ('event_defaults', 'before insert on agent.event'
                , 'for each row when (new.kind is null or new.lane is null or new.head is null)')
            , ('event_parked', 'before insert on agent.event', 'for each row when (new.lane < 0)')
            , ('event_inserted', 'after insert on agent.event', 'for each statement')
            , ('member_joins', 'after insert on agent.event'
                , 'deferrable initially deferred for each row when (not new.head)')
            , ('event_deleted', 'after delete on agent.event'
                , 'for each row when (old.head and old.group_key is not null)')
            , ('event_hist_outlier', 'before insert on agent.event_hist', $$for each row
                when (new.finished_at - new.event_ts not between interval '-7 days' and interval '7 days')$$)
            , ('event_hist_failed', 'before insert on agent.event_hist', $$for each row
                when (new.outcome in ('failed', 'expired')
                and jsonb_typeof(new.event) = 'object' and not starts_with(new.kind, 'surelane.'))$$)
            , ('event_hist_close', 'before insert on agent.event_hist'
                , $$for each row when (jsonb_path_exists(new.notes, '$.streams.*.stopped ? (@ == false)')
                or jsonb_path_exists(new.notes
                    , '$.replies.keyvalue().key ? (@ like_regex ":[0-9]+ asked:")'))$$)
            , ('event_hist_child', 'after insert on agent.event_hist', $$for each row
                when (new.continuation_id is not null and new.changes @> '[{"action": "child of"}]')$$)
            , ('cron_sound', 'before insert or update on agent.cron', 'for each row')
            , ('limit_sound', 'before insert or update on agent.kind_limit', 'for each row')
        ) as known (name, moment, rows)
        where not exists (select from pg_trigger
            where tgrelid = substring(moment from ' on (.*)')::regclass and tgname = name)
    loop
        execute format('create %s trigger %I %s %s execute function agent.%2$I()', case _missing.name
            when 'member_joins' then 'constraint' end, _missing.name, _missing.moment, _missing.rows);
    end loop;
end $do$;

-- The roles that services, operators and programs connect through. Roles belong to the cluster, not
-- to the database, and another database's migration may create them at this very moment.
do $$
declare _role text;
begin
    foreach _role in array array['agent_ingest', 'agent_worker', 'agent_operator', 'agent_producer'] loop
        if not exists (select from pg_roles where rolname = _role) then
            begin
                execute format('create role %I nologin', _role);
            exception
                when duplicate_object or unique_violation then
                    null;
                when insufficient_privilege then
                    raise notice using message = format('role %s is missing and this role may not create it;'
                        ' services must connect as the owner of schema agent', _role);
            end;
        end if;
    end loop;
end $$;

-- Who may do what. Nothing is PUBLIC's; a role gets the functions that it calls, and no table.
-- Rights that others have, from the owner's default privileges or by hand, end: a role that may
-- only read could enqueue. A role gets rights as a member of one of ours.
do $$
declare
    _given record;
    _ours text[] := array['agent_ingest', 'agent_worker', 'agent_operator', 'agent_producer'];
begin
    for _given in
        select given.name, given.kind, case a.grantee when 0 then 'public'
            else a.grantee::regrole::text end as role
        , a.grantee = 0 or pg_get_userbyid(a.grantee) = any(_ours) as expected from (
            select oid::regprocedure::text as name, 'routine' as kind, proowner as owner
            , coalesce(proacl, acldefault('f', proowner)) as acl
            from pg_proc where pronamespace = 'agent'::regnamespace
            and not exists (select from pg_depend as d where d.objid = pg_proc.oid and d.deptype = 'e')
            union all
            select c.oid::regclass::text, case c.relkind when 'S' then 'sequence' else 'table' end
            , c.relowner, acls.acl
            from pg_class as c cross join lateral (
                select c.relacl union all select attacl from pg_attribute
                where attrelid = c.oid and attacl is not null) as acls (acl)
            where c.relnamespace = 'agent'::regnamespace and c.relkind in ('r', 'p', 'v', 'm', 'S')
            union all
            select 'agent', 'schema', nspowner, nspacl from pg_namespace where nspname = 'agent'
        ) as given cross join lateral aclexplode(given.acl) as a
        where a.grantee <> given.owner and pg_has_role(given.owner, 'usage') group by 1, 2, 3, 4
    loop
        execute format('revoke all on %s %s from %s cascade', _given.kind, _given.name, _given.role);
        if not _given.expected then
            raise notice using message = format('role %s has no rights to %s %s any more:'
                ' make it a member of agent_operator or agent_producer'
                , _given.role, _given.kind, _given.name);
        end if;
    end loop;
end $$;

do $$
declare
    _inserting text := 'insert_event insert_events insert_requests take_answers fire_trigger answer_dispatch'
        ' takes_events note_dropped announce_sockets';
    _working text := 'claim_event note_timeline claim_events claim_apart peek_lanes share_kind'
        ' delete_event extend_leases note_event rescue_events rescue_worker release_unknown open_session'
        ' watch_sessions sweep_events delete_expired_events children answer_event'
        ' answer_requests order_kinds introduce_worker declare_attempts due_cron next_cron fire_cron'
        ' note_cron announce_worker retire_worker free_groups touch_worker worker_drained declare_limits'
        ' take_position position_free leave_position pass_on lease_slack_calls delay_slack_calls store_step'
        ' cut_step due_waits outlast store_tags open_step stored_steps step_result end_sleeps rerun_chain'
        ' take_signal run_child end_children send_signal gather ended_followers cancelled_claims live_event'
        ' cancel_job live_messages replace_message drop_history await_installation other_reporter'
        ' erase_uninstalled count_usage read_usage thread_events set_rule read_rules drop_rule store_said'
        ' rate_turn remind_feedback dead_share said_since_turn stop_turns'
        ' settle complete_events waiting_messages joined_turn';
    -- A program that puts jobs into the queue sees and changes no other event.
    _producing text := 'enqueue enqueue_jobs fan_out signal finish_step';
    _enqueuing text := _producing
        || ' cancel_event cancel_live signal_event reschedule_event set_cron delete_cron read_cron';
    _operating text := 'rerun_events rerun_as_new search_jobs pause_kind resume_kind queue_stats find_events'
        ' list_jobs why_waiting children cancel_job cancel_jobs list_steps rerun_chain list_replies'
        ' worker_alive alive_for priority_of list_workers free_groups list_limits set_limit reset_limit'
        ' begin_action continue_action list_actions use_id read_action count_jobs expire_jobs pause_cron'
        ' run_cron drain_worker narrow_jobs group_jobs message_jobs longest_waiting count_versions'
        ' recent_figures list_kinds limit_use firings list_running list_questions workflow workflow_below'
        ' list_workflows preview_erasure begin_erasure read_said erase_step foreign_locks list_erasures'
        ' retire_data_key destroy_data_keys find_dropped list_sockets first_calls wrong_head damaged_seals';
    _reading text := 'schema_version own_timeline measure_queue clock to_timestamptz from_timestamptz';
    -- Tokens, for the services that have the keys. Programs do not read sealed ones.
    _installing text := 'save_installation find_installation delete_installation use_oauth_state uninstall'
        ' end_refresh';
    _refreshing text := 'begin_refresh expiring_installations add_account';
    -- Useless to read without SURELANE_ENCRYPTION_KEYS, but writing can destroy them.
    _rotating text := 'installations_to_seal seal_installation data_keys_to_seal seal_data_key'
        ' leave_data_key';
    _opening text := 'data_key find_data_keys'; _sealing text := _opening || ' add_data_key';
    _grant record; _function regprocedure;
begin
    for _grant in
        select * from (values
            ('agent_ingest', array[_inserting, _installing, _sealing
                , 'note_report wake_connected schema_version measure_queue own_timeline']),
            ('agent_worker', array[_working, _installing, _refreshing, _sealing, _enqueuing, _reading]),
            ('agent_operator', array[_enqueuing, _sealing, _rotating, _operating, _reading]),
            ('agent_producer', array[_producing, _opening])) as wanted (role_name, functions)
        where exists (select from pg_roles where rolname = role_name)
    loop
        execute format('grant usage on schema agent to %I', _grant.role_name);
        for _function in
            select p.oid::regprocedure
            from string_to_table(array_to_string(_grant.functions, ' '), ' ') as given (name)
            left join pg_proc as p on p.pronamespace = 'agent'::regnamespace and p.proname = given.name
        loop
            -- An error where there is no such function.
            execute format('grant execute on function %s to %I', _function, _grant.role_name);
        end loop;
    end loop;
    -- Workers vacuum the live queue.
    if exists (select from pg_roles where rolname = 'agent_worker')
        and current_setting('server_version_num')::int4 >= 170000 then
        grant maintain on agent.event to agent_worker;
    end if;
    if exists (select from pg_roles where rolname = 'agent_operator') then
        -- Much of it for surelane verify: all that the queue keeps but payloads, results and keys.
        grant select on agent.job, agent.schedule_queue, agent.kind, agent.cron, agent.worker, agent.retention
            , agent.model_usage, agent.feedback, agent.measurement, agent.arriving
        , agent.limit_state, agent.limit_note, agent.kind_limit, agent.band, agent.install_wait
        , agent.other_report, agent.slack_limit, agent.event_hist_outlier, agent.socket to agent_operator;
        grant select on sequence agent.event_id_seq, agent.signal_id_seq, agent.operator_action_id_seq
            , agent.erasure_id_seq, agent.dropped_id_seq
        to agent_operator;
        grant select (id, event_ts, attempts, vt, claimed, kind, item_key, dedupe_key, group_key, head, lane
            , max_attempts, deadline, enqueued_at
            , claimed_by, heartbeat_at, retrying, cancelled_by, errors, notes, changes, waits_for
            , fails_with_children, continuation_id)
        on agent.event to agent_operator;
        grant select (id, event_ts, attempts, kind, item_key, group_key, claimed, enqueued_at, outcome, reason
            , changes, notes, waits_for, finished_at)
        on agent.event_hist to agent_operator;
        grant select (event_id, name, nth, sort, event_ts, attempt, started_at, due_at, finished_at)
            on agent.step to agent_operator;
        grant select (id, event_id, name, taken_by, sent_at) on agent.signal to agent_operator;
        grant select (event_id, waits_until) on agent.request to agent_operator;
        grant select (id, place, until, after, asked_at, finished_at) on agent.erasure to agent_operator;
        grant select (owner_id, refreshing_until) on agent.installation to agent_operator;
        grant select (id, at) on agent.dropped, agent.operator_action to agent_operator;
    end if;
end $$;
