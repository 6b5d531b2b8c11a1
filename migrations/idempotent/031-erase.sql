-- What a person or a workspace wrote is erased from queue, history and steps (ADR 0060).
--   given_names, as_words, closes_erased, find_named, named_rows: what it looks for
--   cancel_erased, end_erased, erase_names: parts of a step
--   about_events, named_installation, whole_workspace, data_key_lingers: parts of erasing
--   hashed: the names in its receipt
--   preview_erasure, list_erasures: operators, before and after
--   begin_erasure, erase_step: operators, and workers after an uninstall

-- Checks and returns the ids of a filter: people's, workspaces' and channels', letters and digits.
create or replace function agent.given_names(_filter jsonb) returns text[]
language plpgsql immutable parallel safe as $$
declare _names text[] := array(select value from jsonb_each_text(jsonb_strip_nulls(_filter)));
begin
    if exists (select from unnest(_names) as name where name !~ '^[A-Za-z0-9]{2,50}$') then
        raise invalid_parameter_value
            using message = 'an id to erase has 2 to 50 letters and digits, such as U012AB3CD';
    elsif _names = '{}' then
        raise invalid_parameter_value using message = 'name a user, a workspace or a channel';
    end if;
    return _names;
end $$;

-- Patterns for texts with an id as a word of its own. An escape's letter ("\nU1") is no part of it.
-- Beside an encrypted value a hash stands for an id without a digit.
create or replace function agent.as_words(_names text[]) returns text[]
language sql immutable parallel safe
return array(
    select E'(^|[^A-Za-z0-9]|\\\\[bfnrt])(' || name || case when name ~ '[0-9]' then ''
        else '|' || left(encode(sha256(convert_to(name, 'UTF8')), 'hex'), 16) end || ')($|[^A-Za-z0-9])'
    from unnest(_names) as name);

-- Whether a job closes what an erased event left open in Slack. Its text may name the person in
-- words, so an erasure takes each of them, of any id.
create or replace function agent.closes_erased(_kind text, _payload jsonb) returns boolean
language sql immutable parallel safe return _kind = 'surelane.close' and _payload ? 'erased';

-- Among the _limit events after id _after, up to _until: the events that have all the names in the
-- row, the steps or the signals, and jobs that close what erased events left open. _place is event
-- (live), event_hist, or step: steps and signals of events that were removed by hand. Of history
-- only the first chunk that ends after _part, with the ended children of what it finds there. Each
-- look is by an index. Returns the events, how many it looked at, the last of these, and the range
-- of the chunk; last_id is null at its end, until_ts at the end of history.
create or replace function agent.find_named
( _names text[], _place text, _part timestamptz, _after int8, _until int8, _limit int4, out ids int8[]
, out seen int4, out last_id int8, out from_ts timestamptz, out until_ts timestamptz)
language plpgsql security definer
set plan_cache_mode = force_custom_plan set enable_bitmapscan = off set enable_sort = off
set enable_hashjoin = off set enable_mergejoin = off as $$
declare
    -- Quicker than a pattern, where an id stands there as it is.
    _likes text[] := array(select '%' || name || '%' from unnest(_names) as name where name ~ '[0-9]');
    _words text[] := agent.as_words(_names); _window int8[]; _rows text[]; _closing boolean[];
begin
    if _place = 'event' then
        select array_agg(e.id), array_agg(e.said), array_agg(e.closing) into _window, _rows, _closing
        from (select id, e::text as said, agent.closes_erased(kind, event) as closing from agent.event as e
            where id > _after and (id <= _until or agent.closes_erased(kind, event)) order by id
            limit _limit) as e;
    elsif _place = 'event_hist' then
        select part.first, part.last into from_ts, until_ts from agent.history_part(_part) as part;
        select array_agg(h.id), array_agg(h.said), array_agg(h.closing) into _window, _rows, _closing
        from (
            select id, h::text as said, agent.closes_erased(kind, event) as closing
            from agent.event_hist as h where event_ts >= from_ts and event_ts < until_ts and id > _after
            and (id <= _until or agent.closes_erased(kind, event)) order by id limit _limit) as h;
    else
        _window := array(
            select s.event_id from (
                (select distinct event_id from agent.step where event_id > _after and event_id <= _until
                order by event_id limit _limit)
                union
                (select distinct event_id from agent.signal where event_id > _after and event_id <= _until
                order by event_id limit _limit)
            ) as s order by s.event_id limit _limit);
    end if;
    seen := coalesce(cardinality(_window), 0);
    last_id := case when seen = _limit then _window[seen] end;
    select array_agg(said.id) into ids
    from (
        select w.id, w.closing, concat_ws(' ', w.said
            , (select string_agg(s::text, ' ') from agent.step as s where s.event_id = w.id)
            , (select string_agg(s::text, ' ') from agent.signal as s where s.event_id = w.id)) as text
        from unnest(_window, _rows, _closing) as w (id, said, closing) offset 0) as said
    where said.closing or said.text like all(_likes) and said.text ~ all(_words);
    ids := coalesce(ids, '{}');
    if _place = 'event_hist' and ids <> '{}' then
        ids := array(
            with recursive below as (
                select unnest(ids) as id union
                select child.id from below
                cross join lateral (select h.id from agent.event_hist as h
                    where h.continuation_id = below.id and h.id <= _until offset 0) as child)
            select below.id from below);
    end if;
end $$;

-- Counts in one bounded step what an erasure would remove. _at is where to begin: null at first,
-- then what the step before returned. Returns {"at", "seen", "of", "counts"}, the counts of this
-- step alone by table; at is null at the end.
create or replace function agent.preview_erasure
( _filter jsonb, _at jsonb default null, _limit int4 default 500) returns jsonb
language plpgsql security definer set enable_seqscan = off as $$
declare
    _names text[] := agent.given_names(_filter);
    _place text := coalesce(_at ->> 'place', 'event');
    _until int8 := coalesce((_at ->> 'until')::int8, (select last_value from agent.event_id_seq));
    _found record; _counts jsonb := '{}'; _of int8;
begin
    if _at is null then
        _counts := jsonb_build_object('installation', (
                select count(*) from agent.installation
                where agent.named_installation(_filter, owner_id, user_id))
            , 'data_key', (select nullif(count(*), 0) from agent.data_key
                where workspace = agent.whole_workspace(_filter))
            , 'dropped', nullif(agent.drop_notes(_names, false), 0)
            , 'limit_state', (select nullif(count(*), 0) from agent.limit_state
                where limit_key ~ all(agent.as_words(_names))))
            || (select jsonb_object_agg(name, case when name = 'cron' or places <> '{}'
                    then cardinality(places) end) from agent.named_rows(_names)
                where name not in ('install_wait', 'other_report', 'slack_limit'));
        _of := agent.about_events();
    end if;
    select * into _found
    from agent.find_named(_names, _place, coalesce((_at ->> 'part')::timestamptz, '-infinity')
        , coalesce((_at ->> 'after')::int8, 0), _until, _limit);
    _counts := _counts || case when _place = 'step' then '{}'
        else jsonb_build_object(_place, cardinality(_found.ids)) end
        || jsonb_build_object('step', (select count(*) from agent.step where event_id = any(_found.ids))
            , 'signal', (select count(*) from agent.signal where event_id = any(_found.ids)));
    return jsonb_strip_nulls(jsonb_build_object('seen', _found.seen, 'of', _of, 'counts', _counts, 'at', case
        when _found.last_id is not null
            then jsonb_build_object('place', _place, 'part', _at -> 'part', 'after', _found.last_id)
        when _place = 'event' then '{"place": "event_hist"}'
        when _found.until_ts is not null
            then jsonb_build_object('place', 'event_hist', 'part', _found.until_ts)
        when _place = 'event_hist' then '{"place": "step"}' end || jsonb_build_object('until', _until)));
end $$;

-- About how many events there are, live and in history: as the last vacuum or analyze counted.
create or replace function agent.about_events() returns int8 language sql stable security definer
return (
    select sum(greatest(c.reltuples, 0))::int8 from pg_class as c
    where c.oid in ('agent.event'::regclass, 'agent.event_hist'::regclass)
    or c.oid in (select inhrelid from pg_inherits where inhparent = 'agent.event_hist'::regclass));

-- Begins an erasure, or goes on with the unfinished one of the same filter. _filter is {"user",
-- "team", "channel"}, combined by "and". It covers the events that are stored now. Of a
-- whole workspace with a data key: the events stored once no process uses that key. Returns
-- its number, its hashes' key, if it goes on, and about how many events there are.
create or replace function agent.begin_erasure
( _filter jsonb, _by text, out id int8, out key text, out goes_on boolean, out about int8)
language plpgsql security definer as $$ begin
    perform agent.given_names(_filter);
    about := agent.about_events();
    select e.id, e.key into begin_erasure.id, begin_erasure.key from agent.erasure as e
    where e.finished_at is null and e.filter = agent.hashed(_filter, e.key) order by e.id limit 1;
    goes_on := found;
    if not found then
        begin_erasure.key := replace(gen_random_uuid()::text, '-', '');
        insert into agent.erasure (asked_by, filter, key, until)
        values (left(coalesce(_by, session_user), 200), agent.hashed(_filter, begin_erasure.key)
            , begin_erasure.key
        , case when agent.retire_data_key(agent.whole_workspace(_filter)) is null
            then (select last_value from agent.event_id_seq) else -1 end)
        returning erasure.id into begin_erasure.id;
    end if;
end $$;

create or replace function agent.named_installation(_filter jsonb, _owner_id text, _user_id text)
returns boolean language sql immutable parallel safe
return _filter ->> 'channel' is null
    and split_part(_owner_id, ' ', 1) = coalesce(_filter ->> 'team', split_part(_owner_id, ' ', 1))
    and _user_id = coalesce(_filter ->> 'user', _user_id);

-- The workspace of a filter that names nothing else. Its data key is destroyed.
create or replace function agent.whole_workspace(_filter jsonb) returns text
language sql immutable parallel safe
return case when jsonb_strip_nulls(_filter) - 'team' = '{}' then _filter ->> 'team' end;

-- How long after its retirement a data key is used: a minute, for which processes keep it, and some
-- seconds until what they encrypted is stored (surelane_encryption.data_keys).
create or replace function agent.data_key_lingers() returns interval
language sql immutable parallel safe return interval '75 seconds';

-- The filter of an erasure with its ids hashed: sha256 of "<key>:<name of the field>:<id>".
create or replace function agent.hashed(_filter jsonb, _key text) returns jsonb
language sql immutable parallel safe
return (
    select jsonb_object_agg(name, encode(sha256(convert_to(_key || ':' || name || ':' || id, 'UTF8')), 'hex'))
    from jsonb_each_text(jsonb_strip_nulls(_filter)) as given (name, id));

create or replace function agent.cancel_erased(_ids int8[], _by text) returns jsonb language plpgsql
as $$ begin
    return (
        select jsonb_build_object('cancelled', count(*) filter (where c.answer = 'cancelled')
            , 'running', count(*) filter (where c.answer = 'running'))
        from agent.cancel_jobs(_ids, _by, 'erased', true) as c);
end $$;

-- Ends events that cancel_jobs has answered as busy, or raises why that is impossible.
create or replace function agent.end_erased(_ids int8[], _by text) returns jsonb language plpgsql as $$ begin
    if cardinality(agent.lock_for_sweep(_ids)) < cardinality(_ids) then raise lock_not_available; end if;
    perform agent.archive_events(_ids, 'cancelled', format('cancelled by %s: erased', _by));
    return jsonb_build_object('cancelled', cardinality(_ids));
end $$;

-- Does one bounded step of an erasure. First it cancels the live events, and looks at the queue
-- again until each has ended: a running handler needs some seconds, and so does a worker that
-- closes in Slack what they left open; after a minute it is not waited for. A day after the erasure
-- began, what still runs is ended under its worker. Then it removes history, steps without an
-- event, schedules, limits' keys and tokens. A last look at the queue finds events that run again
-- meanwhile. Each step is kept when a later one fails. Of a whole workspace it destroys the data
-- key at the end, and waits at its beginning until no process encrypts with it. A row that refuses,
-- or that another transaction has locked, stops no other: the first hundred are in counts under
-- "left", each with its SQLSTATE. Returns where it is ("key" as it waits so; at the end "done", or
-- "left" where rows are left: the next step begins anew), how many events it looked at, how many
-- still run or are left, and what it removed.
create or replace function agent.erase_step
( _id int8, _filter jsonb, _limit int4 default 500, out place text, out seen int4, out waiting int4
, out counts jsonb) language plpgsql security definer
set plan_cache_mode = force_custom_plan set enable_seqscan = off set lock_timeout = '500ms' as $$
declare
    _names text[] := agent.given_names(_filter);
    _e agent.erasure; _found record; _done record; _more record; _ids int8[]; _closing int8[];
    _removed jsonb := '{}'; _left jsonb := '{}'; _over boolean;
begin
    select * into _e from agent.erasure as e where e.id = _id and e.finished_at is null for update;
    _over := _e.asked_at < clock_timestamp() - interval '1 day';
    if not found or _e.filter <> agent.hashed(_filter, _e.key) then
        raise invalid_parameter_value using message = format('no unfinished erasure %s has this filter', _id);
    end if;
    if _e.until < 0 then
        if agent.retire_data_key(_filter ->> 'team') < agent.data_key_lingers() then
            place := 'key'; seen := 0; waiting := 1; counts := _e.counts;
            return;
        end if;
        _e.until := (select last_value from agent.event_id_seq);
    end if;
    if _e.place <> 'event' or _e.after > 0 or _e.checking then -- else a pass begins
        _left := coalesce(_e.counts -> 'left', '{}');
    end if;
    waiting := 0;
    select * into _found from agent.find_named(_names, _e.place, _e.part, _e.after, _e.until, _limit);
    if _e.place = 'event' and _found.ids <> '{}' then
        _closing := array(select e.id from agent.event as e where e.id = any(_found.ids)
            and agent.closes_erased(e.kind, e.event) and e.event_ts > agent.clock() - interval '1 minute');
        _ids := agent.with_live_children(
            array(select unnest(_found.ids) except select unnest(_closing)), true);
        select * into _done
        from agent.in_halves(format('select agent.cancel_erased($1, %L)', _e.asked_by), _ids, 'event');
        select * into _more
        from agent.in_halves(format('select agent.end_erased($1, %L)', _e.asked_by), array(
                select id from agent.event where id = any(_ids) and (_over
                    or (claimed_by is null or vt <= agent.clock()) and (notes ? 'undo') is not true)
            ), 'event');
        waiting := case when _over then 0 else coalesce(_done.counts ->> 'running', '0')::int4 end
            + cardinality(_closing);
        _removed := agent.added(_done.counts - 'running', _more.counts);
        _left := _left || _done.kept || _more.kept;
        _e.found := _e.found or coalesce(_removed ->> 'cancelled', '0') <> '0';
        _e.waiting := _e.waiting + waiting;
    elsif _found.ids <> '{}' then
        select * into _done from agent.delete_ended(_found.ids, _found.from_ts, _found.until_ts);
        _removed := _done.counts; _left := _left || _done.kept;
        if _e.place = 'event_hist' and (_removed ->> 'event_hist')::int8 < cardinality(_found.ids) then
            -- Children in other chunks.
            select * into _done from agent.delete_ended(_found.ids, '-infinity', 'infinity');
            _removed := agent.added(_removed, _done.counts); _left := _left || _done.kept;
        end if;
    end if;
    if _found.last_id is not null then
        _e.after := _found.last_id;
    elsif _e.place = 'event_hist' and _found.until_ts is not null then
        _e.part := _found.until_ts; _e.after := 0;
    elsif _e.place = 'event' then
        place := case when not _e.checking or _e.found or _e.waiting > 0 then 'event'
            when _left <> '{}' then 'left' else 'done' end;
        if place = 'event' and not (_e.found or _e.waiting > 0) then
            _e.place := 'event_hist';
        else
            -- What was cancelled is in history, and may have stored a job.
            _e.checking := false;
        end if;
        if place <> 'event' then
            _removed := jsonb_build_object('data_key'
                , agent.destroy_data_keys(agent.whole_workspace(_filter), agent.data_key_lingers()));
        end if;
        if place = 'done' then
            _e.finished_at := clock_timestamp();
            _e.key := null;
        elsif place = 'left' then
            waiting := (select count(*) from jsonb_each(_left));
        end if;
        _e.after := 0; _e.waiting := 0;
        _e.found := false;
        _e.part := '-infinity';
    elsif _e.place = 'event_hist' then
        _e.place := 'step'; _e.after := 0;
    else
        select * into _done from agent.erase_names(_names, _filter, _e.asked_at);
        _removed := _removed || _done.counts; _left := _left || _done.kept;
        _e.place := 'event'; _e.checking := true; _e.after := 0;
    end if;
    _e.counts := agent.added(_e.counts - 'left', _removed) || case when _left = '{}' then '{}'
        else jsonb_build_object('left', (
                select jsonb_object_agg(key, value) from (select * from jsonb_each(_left) limit 100) as few))
        end;
    update agent.erasure as e set place = _e.place, part = _e.part, after = _e.after, found = _e.found
    , waiting = _e.waiting, checking = _e.checking
    , until = _e.until, counts = _e.counts, key = _e.key, finished_at = _e.finished_at where e.id = _id;
    place := case when place in ('done', 'left') then place else _e.place end;
    seen := _found.seen;
    counts := _e.counts;
end $$;

-- The places of the rows that have all names, by their tables: schedules, rules, usage, feedback,
-- and what waits for or remembers people. Locks none.
create or replace function agent.named_rows(_names text[]) returns table (name text, places tid[])
language sql stable security definer set jit = off as $$
    with words as materialized (select agent.as_words(_names) as "all")
    select 'cron', array(select ctid from agent.cron as c where c::text ~ all(words."all")) from words
    union all
    select 'rule', array(select ctid from agent.rule as r where r::text ~ all(words."all")) from words
    union all
    select 'model_usage', array(select ctid from agent.model_usage as u
        where concat_ws(' ', u.owner_id, u.user_id) ~ all(words."all")) from words
    union all
    -- A click may have been stored while its turn was erased.
    select 'feedback', array(
        select ctid from agent.feedback as f
        where concat_ws(' ', f.owner_id, f.user_id, f.channel) ~ all(words."all")
        or f.event_id > 0 and f.at > (select agent.clock()) - interval '1 hour'
        and not exists (select from agent.job as j where j.id = f.event_id)) from words
    union all
    select 'install_wait', array(select ctid from agent.install_wait
        where owner_id = any(_names) or user_id = any(_names))
    union all
    select 'other_report', array(select ctid from agent.other_report where owner_id = any(_names))
    union all
    select 'slack_limit', array(
        select ctid from agent.slack_limit as l where l.name ~ all(words."all")
        and coalesce(busy[cardinality(busy)], '-infinity') < (select agent.clock())) from words $$;

-- Removes the named rows, tokens that were there at _asked_at, and what limits and crowds remember
-- of the names where no live event needs it. Returns the counts, and what is left.
create or replace function agent.erase_names
( _names text[], _filter jsonb, _asked_at timestamptz, out counts jsonb, out kept jsonb)
language plpgsql security definer set jit = off as $$
declare _words text[] := agent.as_words(_names); _key record; _gone record;
begin
    counts := jsonb_build_object('dropped', agent.drop_notes(_names, true)); kept := '{}';
    for _key in
        select * from agent.named_rows(_names)
        union all
        select 'installation', array(select ctid from agent.installation
            where agent.named_installation(_filter, owner_id, user_id) and installed_at <= _asked_at)
    loop
        select * into _gone from agent.delete_rows(_key.name, _key.places);
        counts := counts || _gone.counts; kept := kept || _gone.kept;
    end loop;
    counts := counts - array['install_wait', 'other_report', 'slack_limit'];
    for _key in
        select kind, limit_key from agent.limit_state where limit_key ~ all(_words)
        union select kind, limit_key from agent.limit_note where limit_key ~ all(_words)
    loop
        continue when not agent.take_turn(agent.limit_turn(_key.kind, _key.limit_key))
        or (select true from agent.event as e where e.lane < 0 and e.head
            and (e.kind || ' ' || (e.changes #>> '{0,limit_key}')) collate "C" = (_key.kind || ' '
                || _key.limit_key) collate "C"
            order by e.lane::int4, e.vt limit 1);
        kept := kept || (agent.delete_rows('limit_note', array(
                    select ctid from agent.limit_note where kind = _key.kind and limit_key = _key.limit_key
                    for update skip locked))).kept;
        select * into _gone from agent.delete_rows('limit_state', array(
                select ctid from agent.limit_state where kind = _key.kind and limit_key = _key.limit_key
                for update skip locked));
        counts := agent.added(counts, _gone.counts); kept := kept || _gone.kept;
    end loop;
end $$;

create or replace function agent.list_erasures(_limit int4 default 100)
returns table (id int8, asked_at timestamptz, asked_by text, filter jsonb, counts jsonb
, finished_at timestamptz) language sql stable security definer
as $$ select e.id, e.asked_at, e.asked_by, e.filter, e.counts, e.finished_at from agent.erasure as e
    order by e.id desc limit _limit $$;
