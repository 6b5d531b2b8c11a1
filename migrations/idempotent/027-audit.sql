-- What is kept of operators: their actions, and which sessions and links count no more.
--   use_id: sessions that were signed out, links and sign-ins that were used; the page
--   begin_action, continue_action: keep what operators do; every change
--   list_actions, read_action: operators

-- Whether an id of the operator's page is unused. With _until it is used from now on. It is kept
-- until an hour after that time, because clocks differ. Some that are older go.
create or replace function agent.use_id(_id text, _until timestamptz) returns boolean
language plpgsql security definer set enable_seqscan = off as $$ begin
    if _until is null then return not exists (select from agent.used_id where id = _id); end if;
    delete from agent.used_id where id in (
        select id from agent.used_id where expires_at < (select agent.clock()) - interval '1 hour' limit 20
        for update skip locked);
    insert into agent.used_id (id, expires_at) values (_id, _until) on conflict do nothing;
    return found;
end $$;

-- Begins an action of an operator: keeps who does what, and names them for what this transaction
-- changes. A work of many transactions calls it in the first one, and continue_action in the
-- others. Returns the action's id. Actions that are older than 400 days go, some at a time.
create or replace function agent.begin_action(_who text, _via text, _action text, _target text, _detail jsonb)
returns int8 language plpgsql security definer as $$ declare _id int8;
begin
    delete from agent.operator_action where id in (
        select id from (select id, at from agent.operator_action order by id limit 100) as oldest
        where at < (select agent.clock()) - interval '400 days' for update skip locked);
    insert into agent.operator_action (at, who, via, role, action, target, detail)
    values (agent.clock(), left(coalesce(nullif(_who, ''), session_user), 200), _via, session_user
        , left(_action, 100), left(_target, 300), coalesce(_detail, '{}'))
    returning id into _id;
    perform set_config('surelane.acting', left(_who, 200), true);
    return _id;
end $$;

-- Stores what an action has done so far, and names who acts for what this transaction changes.
-- _over: it has ended. Nothing can be added to an action after that.
create or replace function agent.continue_action(_id int8, _result jsonb, _over boolean) returns void
language sql security definer begin atomic
    update agent.operator_action set result = coalesce(_result, result), seen_at = agent.clock()
    , finished_at = case when _over then agent.clock() end where id = _id and finished_at is null;
    select set_config('surelane.acting', (select who from agent.operator_action where id = _id), true);
end;

create or replace function agent.list_actions(_before int8, _target text, _limit int4)
returns setof agent.operator_action language plpgsql stable security definer
set plan_cache_mode = force_custom_plan set enable_seqscan = off as $$ begin
    return query select a.* from agent.operator_action as a
    where (_before is null or a.id < _before) and (_target is null or a.target = _target)
    order by a.id desc limit least(greatest(_limit, 1), 1000);
end $$;

create or replace function agent.read_action(_id int8) returns setof agent.operator_action
language sql stable security definer as $$ select * from agent.operator_action where id = _id $$;
