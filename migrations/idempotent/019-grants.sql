-- The roles that services, operators and programs connect through. Roles belong to the cluster, not
-- to the database, and another database's migration may create them at this very moment.
do $$
declare
    _role text;
begin
    foreach _role in array array['agent_ingest', 'agent_worker', 'agent_operator', 'agent_producer'] loop
        if not exists (select from pg_roles where rolname = _role) then
            begin
                execute format('create role %I nologin', _role);
            exception
                when duplicate_object or unique_violation then
                    null;
                when insufficient_privilege then
                    raise notice 'role % is missing and this role may not create it; services must connect as the owner of schema agent', _role;
            end;
        end if;
    end loop;
end
$$;

-- Who may do what. Nothing is granted to PUBLIC; a role gets the functions it calls and no table.
revoke all on schema agent from public;
revoke execute on all functions in schema agent from public;

do $$
declare
    _inserting text := 'insert_event(jsonb), agent.insert_events(jsonb[], text[], text[])'
        ', agent.insert_requests(jsonb[], text[], text[], interval[], text), agent.take_answers(text, int8[], int8[]), agent.fire_trigger(text, text, jsonb, text)'
        ', agent.answer_dispatch(int8, text[], jsonb)';
    _working text := 'claim_event(int4, interval), agent.claim_events(text[], int4, int4, interval, text, timestamptz[], text[], int8)'
        ', agent.claim_events(text[], int4, int4, interval, text, timestamptz[]), agent.peek_events(text[], interval, int4, timestamptz[])'
        ', agent.peek_lanes(text[], interval, int4, timestamptz[]), agent.share_kind(text)'
        ', agent.settle(int8[], int4[], text[], jsonb[]), agent.complete_events(int8[], int4[], jsonb[]), agent.delete_event(int8), agent.extend_leases(int8[], int4[], interval)'
        ', agent.fail_events(int8[], int4[], jsonb[], interval[], boolean[], text[], int4), agent.release_events(int8[], int4[])'
        ', agent.snooze_event(int8, int4, interval), agent.note_event(int8, int4, jsonb), agent.rescue_events(interval)'
        ', agent.rescue_worker(text, int4, interval, text), agent.release_unknown(text, int8[], int4[], timestamptz), agent.open_session(text, text, boolean), agent.join_session(int4), agent.watch_sessions(text)'
        ', agent.sweep_events(int4, interval, text[], boolean, int4, boolean), agent.sweep_events(int4, interval, text[], boolean, int4), agent.delete_expired_events(int, interval)'
        ', agent.continue_event(int8, int4, jsonb, jsonb, jsonb), agent.children(int8), agent.await_event(int8, int4, timestamptz), agent.answer_event(int8, jsonb)'
        ', agent.answer_requests(int8[], int4[], text[]), agent.order_kinds(text, text[]), agent.introduce_worker(text, text, text[], text[], int4, int4)'
        ', agent.due_cron(), agent.next_cron(), agent.fire_cron(text, timestamptz, timestamptz[], timestamptz), agent.announce_worker(text, text[], text, interval, int4)'
        ', agent.announce_worker(text, text[], text, interval)'
        ', agent.retire_worker(text), agent.free_groups(text, int4), agent.touch_worker(text, interval), agent.worker_drained(text)'
        ', agent.declare_limits(text, text[], jsonb), agent.take_position(text[], int4), agent.position_free(text[], int4), agent.leave_position(text[], int4), agent.pass_on()'
        ', agent.lease_slack_calls(text[], int4[], float8[], int4[], int4[], float8[], float8), agent.delay_slack_calls(text, int4, float8, float8)'
        ', agent.store_step(int8, int4, text, int4, text, json, jsonb, interval, boolean), agent.read_steps(int8)'
        ', agent.take_signal(int8, int4, text, int4, interval), agent.send_signal(int8, text, json, boolean, text), agent.gather(int8, int4, int8[]), agent.ended_followers(int8)'
        ', agent.cancelled_claims(int8[], int4[]), agent.live_event(text), agent.cancel_job(int8, text, text, boolean)'
        ', agent.drop_history(interval, int8, int4), agent.await_installation(int8, boolean, text, timestamptz), agent.other_reporter(int8)'
        ', agent.erase_uninstalled(interval, text, int4)';
    -- A program that puts jobs into the queue sees and changes no other event.
    _producing text := 'enqueue(text, jsonb, text, timestamptz, int4, text, text, text, timestamptz, text, text)'
        ', agent.enqueue(text, jsonb, int4, text, timestamptz, int4, text, text, text, timestamptz, text, text), agent.enqueue_jobs(jsonb, text)'
        ', agent.fan_out(jsonb, jsonb, int8), agent.signal(text, text, jsonb)';
    _enqueuing text := _producing || ', agent.cancel_event(text), agent.cancel_live(text, text, text, boolean)'
        ', agent.signal_event(int8, text, json), agent.reschedule_event(text, timestamptz)'
        ', agent.set_cron(text, text, text, timestamptz, jsonb, text, text, boolean)'
        ', agent.set_cron(text, text, text, timestamptz, jsonb, text, text, boolean, int4), agent.delete_cron(text), agent.read_cron()';
    _operating text := 'requeue_events(int8[]), agent.replay_event(int8, text, jsonb), agent.search_jobs(text[], text[], timestamptz, int4), agent.pause_kind(text), agent.resume_kind(text), agent.queue_stats(), agent.find_events(text)'
        ', agent.list_jobs(text[], text[], text, timestamptz, timestamptz, timestamptz, int8, int4), agent.why_waiting(int8, int4)'
        ', agent.children(int8), agent.cancel_job(int8), agent.cancel_jobs(int8[]), agent.cancel_job(int8, text, text, boolean)'
        ', agent.cancel_jobs(int8[], text, text, boolean), agent.list_steps(int8), agent.list_replies(int8, timestamptz), agent.worker_alive(timestamptz), agent.alive_for(), agent.priority_of(int4), agent.list_workers(), agent.free_groups(text, int4)'
        ', agent.list_limits(), agent.set_limit(text, int4, int4, interval, text), agent.reset_limit(text)'
        ', agent.begin_action(text, text, text, text, jsonb), agent.continue_action(int8, jsonb, boolean), agent.list_actions(int8, text, int4)'
        ', agent.read_action(int8), agent.count_jobs(text[], text[], text, timestamptz, timestamptz, int4), agent.expire_jobs(int8[], text)'
        ', agent.pause_cron(text, boolean, timestamptz), agent.run_cron(text), agent.drain_worker(text, boolean)'
        ', agent.narrow_jobs(text[], text[], text, timestamptz, timestamptz, timestamptz, int8, int4, text, text, text, text, text[])'
        ', agent.group_jobs(text, int4), agent.message_jobs(text[], text, numeric, text), agent.longest_waiting(int4), agent.recent_figures(int4, int4)'
        ', agent.list_kinds(text, text, int4), agent.limit_use(text[]), agent.firings(text[], timestamptz[], timestamptz[]), agent.list_running(text, int4)'
        ', agent.list_questions(timestamptz, int8, int4), agent.workflow(int8), agent.workflow_below(int8, int8, int4)'
        ', agent.list_workflows(timestamptz, int8, int4)'
        ', agent.preview_erasure(jsonb, jsonb, int4), agent.begin_erasure(jsonb, text), agent.erase_step(int8, jsonb, int4), agent.list_erasures(int4), agent.retire_data_key(text), agent.destroy_data_keys(text, interval)';
    _reading text := 'schema_version(), agent.measure_queue(), agent.clock(), agent.to_timestamptz(numeric), agent.to_timestamptz(text), agent.from_timestamptz(timestamptz)';
    -- Tokens, for the services that have the keys. Programs do not read sealed ones.
    _installing text := 'save_installation(boolean, text, text, text[], jsonb[], bytea[], timestamptz[]), agent.find_installation(boolean, text, text)'
        ', agent.delete_installation(boolean, text, text[], timestamptz)'
        ', agent.use_oauth_state(bytea, timestamptz), agent.uninstall(boolean, text, text, timestamptz)';
    _refreshing text := 'begin_refresh(boolean, text, text, int8, interval)'
        ', agent.end_refresh(boolean, text, text, int8, bytea, timestamptz), agent.expiring_installations(interval, int4)';
    -- Sealed values are of no use without SURELANE_ENCRYPTION_KEYS. But writing them can destroy
    -- them.
    _rotating text := 'installations_to_seal(int4, text, boolean, text), agent.seal_installation(text, boolean, text, bytea, bytea)'
        ', agent.data_keys_to_seal(int4, bytea), agent.seal_data_key(bytea, bytea, bytea), agent.leave_data_key(bytea, bytea)';
    _opening text := 'data_key(text), agent.find_data_keys(bytea[])';
    _sealing text := _opening || ', agent.add_data_key(text, bytea, bytea)';
    _grant record;
begin
    for _grant in
        select * from (values
            ('agent_ingest', array[_inserting, _installing, _sealing, 'note_report(int8, boolean, text), agent.schema_version(), agent.measure_queue()']),
            ('agent_worker', array[_working, _installing, _refreshing, _sealing, _enqueuing, _reading]),
            ('agent_operator', array[_enqueuing, _sealing, _rotating, _operating, _reading]),
            ('agent_producer', array[_producing, _opening])
        ) as wanted (role_name, functions)
        where exists (select from pg_roles where rolname = role_name)
    loop
        execute format('grant usage on schema agent to %I', _grant.role_name);
        execute format('grant execute on function agent.%s to %I', array_to_string(_grant.functions, ', agent.'), _grant.role_name);
    end loop;
    if exists (select from pg_roles where rolname = 'agent_operator') then
        grant select on agent.job, agent.schedule_queue, agent.kind, agent.cron, agent.worker, agent.retention to agent_operator;
    end if;
end
$$;
