-- The rules that `surelane verify` checks, one table. A look selects rows of a table, in an order
-- that an index has; the reader adds a limit. A rule is a condition on rows of the look before it,
-- `e`, that none may meet, or a query over `looked` for the names of wrong rows. `now` is the
-- queue's clock. In an advice, ID stands for what the finding names. An advice that ends in SQL is
-- for the schema's owner. The doctor has the quick rules, too. A column is looked at alone, then
-- against others.

-- look: live
-- table: agent.event
-- name: 'event ' || e.id
select id, event_ts, attempts, vt, claimed, kind, item_key, dedupe_key, group_key, head, lane, max_attempts
, deadline, enqueued_at, claimed_by, heartbeat_at, retrying, cancelled_by, waits_for, fails_with_children
, continuation_id, changes
, jsonb_typeof(errors) as errors, coalesce(jsonb_typeof(notes), 'object') as notes, notes ? 'undo' as undoing
from agent.event order by id;

-- rule: times
-- means: events whose time is impossible: -infinity, or stored, claimed or renewed in the future
-- advice: give it back, and set what is wrong
e.vt = '-infinity' or e.enqueued_at > now + interval '1 min' or e.heartbeat_at > now + interval '1 min'
or e.claimed[array_upper(e.claimed, 1)] > now + interval '1 min' or e.event_ts > now + interval '25 hours';
update agent.event set vt = agent.clock(), enqueued_at = least(enqueued_at, agent.clock()), claimed_by = null
, event_ts = least(event_ts, agent.clock()), heartbeat_at = null
, claimed = array_fill(agent.clock(), array[cardinality(claimed)]) where id = ID;

-- rule: claim numbers
-- means: claimed events without a time of the claim, an attempt or a name, or heartbeats without a
-- claim
-- advice: give it back
e.claimed_by is not null and (e.claimed = '{}' or e.claimed[array_upper(e.claimed, 1)] is null or e.attempts =
    0 or e.claimed_by = '')
or e.claimed_by is null and e.heartbeat_at is not null;
update agent.event set claimed_by = null, heartbeat_at = null, vt = agent.clock(), attempts = 0 where id = ID;

-- rule: attempts
-- means: events with more attempts than claims, or than their own maximum
-- advice: set the number
not (e.claimed_by is not null and e.claimed = '{}')
and (e.attempts < 0 or e.attempts > greatest(coalesce(array_upper(e.claimed, 1), 0), 0) or e.attempts >
    e.max_attempts);
update agent.event set attempts = least(attempts, max_attempts, coalesce(array_upper(claimed, 1),
    0)) where id = ID;

-- rule: leases
-- means: claims whose lease is longer than a day, so that a crash is noticed late
-- advice: end the lease
e.claimed_by is not null and e.vt > greatest(now, e.heartbeat_at, e.claimed[array_upper(e.claimed, 1)]) 
    + interval '1 day';
update agent.event set vt = agent.clock() where id = ID;

-- rule: shapes
-- means: events whose errors or changes are no list, whose notes are no object, or with empty
-- keys
-- advice: mend the column by hand; this empties or cuts it
e.errors <> 'array' or jsonb_typeof(e.changes) <> 'array' or e.notes <> 'object' or e.kind = ''
or '' in (e.item_key, e.dedupe_key, e.group_key) or greatest(length(e.item_key), length(e.dedupe_key),
    length(e.group_key)) > 300;
update agent.event set errors = case jsonb_typeof(errors) when 'array' then errors else '[]' end
, changes = case jsonb_typeof(changes) when 'array' then changes else '[]' end
, notes = case jsonb_typeof(notes) when 'object' then notes end, item_key = nullif(left(item_key, 200), '')
, dedupe_key = nullif(left(dedupe_key, 200), '') where id = ID;

-- rule: lanes
-- means: events in a lane that no claim reads
-- advice: put it into lane 0
e.lane not between -4 and 63;
update agent.event set lane = 0 where id = ID;

-- rule: arrivals
-- means: events of a workspace whose move here has not ended for an hour
-- advice: repeat the move, or move the workspace back
e.head and e.lane between 60 and 63
and not exists (select from agent.arriving where since > now - interval '1 hour');

-- rule: bands
-- means: events in a band that claims do not know of
-- advice: a worker's next sweep mends this
e.head and e.lane between 16 and 59 and e.claimed_by is null and not exists (
    select from agent.band as b where b.kind = e.kind and b.band = (e.lane - 12) / 4);
select agent.sweep_kinds();

-- rule: retries
-- means: events that wait for a retry, and were never claimed: their thread waits for them
-- advice: let them wait no more
e.retrying and (e.claimed = '{}' or e.claimed_by is not null or e.vt = 'infinity');
update agent.event set retrying = false where id = ID;

-- rule: awaited
-- means: events at infinity that await nothing: no child, and no answer until a deadline
-- advice: let it run
e.vt = 'infinity' and e.claimed_by is null and coalesce(e.waits_for, 0) <= 0
and (e.claimed = '{}' or e.deadline is null or e.deadline = 'infinity');
update agent.event set vt = agent.clock() where id = ID;

-- rule: children
-- means: events that wait for another number of children than they have
-- advice: count them anew
(e.waits_for is not null or e.fails_with_children or exists (select from agent.event as c where
    c.continuation_id = e.id and not c.changes @> '[{"action": "child of"}]'))
and coalesce(e.waits_for, 0) <> (select count(*) from agent.event as c where c.continuation_id = e.id and not
    c.changes @> '[{"action": "child of"}]');
with c as (
    select count(*)::int4 as n from agent.event where continuation_id = ID and
    not changes @> '[{"action": "child of"}]')
update agent.event set waits_for = c.n, vt = case when c.n > 0 then 'infinity'
    when vt = 'infinity' then agent.clock() else vt end
from c where id = ID;

-- rule: early
-- means: continuations that may run before their children have ended
-- advice: let it wait
e.waits_for > 0 and (e.vt < 'infinity' or e.claimed_by is not null);
update agent.event set vt = 'infinity', claimed_by = null, heartbeat_at = null, attempts = 0, retrying = false
where id = ID;

-- rule: parents
-- means: children whose parent is in neither queue nor history, or that wait for themselves
-- advice: nothing waits for it
e.continuation_id is not null and e.id in (
    with recursive up (id, nth) as (
        select e.continuation_id, 1
        union all select p.continuation_id, nth + 1 from up join agent.event as p using (id) where nth < 50)
    select id from up)
or e.continuation_id is not null
and e.enqueued_at > now - coalesce((select older_than from agent.retention), interval '100 years')
and not exists (select from agent.event as p where p.id = e.continuation_id)
and not exists (select from agent.event_hist as p where p.id = e.continuation_id);
update agent.event set continuation_id = null where id = ID;

-- rule: cancelled
-- means: events that were asked to end as they ran, and now do not run: their threads wait behind
-- them
-- advice: cancel it again
e.cancelled_by is not null and e.claimed_by is null and (e.attempts = 0 or e.vt > now + interval '5 s');
select agent.cancel_job(ID);

-- rule: swept
-- means: events that sweeps should have ended long ago: their attempts or their deadline are over
-- advice: see that a worker sweeps, or
e.vt < now - interval '10 min' and e.head and not e.undoing is true
and (e.deadline < now - interval '10 min' or e.attempts > 0 and e.cancelled_by is not null
    or e.attempts >= coalesce(e.max_attempts, (select k.max_attempts from agent.kind as k where k.kind =
    e.kind), 1000000))
and not exists (select from agent.kind as k where k.kind = e.kind and k.paused)
and exists (select from agent.worker as w where w.died_at is null and w.seen_at > now - interval '90 s' and
    w.started_at < now - interval '10 min');
select agent.sweep_events(3);

-- rule: kinds
-- means: events of kinds that agent.kind lacks, so that nothing claims them
-- advice: a worker's next sweep mends this
not exists (select from agent.kind as k where k.kind = e.kind);
select agent.sweep_kinds();

-- rule: unparked
-- means: events of a limited kind beside its limit, or parked ones whose kind has none
-- advice: put it where claims look
e.head and e.claimed_by is null and e.vt < 'infinity' and coalesce((select l.parks from agent.kind_limit as l
    where l.kind = e.kind), false) <> (e.lane < 0)
and not exists (select from agent.limit_note as n where n.kind = e.kind and n.limit_key = '');
update agent.event as e set lane = agent.lane_for(e.kind, agent.priority_of(e.lane), e.group_key,
    e.event), changes = case
    when l.parks then agent.with_limit_key(e.changes, agent.limit_key(e.kind, e.event,
    e.changes #>> '{0,limit_key}'))
    else e.changes end
from agent.event as i left join agent.kind_limit as l on l.kind = i.kind where i.id = ID and e.id = i.id;

-- rule: limit keys
-- means: parked events without the key of their limit
-- advice: give it its key
e.head and e.lane between -4 and -1 and jsonb_typeof(e.changes) = 'array' and e.changes #>> '{0,limit_key}' is
    null
and exists (select from agent.kind_limit as l where l.kind = e.kind and l.parks);
update agent.event set changes = agent.with_limit_key(changes, agent.limit_key(kind, event, null)) where id =
    ID;

-- rule: limit notes
-- means: parked events that no claim finds, as their limit's note is missing
-- advice: a worker's next sweep notes them
e.head and e.lane between -4 and -1 and e.claimed_by is null and e.cancelled_by is null
and e.vt < now - interval '5 min' and e.attempts < coalesce(e.max_attempts, (select k.max_attempts from
    agent.kind as k where k.kind = e.kind), 3)
and exists (select from agent.kind as k where k.kind = e.kind and not k.paused)
and not exists (select from agent.limit_note as n where n.kind = e.kind and n.limit_key in (e.changes #>>
    '{0,limit_key}', '')
    and n.due_at < now + interval '25 hours');
select agent.note_parked(array[ID], false);

-- rule: waits
-- means: suspended events whose waits nothing ends: none is open, the signal of the only one has
-- come, or all have passed
-- advice: let it look
e.claimed_by is null and e.claimed <> '{}' and e.vt > now + interval '5 years' and e.vt < 'infinity'
and (select count(*) = count(g.id) from agent.step as s
    left join lateral (select id from agent.signal as g where g.event_id = e.id and g.name = s.name
    and g.taken_by is null limit 1)
    as g on true where s.event_id = e.id and s.sort = 'wait' and s.finished_at is null having count(*) < 2)
-- An operator may have moved it to another time.
or e.claimed_by is null and not e.retrying and e.vt > now + interval '1 min'
and not e.changes @> '[{"action": "rescheduled"}]'
and (select bool_and(coalesce(s.due_at < now - interval '1 min', false)) from agent.step as s
    where s.event_id = e.id and s.sort in ('sleep', 'wait') and s.finished_at is null);
update agent.event set vt = agent.clock() where id = ID;

-- look: claims
-- table: agent.event
-- name: format('event %s, claim %s of %s', e.id, array_upper(e.claimed, 1), e.claimed_by)
select id, kind, vt, claimed, claimed_by, heartbeat_at, lane, head, changes #>> '{0,limit_key}' as key
from agent.event where attempts > 0 and vt > agent.clock() and claimed_by is not null order by vt;

-- rule: claims
-- means: claims of workers that are gone
-- advice: start a worker, which ends them; if one runs, end the transaction that has these rows
-- locked; by hand
-- quick
select format('event %s, claim %s of %s', e.id, array_upper(e.claimed, 1), e.claimed_by)
from looked as e cross join moment left join agent.list_workers() as w on w.name = e.claimed_by
where w.name is not null and e.heartbeat_at < now - interval '7 min'
or w.state = 'died' and w.died_at < now - interval '30 s' or w.state = 'lost' and w.seen_at < now - interval
    '90 s';
update agent.event set vt = agent.clock() where id = ID;

-- rule: unknown claims
-- means: claims under names that no worker, role or session has, or without heartbeats for long
-- advice: end the claim
-- quick
not exists (select from agent.worker as w where w.name = e.claimed_by) and (
    e.heartbeat_at < now - interval '7 min'
    or not exists (select from pg_roles as r where r.rolname = e.claimed_by)
    and not exists (select from pg_stat_activity as a where a.application_name = e.claimed_by));
update agent.event set vt = agent.clock() where id = ID;

-- rule: limit slots
-- means: running events that their limit does not count, so that more may run than it allows
-- advice: the limit holds again once they have ended; or count them
-- quick
select 'event ' || e.id from looked as e join agent.list_limits() as l on l.kind = e.kind
where e.lane < 0 and e.head and l.concurrency is not null and e.claimed[array_upper(e.claimed, 1)] > coalesce(
    greatest(l.set_at, (select max(started_at) from agent.worker where e.kind = any(kinds))), '-infinity')
and (select e.id = any(s.running) from agent.limit_state as s where s.kind = e.kind and s.limit_key = e.key
    order by s.at desc limit 1) is not true;
update agent.limit_state as s set running = array_append(running, e.id) from agent.event as e
where e.id = ID and s.kind = e.kind and s.limit_key = e.changes #>> '{0,limit_key}';

-- look: limit states
-- table: agent.limit_state
-- name: format('key %s of %s', e.limit_key, e.kind)
select kind, limit_key, at, running, starts, counts, noted, long from agent.limit_state;

-- rule: limit counts
-- means: limits whose counts are impossible: below zero, of other lengths, or in the future
-- advice: let its rate count anew
cardinality(e.starts) <> cardinality(e.counts) or 0 > any(e.counts) or e.long < 0 or e.at > now + interval 
    '1 min'
or e.starts[cardinality(e.starts)] > now + interval '1 day';
update agent.limit_state set starts = '{}', counts = '{}', at = least(at, agent.clock()), long = 200
where format('key %s of %s', limit_key, kind) = 'ID';

-- look: groups
-- table: agent.event
-- name: 'group ' || e.key
select key from (with recursive walk (key) as (
    (select group_key from agent.event where not head order by group_key limit 1) union all
    select (select group_key from agent.event where not head and group_key > key order by group_key limit 1)
    from walk where key is not null) select key from walk where key is not null) as groups;

-- rule: group heads
-- means: groups without a head, or whose head is not the first that may run
-- advice: a worker's next sweep mends this; if it stays, no worker sweeps, or a transaction has the
-- rows locked
-- quick
agent.wrong_head(e.key);
select agent.free_groups();

-- rule: hands
-- means: groups that two workers hold at once
-- advice: end the claims of its members
-- quick
exists (select from agent.event as m join agent.event as h on h.group_key = m.group_key and h.head where
    m.group_key = e.key
    and not m.head and m.claimed_by <> h.claimed_by and m.vt > now);
update agent.event set claimed_by = null, heartbeat_at = null, vt = agent.clock()
where group_key = 'ID' and not head and claimed_by is not null;

-- look: newest
-- table: agent.event
-- name: 'event ' || e.id
select * from (
    (select id, item_key, event_ts, changes, true as live from agent.event order by id desc limit ($1 + 1) /
    2)
    union all
    (select id, item_key, event_ts, changes, false from agent.event_hist order by id desc limit ($1 + 1) / 2))
    as e;

-- rule: one row a key
-- means: events that are live and ended, or ended twice
-- advice: cancel what is live and done; find what stored the row again, and delete one of the two
exists (select from agent.event_hist as h where h.id = e.id and (e.live or h.event_ts <> e.event_ts))
-- A program may use a key again. A run that continues as a new one keeps it and its children's.
or e.item_key like 'Ev%' and e.item_key not like '%:%' and jsonb_typeof(e.changes) = 'array'
and not jsonb_path_exists(e.changes, '$[*] ? (@.action starts with "continu")')
and exists (select from agent.event_hist as h where h.item_key = e.item_key and h.id <> e.id
    and h.event_ts between e.event_ts - interval '1 day' and e.event_ts + interval '1 day');

-- look: ended
-- table: agent.event_hist
-- name: 'event ' || e.id
select id, event_ts, item_key, attempts, claimed, waits_for, enqueued_at, finished_at, outcome, reason, notes,
    changes
from agent.event_hist order by id desc;

-- rule: ends
-- means: ended events that cannot have ended so: in the future, complete before their children, or
-- failed for no reason
-- advice: set what is wrong
e.finished_at > now + interval '1 min' or e.finished_at < e.enqueued_at - interval '1 day' or e.attempts < 0
or e.outcome not in ('completed', 'failed', 'expired', 'cancelled') or e.outcome = 'completed' and e.waits_for
    > 0
or e.outcome <> 'completed' and e.reason is null;
update agent.event_hist set finished_at = least(finished_at, agent.clock()), attempts = greatest(attempts, 0)
, waits_for = case when outcome = 'completed' then least(waits_for, 0) else waits_for end
, reason = coalesce(reason, case when outcome <> 'completed' then 'unknown' end) where id = ID;

-- rule: outliers
-- means: ended events that lists of what ended pass over: their day and week are not in
-- agent.event_hist_outlier
-- advice: note them
e.finished_at - e.event_ts not between interval '-7 days' and interval '7 days' and not exists (
    select from agent.event_hist_outlier as o
    where o.finished_on = date_bin('1 day', e.finished_at, 'epoch') and o.event_week = date_bin('7 days',
    e.event_ts, 'epoch'));
insert into agent.event_hist_outlier select date_bin('1 day', finished_at, 'epoch'), date_bin('7 days',
    event_ts, 'epoch')
from agent.event_hist where id = ID;

-- rule: open messages
-- means: ended events that left a streamed message open in Slack, which no job closes
-- advice: close it in Slack, and note that
jsonb_path_exists(e.notes, '$.streams.* ? (@.stopped == false && exists (@.channel))') and not exists (
    select from agent.job as c where c.kind = 'surelane.close' and c.enqueued_by = coalesce(e.item_key,
    e.id::text)
    and coalesce(c.finished_at, 'infinity') >= e.finished_at);
update agent.event_hist set notes = notes - 'streams' where id = ID;

-- look: steps
-- table: agent.step
-- name: format('event %s, step %s', e.event_id, e.name)
select event_id, name, nth, sort, event_ts, attempt, started_at, due_at, finished_at from agent.step order by
    event_ts desc;

-- rule: steps
-- means: steps, waits and tags of events that are gone
-- advice: they stay until they are deleted; find what removed the event
e.event_ts > now - coalesce((select older_than from agent.retention), interval '100 years')
and not exists (select from agent.event as l where l.id = e.event_id) and not exists (select from
    agent.event_hist as h where h.id = e.event_id);
delete from agent.step where event_id = ID;

-- rule: step times
-- means: steps that began in the future, sleeps without an end, or with an impossible number
-- advice: end it
e.started_at > now + interval '1 min' or e.attempt < 0 or e.nth < -1 and e.name <> 'said'
or e.sort = 'sleep' and e.finished_at is null and (e.due_at is null or e.due_at = 'infinity');
update agent.step set started_at = least(started_at, agent.clock()), due_at = coalesce(due_at, agent.clock())
, attempt = greatest(attempt, 0) where event_id = ID;

-- look: signals
-- table: agent.signal
-- name: format('event %s, signal %s', e.event_id, e.name)
select id, event_id, name, taken_by, sent_at from agent.signal order by sent_at desc;

-- rule: signals
-- means: signals and answers for events that are gone
-- advice: find what removed the event
e.sent_at > now - coalesce((select older_than from agent.retention), interval '100 years')
and not exists (select from agent.event as l where l.id = e.event_id) and not exists (select from
    agent.event_hist as h where h.id = e.event_id);
delete from agent.signal where event_id = ID;

-- rule: taken signals
-- means: signals that a wait took which is not stored, or sent in the future: no wait gets them
-- advice: give it back
e.sent_at > greatest(now, clock_timestamp()) + interval '1 min' or e.taken_by is not null
and exists (select from agent.event as l where l.id = e.event_id)
and not exists (select from agent.step as s where s.event_id = e.event_id and s.name = e.name and s.nth =
    e.taken_by);
update agent.signal set taken_by = null, sent_at = least(sent_at, agent.clock()) where event_id = ID;

-- look: schedules
-- table: agent.cron
-- name: 'schedule ' || e.name
select name, kind, next_at, last_at, paused, problem from agent.cron order by name;

-- rule: schedules
-- means: schedules that do not fire: their next time is no time, or long past
-- advice: set it again
e.next_at not between '2000-01-01' and now + interval '30 years' or e.last_at > now + interval '1 min'
or not e.paused and e.problem is null and e.next_at < now - interval '10 min'
and exists (select from agent.worker as w where w.died_at is null and w.seen_at > now - interval '90 s' and
    w.started_at < now - interval '10 min');
update agent.cron set next_at = agent.clock() + interval '1 minute', last_at = least(last_at,
    agent.clock()) where name = 'ID';

-- look: workers
-- table: agent.worker
-- name: 'worker ' || e.name
select name, kinds, started_at, seen_at, died_at, drained_at, max_attempts, slots, interactive_slots, session
    from agent.worker order by name;

-- rule: workers
-- means: workers whose row is impossible: seen in the future, below zero, or with another one's
-- session
-- advice: remove it; if it lives, it comes back
greatest(e.started_at, e.seen_at, e.died_at, e.drained_at) > now + interval '1 min' or least(e.max_attempts,
    e.slots, e.interactive_slots) < 0
or e.name = '' or exists (select from agent.worker as o where o.session = e.session and o.name < e.name and
    o.died_at is null and e.died_at is null);
delete from agent.worker where name = 'ID';

-- look: kinds
-- table: agent.kind
-- name: 'kind ' || e.kind
select kind, paused, paused_at, handled_at from agent.kind order by kind;

-- rule: pauses
-- means: kinds that are paused since no time, resumed with one, or noted in the future
-- advice: set the times
(e.paused and e.paused_at is null) or (not e.paused and e.paused_at is not null) or greatest(e.paused_at,
    e.handled_at) > now + interval '1 min';
update agent.kind set paused_at = case when paused then agent.clock() end, handled_at = least(handled_at,
    agent.clock())
where kind = 'ID';

-- look: hangers
-- table: agent.request
-- name: format('%s of event %s', e.what, e.id)
select * from (
    select 'request' as what, event_id as id, waits_until as until, 'infinity'::timestamptz as since from
    agent.request
    union all select 'installation wait', event_id, until, 'infinity' from agent.install_wait
    union all select 'report', event_id, null, at from agent.other_report
    union all select 'rating', event_id, null, at from agent.feedback where event_id > 0) as e;

-- rule: hangers
-- means: requests, waits for an installation, reports and ratings of events that never were, or
-- without an end
-- advice: delete what hangs
e.until > now + interval '400 days' or e.id > coalesce(pg_sequence_last_value('agent.event_id_seq'), 0) or
    e.id < 0 or e.what = 'rating'
and e.since > now - coalesce((select older_than from agent.retention), interval '100 years')
and not exists (select from agent.event as l where l.id = e.id) and not exists (select from agent.event_hist
    as h where h.id = e.id);
delete from agent.request where event_id = ID; delete from agent.install_wait where event_id = ID;
delete from agent.other_report where event_id = ID; delete from agent.feedback where event_id = ID;

-- look: counters
-- table: agent.model_usage
-- name: 'model ' || e.model
select day, model, requests, input_tokens, output_tokens, cost from agent.model_usage order by day desc;

-- rule: usage
-- means: what models used is below zero, or of a day to come: budgets count it
-- advice: set it
least(e.requests, e.input_tokens, e.output_tokens) < 0 or e.cost < 0 or e.day > now::date + 1;
update agent.model_usage set requests = greatest(requests, 0), input_tokens = greatest(input_tokens, 0)
, output_tokens = greatest(output_tokens, 0), cost = greatest(cost, 0), day = least(day, agent.clock()::date)
where model = 'ID';

-- look: installations
-- name: e.named
select * from agent.damaged_seals(100) as e (named);

-- rule: seals
-- means: installations, data keys and payloads whose encrypted value is too short, or sealed by a
-- key that is gone
-- advice: install the app again; restore the key from a backup, or cancel the event: surelane
-- events cancel
true;

-- look: refreshes
-- table: agent.installation
-- name: 'installation of ' || e.owner_id
select owner_id, refreshing_until from agent.installation order by owner_id;

-- rule: refreshes
-- means: installations whose tokens one process refreshes for longer than an hour: no other may
-- advice: let another one refresh them
e.refreshing_until > now + interval '1 hour';
update agent.installation set refreshing_until = null where format('installation of %s', owner_id) = 'ID';

-- look: erasures
-- table: agent.erasure
-- name: 'erasure ' || e.id
select id, asked_at, finished_at from agent.erasure order by id desc;

-- rule: erasures
-- means: erasures that have not ended for a day
-- advice: repeat the command: surelane erase
e.finished_at is null and e.asked_at < now - interval '1 day';

-- look: positions
-- name: e.named
select * from (
    select 'agent.signal' as named, (select max(id) from agent.signal) as newest,
    pg_sequence_last_value('agent.signal_id_seq') as last
    union all select 'agent.operator_action', (select max(id) from agent.operator_action),
    pg_sequence_last_value('agent.operator_action_id_seq')
    union all select 'agent.erasure', (select max(id) from agent.erasure),
    pg_sequence_last_value('agent.erasure_id_seq')
    union all select 'agent.dropped', (select max(id) from agent.dropped),
    pg_sequence_last_value('agent.dropped_id_seq')
    union all select 'the end of erasure ' || id, greatest(until, 0),
    pg_sequence_last_value('agent.event_id_seq') from agent.erasure where finished_at is null
    union all select 'the place of erasure ' || id, after, until from agent.erasure where finished_at is null
    and place = 'event') as e;

-- rule: positions
-- means: sequences behind their rows, or positions ahead of the last id
-- advice: set the sequence; finish the erasure
e.newest > coalesce(e.last, 0);
select setval(pg_get_serial_sequence('ID', 'id'), (select max(id) from ID));

-- look: clocks
-- name: e.named
select * from (
    select 'agent.measurement' as named, due as at from agent.measurement where isfinite(due)
    union all select 'agent.measurement', 'infinity' where not exists (select from agent.measurement)
    union all select 'agent.retention', greatest(done_at, blocked_at) from agent.retention
    union all select 'agent.band', max(moved_to) from agent.band
    union all select 'agent.socket', max(seen_at) from agent.socket
    union all select 'agent.dropped', max(at) from agent.dropped
    union all select 'agent.feedback', max(at) from agent.feedback
    union all select 'agent.slack_limit', max(busy[cardinality(busy)]) - interval '1 day' from
    agent.slack_limit) as e;

-- rule: clocks
-- means: tables with a time in the future, or without their one row: what waits for that time waits
-- long
-- advice: delete the row of the future; of agent.measurement
e.at > now + interval '1 hour';
insert into agent.measurement (due) values ('-infinity') on conflict (only_row) do update
    set due = '-infinity';

-- look: partitions
-- name: e.named
select c.oid, c.oid::regclass::text as named from pg_inherits as i join pg_class as c on c.oid = i.inhrelid
    where i.inhparent = 'agent.event_hist'::regclass;

-- rule: partitions
-- means: parts of history that lack an index or a trigger
-- advice: make the index again, from the definition of agent.event_hist's; find who changed the
-- part
(select count(*) from pg_index as x where x.indrelid = e.oid and x.indisvalid) < (select count(*) from
    pg_index as x where x.indrelid = 'agent.event_hist'::regclass)
or exists (select from pg_trigger as t where t.tgrelid = e.oid and t.tgenabled = 'D');

-- rule: hypertable
-- means: history is no hypertable, although TimescaleDB is there
-- advice: run: python -m surelane_migrations apply --again
select 'agent.event_hist' from pg_extension where extname = 'timescaledb' and exists (select from
    agent.event_hist) and not exists (select from looked);
