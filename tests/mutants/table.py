"""Single faults, over all promises of docs/reliability.md, as changes of the sources.

Each is a slip that a programmer makes: a condition dropped, a wrong column, a missing call. In the text below

    # NAME: the promise that it breaks
    @ the file > the test files that should find it, below tests/ or from the root on
    - text that is there exactly once; more such lines are the lines that follow
    + what stands there instead
    ~ text ==> what stands there instead
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

PLACES = {
    "sql": "migrations/idempotent",
    "migrations": "migrations/src/surelane_migrations",
    "client": "shared/client/src/surelane",
    "service": "shared/service/src/surelane_service",
    "ingest": "services/ingest/src/surelane_ingest",
    "operator": "services/operator/src/surelane_operator",
    "worker": "services/worker/src/surelane_worker",
    "shards": "extensions/shards/src/surelane_shards",
    "encryption": "extensions/encryption/src/surelane_encryption",
}
"""How files begin in the table."""


@dataclass(slots=True)
class Edit:
    """A change of a file."""

    file: str
    old: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Mutant:
    """A fault: usually one edit, more where one slip has several places."""

    name: str
    promise: str
    tests: list[str] = field(default_factory=list)
    edits: list[Edit] = field(default_factory=list)


def read(table: str) -> Iterator[Mutant]:
    """Read a table. ``ValueError``: a line is none of these sorts."""
    mutant = Mutant("", "")
    for line in table.strip().splitlines():
        sort, text = line[:2].rstrip(), line[2:]
        if sort == "#":
            if mutant.name:
                yield mutant
            name, _, promise = text.partition(": ")
            mutant = Mutant(name, promise)
        elif sort == "@":
            file, _, tests = text.partition(" > ")
            place, _, rest = file.partition("/")
            mutant.edits.append(Edit(f"{PLACES[place]}/{rest}"))
            elsewhere = ("dev/", "extensions/")
            mutant.tests += [
                each if each.startswith(elsewhere) else f"tests/{each}" for each in tests.split()
            ]
        elif sort == "~":
            mutant.edits[-1].old, mutant.edits[-1].new = ([part] for part in text.split(" ==> "))
        elif sort in ("-", "+"):
            (mutant.edits[-1].old if sort == "-" else mutant.edits[-1].new).append(text)
        else:
            raise ValueError(f"not a line of a table of faults: {line}")
    yield mutant


TABLE = r"""
# skipped-members: claims do not pass over members that came first
@ sql/006-claim.sql > sql/test_group_kinds.py sql/test_group.py
~ if _followed then ==> if false then
# late-limits: limits are declared before the first claim
@ worker/sessions.py > fleet/test_limits.py sql/test_limits.py system/test_limits.py
-         await self._limit(engine)
-         if self.attempts:
+         if self.attempts:
# kept-claims: claims whose answer was lost are released
@ sql/012-lease.sql > fleet/test_outages.py sql/test_sessions.py fleet/test_workers.py
~ as e where e.attempts > 0 and e.vt > _now and e.claimed_by = _name ==> as e where false and e.claimed_by = _name
# kept-keys: a job that is replaced gets the new limit key
@ sql/004-job.sql > sql/test_limits.py sql/test_enqueue.py
~ where e.id = _found.id and _limit_key is not null ==> where false and _limit_key is not null
# idle-heads: a retry whose kind no worker claimed before leads its group once one does
@ sql/002-group.sql > sql/test_group_kinds.py
~ not head and retrying and (_among ==> not head and false and (_among
# early-retirement: a worker whose claims stand is not forgotten
@ sql/022-session.sql > sql/test_sessions.py fleet/test_sessions.py fleet/test_workers.py
-     if exists (select from agent.event where attempts > 0 and vt > _now and claimed_by = _name) then
+     if false then
# future-starts: a clock that jumps ahead and back does not block a rate
@ sql/009-limit-claim.sql > sql/test_limits.py sql/test_limit_races.py
- where began.at > _now - _limit.period and began.at <= _now + _limit.period / 100), 0));
+ where began.at > _now - _limit.period), 0));
@ sql/009-limit-claim.sql
-                     where began.at > _now - _limit.period and began.at <= _now + _limit.period / 100
-                 ) as latest
+                     where began.at > _now - _limit.period
+                 ) as latest
@ sql/009-limit-claim.sql
- where given.at > _now - _limit.period and given.at <= _now + _limit.period / 100 group by
+ where given.at > _now - _limit.period group by
# late-rescues: events of a worker that hangs run again within 6.5 minutes
@ worker/duties.py > fleet/test_leasing.py unit/test_worker_duties.py
-         rescued = await self.engine.rescue_events(DEAD_FOR)
+         rescued = await self.engine.rescue_events(2 * DEAD_FOR)
# refused-settles: an outcome that the server's state refuses is sent again
@ worker/settling.py > fleet/test_outages.py system/test_settling.py
~ elif isinstance(error, DatabaseUnavailable | TransientConflict): ==> elif isinstance(error, TransientConflict):
@ worker/settling.py
-         if not refuses_call(error):
-             return False
+         if not refuses_call(error):
+             return True
# blind-idlers: an idle worker finds out within 10 seconds that its connections hang
@ worker/assembly.py > fleet/test_outages.py
~ CLAIM_TIMEOUT = timedelta(seconds=5) ==> CLAIM_TIMEOUT = STATEMENT_TIMEOUT
@ service/pool.py
- if self._connection is not None and not self._turn.locked():
+ if self._connection is None and not self._turn.locked():
# repeated-questions: a reply whose answer was lost is found in Slack
@ worker/slack/marks.py > unit/test_slack_notes.py fleet/test_workers.py
~ if mark.get("event_id") == event.key else None ==> if mark.get("event_id") == event.id else None
# changed-answers: the first answer to a question counts
@ sql/016-wait.sql > fleet/test_asks.py sql/test_operator_actions.py
~ if _once then ==> if false then
@ sql/016-wait.sql
- signal, _held.attempts, _now, _now + _timeout, _now)
+ signal, _held.attempts, _now, _now + _timeout, null)
# older-claims-stand: a worker that lost its claim changes nothing
@ sql/001-event.sql > sql/test_settle_fences.py
~ return array_upper(_claimed, 1) = _claim and ==> return array_upper(_claimed, 1) >= _claim and
# returned-claims-stand: a claim ends as its event is returned
@ sql/001-event.sql > sql/test_settle_fences.py sql/test_settle.py
- = _claim and _claimed_by = coalesce(_worker, _claimed_by);
+ = _claim and (_worker is null or coalesce(_claimed_by, _worker) = _worker);
# strangers-settle: after a failover no worker settles the claim of another
@ sql/001-event.sql > sql/test_settle_fences.py sql/test_settle.py system/test_failover.py
~ and _claimed_by = coalesce(_worker, _claimed_by); ==> and _claimed_by is not null;
# unfenced-notes: a worker that lost its claim notes nothing
@ sql/012-lease.sql > sql/test_settle_fences.py
-         update agent.event set notes = _notes where id = any(_held);
+         update agent.event set notes = _notes where id = _id;
# unfenced-steps: a worker that lost its claim stores no step
@ sql/010-fence.sql > sql/test_settle_fences.py sql/test_model.py
-     select * into _held from agent.event where id = _id and agent.claim_stands(claimed_by, claimed, _claim)
+     select * into _held from agent.event where id = _id and claimed_by is not null
# busy-outcomes-dropped: an outcome of a locked event is sent again
@ worker/settling.py > fleet/test_leasing.py system/test_settling.py
-         self._end(settled)
-         self._busy(busy)
+         self._end(settled)
# renewed-after-cancel: a cancelled event ends within its grace
@ sql/012-lease.sql > sql/test_settle.py sql/test_model.py
- set vt = case when cancelled_by is null then _now + _invisible_for else vt end, heartbeat_at
+ set vt = _now + _invisible_for, heartbeat_at
# heartbeats-go-on: the lease of a cancelled handler is not renewed
@ worker/running/watching.py > fleet/test_durable.py
-             claim.cancelled = True
-             claim.lease_ends = min(claim.lease_ends, ends)
+             claim.lease_ends = min(claim.lease_ends, ends)
# lost-leases-unheard: a handler whose claim is lost stops
@ worker/leasing.py > fleet/test_leasing.py
-             elif answer is Settled.STALE:
-                 self._lose(claim)
+             elif answer is Settled.BUSY:
+                 self._lose(claim)
# suspended-workers-post: a worker that stood still posts nothing under a lost claim
@ worker/leasing.py > unit/test_worker_duties.py fleet/test_workers.py
-         if work.stopped == LOST:
-             await asyncio.sleep(0)
+         if False:
+             await asyncio.sleep(0)
# second-runs: after a failover that lost a claim, its worker does not handle the event twice at once
@ worker/leasing.py > unit/test_worker_duties.py
~                 self._lose(earlier) ==>                 pass
# unasked-leases: where a heartbeat is overdue, the database says whether the claim stands
@ worker/leasing.py > unit/test_worker_duties.py
~ if work.stopped is None and overdue: ==> if False:
# elected-by-id: a group's events come in the order in which they happened
@ sql/002-group.sql > sql/test_group.py
- order by event_ts, id limit 1 for update skip locked) as visible
+ order by id limit 1 for update skip locked) as visible
# late-retries: a retry that waits keeps its group
@ sql/002-group.sql > sql/test_group.py
- where group_key = _group_key and not head and retrying
+ where group_key = _group_key and not head and retrying and vt <= _now
# no-next-head: a group goes on as its head ends
@ sql/002-group.sql > sql/test_group.py
-     perform agent.promote(old.group_key);
-     return null;
+     return null;
# failures-let-pass: a failed event blocks its group
@ sql/011-settle.sql > sql/test_group.py sql/test_settle.py
~ heartbeat_at = null, retrying = _counted ==> heartbeat_at = null, retrying = false
# lapsed-groups-whole: after a lapse a group's head is tried alone
@ sql/006-claim.sql > sql/test_group.py sql/test_claim.py
- where h.group_key is not null and not h.lapsed and e.group_key
+ where h.group_key is not null and e.group_key
# spent-members: members that were held with a lapsed head go back unspent
@ sql/002-group.sql > sql/test_group.py
- case when cancelled_by is null then greatest(attempts - 1, 0) else attempts end
-     where id = any(_members);
+ attempts
+     where id = any(_members);
# batches-by-id: a batch of ingest keeps the order in which its events happened
@ sql/003-insert.sql > sql/test_insert_batches.py sql/test_group.py
-         order by group_key, first, second, id
-         on conflict
+         order by group_key, id
+         on conflict
# one-too-many: no more events of a kind run at once than its limit allows
@ sql/009-limit-claim.sql > sql/test_limits.py
-         room := greatest(_limit.concurrency - cardinality(running), 0);
+         room := greatest(_limit.concurrency - cardinality(running) + 1, 0);
# half-periods: no more events begin in a period than the limit allows
@ sql/009-limit-claim.sql > sql/test_limits.py sql/test_model.py
- where given.at > _now - _limit.period and given.at <=
+ where given.at > _now - _limit.period / 2 and given.at <=
# forgotten-runs: all runs of a key count
@ sql/009-limit-claim.sql > sql/test_limits.py
~ _room.running := _room.running || _ids; ==> _room.running := _ids;
# freed-in-silence: an event that waits for a limit begins as a run ends
@ sql/005-history.sql > sql/test_limit_races.py sql/test_limits.py
~ if _freed is not null then ==> if _freed is null then
# revived-slots: a lapsed run of a limited kind is not renewed
@ sql/012-lease.sql > sql/test_limits.py sql/test_limit_races.py sql/test_model.py
~ where e.lane >= 0 or e.vt > _now + _soonest); ==> where e.lane >= 0 or e.vt is not null);
# unseen-heartbeats: a run whose heartbeat is not committed yet counts
@ sql/009-limit-claim.sql > sql/test_limit_races.py interleavings/test_interleavings.py
~ if _lapsed is not null and _most is not null then ==> if _lapsed is not null and _most is null then
# overwritten-steps: a stored step keeps its result
@ sql/015-step.sql > sql/test_settle_fences.py fleet/test_durable.py
-     where s.finished_at is null;
-     if _done
+     ;
+     if _done
# unnumbered-steps: two steps of one name are two steps
@ worker/handling/steps.py > fleet/test_durable.py
~ return Key(name, self._counts[name]) ==> return Key(name, 1)
# unordered-steps: a new step before a stored one is refused
@ worker/handling/past.py > fleet/test_versions.py fleet/test_durable.py
-     return step.in_order and (step.ended or step.sort == "wait")
+     return step.in_order and step.ended and step.sort == "wait"
# counted-waits: an attempt that ends in a wait is not counted
@ sql/016-wait.sql > fleet/test_durable.py sql/test_model.py
- attempts = case when _new then 0 else greatest(attempts - 1, 0) end
+ attempts = case when _new then 0 else attempts end
# signals-twice: each signal is taken once
@ sql/016-wait.sql > fleet/test_durable.py sql/test_model.py
- where s.event_id = _id and s.name = _name and s.taken_by is null order by s.id limit 1;
+ where s.event_id = _id and s.name = _name order by s.id limit 1;
# early-signals: a signal that came before the wait was stored is taken
@ sql/016-wait.sql > sql/test_settle.py fleet/test_durable.py sql/test_model.py
~ sent.name = s.name and sent.taken_by is null)) ==> sent.name = s.name and sent.taken_by is not null))
# endless-waits: a wait ends at its timeout
@ sql/016-wait.sql > sql/test_settle.py fleet/test_durable.py sql/test_model.py
~ elsif coalesce(_wait.due_at, _now + _timeout) > _now or ==> elsif _now + _timeout > _now or
# fired-twice: of all workers that fire a schedule one does
@ sql/020-cron.sql > sql/test_cron.py sql/test_schedules.py
- where name = _name and greatest(next_at, 'epoch') = _due and not paused returning
+ where name = _name and not paused returning
# missed-firings: a firing that was missed is made up for
@ service/cron.py > unit/test_cron.py
~ if catch_up == "none" and now - cron.fires_at(last) > PUNCTUAL: ==> if now - cron.fires_at(last) > PUNCTUAL:
# wrong-zone: a schedule fires by the clock of its time zone
@ service/cron.py > unit/test_cron.py
- next(CronSim(self.schedule, moment.astimezone(zone_of(self.time_zone)), reverse=reverse))
+ next(CronSim(self.schedule, moment.astimezone(UTC), reverse=reverse))
# redeclared-schedules: declaring a schedule again skips no firing
@ sql/020-cron.sql > sql/test_cron.py
- coalesce(_jitter, c.jitter)) then c.next_at else excluded.next_at end;
+ coalesce(_jitter, c.jitter)) then excluded.next_at else excluded.next_at end;
# emptied-backlog: an outage of the workers does not empty the backlog
@ worker/duties.py > unit/test_worker_duties.py fleet/test_leasing.py
~ by_age = bool(kinds) and self.claiming_for() >= age.total_seconds() ==> by_age = bool(kinds)
# paused-expire: events of a paused kind do not expire
@ sql/013-sweep.sql > sql/test_settle.py
- array(select kind from agent.kind where not paused and (_kinds is null or
+ array(select kind from agent.kind where (_kinds is null or
# cut-undos: undos run after the deadline, too
@ sql/013-sweep.sql > fleet/test_undos.py sql/test_queue_sweeps.py
~ and (e.notes ? 'undo') is not true and not exists ( ==> and not exists (
# stuck-last-attempts: a last attempt that lapsed ends as expired
@ sql/013-sweep.sql > sql/test_queue_sweeps.py
-         select e.id from agent.event as e where e.attempts > 0 and e.vt <= _now and e.head
-         and (e.attempts >= coalesce(
+         select e.id from agent.event as e where e.attempts > 0 and e.vt <= _now and e.head
+         and (e.attempts > coalesce(
# unlooked-history: a repeated delivery of an ended event is no new event
@ sql/003-insert.sql > sql/test_insert_batches.py
~ _first := _first - interval '3 days'; ==> _first := _first + interval '3 days';
# living-are-rescued: a worker whose session is open keeps its claims
@ sql/012-lease.sql > sql/test_sessions.py
~ if not found or _session = any(agent.open_sessions()) then ==> if not found then
# no-grace: a lost worker has a grace to come back
@ worker/sessions.py > sql/test_session_watcher.py fleet/test_sessions.py fleet/test_workers.py
~ if began - since >= grace: ==> if now - since <= grace:
# old-losses: after a restart of the server the grace begins anew
@ worker/sessions.py > sql/test_session_watcher.py fleet/test_sessions.py fleet/test_workers.py
~ self._server_since not in (None, sessions.server_since) ==> False
# hasty-graves: after an outage lost workers have longer to come back
@ worker/sessions.py > sql/test_session_watcher.py
~ max(OUTAGE if began < self._disturbed_until else 0.0, self._grace) ==> self._grace
# uncounted-deaths: the attempts of a dead worker count
@ sql/012-lease.sql > sql/test_sessions.py sql/test_queue_sweeps.py
-         update agent.event set vt = _now
-         , changes
+         update agent.event set vt = _now, attempts = greatest(attempts - 1, 0)
+         , changes
# silent-rescues: idle workers get the events of a dead one at once
@ sql/012-lease.sql > sql/test_sessions.py fleet/test_sessions.py fleet/test_workers.py
-         perform agent.sweep_exhausted(null, 1000, null);
-         perform pg_notify('agent_event', '');
+         perform agent.sweep_exhausted(null, 1000, null);
# any-place: an encrypted value opens in its own event and step alone
@ encryption/envelopes.py > extensions/encryption/tests/unit/test_sealing.py
~ if digest and at is not None and not takes(at, digest): ==> if digest and at is None:
# unbound-secrets: a sealed secret opens in its own row alone
@ encryption/keys.py > extensions/encryption/tests/unit/test_keys.py sql/test_installations.py
~ .encrypt(nonce, plain, header + place.encode()) ==> .encrypt(nonce, plain, header)
@ encryption/keys.py
- .decrypt(nonce, sealed[HEADER + NONCE_BYTES :], header + place.encode())
+ .decrypt(nonce, sealed[HEADER + NONCE_BYTES :], header)
# last-key-encrypts: the first key encrypts
@ encryption/keys.py > extensions/encryption/tests/unit/test_keys.py
~ self.current_id = _id_of(raw[0]) ==> self.current_id = _id_of(raw[-1])
# plain-steps: the results of steps are encrypted
@ service/durable.py > sql/test_codec.py extensions/encryption/tests/unit/test_sealing.py
~ result = await self.codec.seal(result, at_step(identity, name, nth)) ==> result = str(result)
# public-functions: nothing is everybody's
@ sql/035-grants.sql > sql/test_roles.py
- where a.grantee <> given.owner and pg_has_role(given.owner, 'usage')
+ where a.grantee <> given.owner and a.grantee <> 0 and pg_has_role(given.owner, 'usage')
# ingest-claims: ingest may store events, and nothing else
@ sql/035-grants.sql > sql/test_roles.py
~ _inserting text := 'insert_event ==> _inserting text := 'claim_events insert_event
# unnoted-replies: a reply that may have been sent is looked for by the next attempt
@ worker/slack/notes.py > unit/test_slack_notes.py fleet/test_workers.py system/test_slack_calls.py
-         await note(None)
-         try:
+         try:
# resent-replies: a message whose answer was lost is looked for before it is sent again
@ worker/slack/notes.py > unit/test_slack_notes.py fleet/test_workers.py system/test_slack_calls.py
~ if found := await find(): ==> if found := None:
# unclear-answers: after an error that may come after the work, Slack is looked into before the call is repeated
@ worker/slack/client.py > unit/test_slack_payloads.py fleet/test_outcomes.py system/test_slack_as_it_is.py
~ or named in PERHAPS_DONE or ==> or
# left-beside: a reply to a message that was deleted does not stay in the channel
@ worker/slack/notes.py > fleet/test_outcomes.py system/test_slack_as_it_is.py
~ if thread.ts and message and not message.get("thread_ts"): ==> if False:
# one-call-too-many: Slack's rate limits hold for all workers together
@ sql/021-slack-limit.sql > sql/test_slack_limits.py
- coalesce(_busy[cardinality(_busy) - _asked.calls + 1], _now);
+ coalesce(_busy[cardinality(_busy) - _asked.calls], _now);
# forged-states: only this app's links install
@ ingest/installing.py > unit/test_settings.py system/test_installing.py
-         if len(name) != _NONCE + _TIME or not self._keys.signed(body, signature, _PURPOSE):
+         if len(name) != _NONCE + _TIME:
# refreshed-twice: one worker at a time refreshes a token
@ sql/032-installation.sql > sql/test_installations.py system/test_installed_tokens.py
- and coalesce(i.refreshing_until, '-infinity') <= agent.clock()
-     returning
+     returning
# late-uninstalls: a late report of an uninstall leaves a newer installation
@ sql/032-installation.sql > sql/test_installations.py sql/test_uninstalls.py
~ = any(_user_ids)) and installed_at <= _until ==> = any(_user_ids))
# other-peoples-logins: an account at a server is connected by the person whom Slack names
@ ingest/installing.py > extensions/agents/tests/system/test_logins.py
~ if named != (person.owner, person.user): ==> if named == (person.user, person.owner):
# other-issuers: a code counts that the asked authorization server gave
@ ingest/installing.py > extensions/agents/tests/system/test_logins.py
~ login["issuer"]) != login["issuer"]: ==> login["issuer"]) == "":
# erased-accounts: a person's accounts at servers go with the person and with the workspace
@ sql/031-erase.sql > sql/test_erase.py
~ and split_part(_owner_id, ' ', 1) = coalesce ==> and _owner_id = coalesce
# kept-tokens: a removed installation's tokens go out of use
@ worker/slack/tokens.py > unit/test_slack_tokens.py system/test_installed_tokens.py
~ if known is not None and _now() < known.until: ==> if known is not None:
# lost-acknowledgements: what was answered 200 is stored
@ ingest/taking.py > promises/test_ingest.py system/test_ingest_writer.py
~ raise RequestRefused(503, answer.value, event=named) ==> return
# refused-forever: Slack sends again what an outage kept out
@ ingest/writer.py > fleet/test_outages.py unit/test_ingest_writer.py system/test_ingest_writer.py
~ if reason is NotStored.UNSTORABLE and not await ==> if reason is None and not await
# two-signatures: a request with two signatures is refused
@ ingest/slack.py > unit/test_ingest_signature.py
~ if len(timestamps) == len(signatures) == 1 else None ==> if len(timestamps) and len(signatures) else None
# acknowledged-in-vain: an envelope that was not stored is not acknowledged
@ ingest/socket_mode.py > unit/test_ingest_writer.py promises/test_ingest.py system/test_socket_mode.py
-             if refused.status == 503:
-                 return "unavailable"
+             if refused.status == 500:
+                 return "unavailable"
# second-answers: the first answer to a request counts
@ sql/014-answer.sql > sql/test_answers.py
~ where r.answer is null and r.waits_until > agent.clock() ==> where r.waits_until > agent.clock()
# stale-answers: an answer counts from the claim that stands alone
@ sql/014-answer.sql > sql/test_answers.py
- where e.id = given.id and agent.claim_stands(e.claimed_by, e.claimed, given.claim))
+ where e.id = given.id and e.claimed_by is not null)
# grouped-clicks: a click waits for no other event of its thread
@ sql/001-event.sql > sql/test_insert.py sql/test_group.py system/test_answers.py
~ _kind in ('slack.block_actions', 'slack.block_suggestion', ==> _kind in ('slack.block_suggestion',
# no-wake-up: an insert wakes a worker
@ sql/002-group.sql > sql/test_insert.py fleet/test_claiming.py
-     perform pg_notify('agent_event', '');
-     return null;
+     return null;
# no-deputy: where the responder hangs another worker still polls
@ worker/claiming/position.py > fleet/test_claiming.py
-         return not self.notifications or self.number is not None
+         return not self.notifications or self.number == 0
# deaf-deputy: where the responder does not answer, the deputy does a moment later
@ worker/claiming/position.py > fleet/test_claiming.py
-         return self.stands_by() or self.attends()
+         return self.attends()
# greedy-responder: a busy responder shares the load
@ worker/claiming/position.py > fleet/test_claiming.py
~ if self.number == 0 and side.slots.busy(): ==> if self.number == 0 and side.slots.full():
# hidden-commits: an event that was committed late is found
@ worker/claiming/claimer.py > unit/test_claiming.py
~ = first if stands is None else min(first, stands) ==> = first if stands is None else max(first, stands)
# cut-runs-again: a step that was cut off does not run again
@ worker/handling/steps.py > fleet/test_ends.py
~ self._ends.append(End(key, sort, hashed, began, cut=True)) ==> pass
# undo-beside-thread: undos begin once the threads of a cancelled handler have ended
@ worker/handling/threads.py > fleet/test_ends.py
~ stopped() in (None, CANCELLED, DRAINED): ==> stopped() in (None, DRAINED):
# beside-itself: the next attempt begins once the steps of the last one have ended
@ worker/handling/attempt.py > fleet/test_ends.py
~ if await outlast(self.steps.running, lambda: self.work.stopped): ==> if False:
# told-not-final: a failure that was caught is final before a person sees what follows
@ worker/handling/attempt.py > fleet/test_ends.py
~ if self.waited and not inside_step(): ==> if not self.waited:
# cut-off-beside-a-wait: a handler is suspended only if nothing but its waits can wake it
@ worker/handling/flow.py > fleet/test_ends.py
~ elif not stops and self._goes_on(): ==> elif False:
# signals-left-behind: signals that no wait has taken go with a successor
@ sql/018-child.sql > fleet/test_ends.py
~ update agent.signal set event_id = _new.id where id = any(_sent); ==> perform 1;
# undo-stops-others: an undo that fails keeps no other from running
@ worker/handling/undo.py > fleet/test_ends.py
~ failed = failed or error ==> raise
# undo-deaths: deaths in an undo keep no other from running
@ sql/017-undo.sql > fleet/test_ends.py
~ if _others then ==> if false then
# undos-forwards: undos run in reverse order
@ worker/handling/undo.py > fleet/test_undos.py
~ for key, call in reversed(steps.undos): ==> for key, call in steps.undos:
# children-one-by-one: a continuation begins once all its children have ended
@ sql/018-child.sql > sql/test_workflow_fan_out.py
-         update agent.event set waits_for = greatest(waits_for - _ended.children, 0)
+         update agent.event set waits_for = greatest(waits_for - 1, 0)
# newest-code: a run stays with the version that it began under
@ worker/running/runner.py > fleet/test_versions.py
~ return newest.versions.get(attempt.version, lacking) ==> return newest.versions.get(attempt.version, newest)
# followers-of-a-pause: quick messages end with the run that got them
@ worker/running/runner.py > fleet/test_coalescing.py
~ followers if outcome.ends_followers else () ==> followers
# busy-followers: an event that began a run of its own follows no other
@ sql/017-undo.sql > sql/test_coalesce.py
~ where own.event_id in (follower, _id) and own.nth >= 0) ==> where own.event_id = _id and own.nth >= 0)
# random-priorities: what comes first by priority is claimed first
@ sql/006-claim.sql > sql/test_priority.py
~ _in_turn boolean := random() < 0.125; ==> _in_turn boolean := random() > 0.125;
# unread-signals: erasing finds what stands in signals
@ sql/031-erase.sql > sql/test_erase.py
-             , (select string_agg(s::text, ' ') from agent.signal as s where s.event_id = w.id)) as text
+             , '') as text
# unkept-pauses: what operators do is kept
@ operator/changes.py > sql/test_operator_actions.py system/test_operator_api.py
-         await self.audit.call("pause", f"kind {kind}", "pause_kind", kind)
+         await self.calls.call("pause_kind", kind)
# signed-out-in-vain: a session that was signed out counts no more
@ operator/console/access/sessions.py > unit/test_console_sign_in.py system/test_console_sign_in.py
~ if claims is None or not await self.used.is_unused(claims): ==> if claims is None:
# unheard-expiry: the failure hook hears of events that expired
@ sql/035-grants.sql > sql/test_failure_hooks.py
~ for each row when (new.outcome in ('failed', 'expired') ==> for each row when (new.outcome in ('failed')
# counted-releases: an attempt that a drain ends is not counted
@ sql/011-settle.sql > sql/test_settle.py fleet/test_workers.py system/test_running_drain.py
- where id <> all(_cancelled)), false, agent.latest_claims
+ where id <> all(_cancelled)), true, agent.latest_claims
# hasty-drains: running handlers end before a drain cancels them
@ worker/running/slots.py > fleet/test_stops.py fleet/test_workers.py system/test_running_drain.py
-         await self._ended(within)
-         for work
+         for work
# endless-backoff: no pause between attempts is longer than its cap
@ worker/handling/outcomes.py > unit/test_handling_bounds.py
~ return min(jittered, self.cap.total_seconds()) ==> return max(jittered, self.cap.total_seconds())
# first-pause-for-all: each event of a batch has its own pause
@ sql/011-settle.sql > sql/test_settle.py
- greatest(coalesce(_pauses[array_position(_of, e.id)], interval '0'), interval '0')
+ greatest(coalesce(_pauses[1], interval '0'), interval '0')
# moved-while-running: no two installations can claim one event
@ shards/moving.py > extensions/shards/tests/system/test_moving.py
- select id from agent.event where id = any($1) and claimed_by is null
- and (head or
+ select id from agent.event where id = any($1)
+ and (head or
# changed-scripts: a script that was applied does not change
@ migrations/files.py > unit/test_migration_files.py sql/test_migration_apply.py
- "applied" if script and script.checksum == row.checksum else
+ "applied" if script and script.checksum else
# two-migrations: one migration runs at a time
@ migrations/runner.py > sql/test_migration_locks.py
~ return await self._migrate(connection) if free else None ==> return await self._migrate(connection)
# kept-too-much: an event that runs again from a step runs that step
@ sql/024-rerun.sql > sql/test_rerun.py
~ select s.*, s.stored_at < cut.at and ==> select s.*, s.stored_at <= cut.at and
# second-ids: a message that comes under another event id while it runs is no second event
@ sql/003-insert.sql > sql/test_messages.py
~ if _again <> '{}' then ==> if false then
# former-primaries: after a failover no service uses the former primary
@ service/pool.py > unit/test_connecting.py system/test_failover.py
~ if newest > timeline: ==> if newest < timeline:
# running-deadlines: an attempt that runs may go on past its deadline
@ sql/013-sweep.sql > sql/test_queue_sweeps.py sql/test_settle.py sql/test_model.py
-         select e.id from agent.event as e where e.deadline < _now and (e.claimed_by is null or e.vt <= _now)
+         select e.id from agent.event as e where e.deadline < _now
@ sql/013-sweep.sql
- where id = any(_ids) and deadline < _now and (claimed_by is null or vt <= _now));
+ where id = any(_ids) and deadline < _now);
# hasty-deadlines: nothing expires before its deadline
@ sql/013-sweep.sql > sql/test_settle.py sql/test_queue_sweeps.py sql/test_model.py
-         select e.id from agent.event as e where e.deadline < _now and (
+         select e.id from agent.event as e where e.deadline < _now + interval '1 minute' and (
@ sql/013-sweep.sql
- where id = any(_ids) and deadline < _now and (claimed_by
+ where id = any(_ids) and deadline < _now + interval '1 minute' and (claimed_by
# paused-deadlines: an event of a paused kind keeps its deadline for later
@ sql/013-sweep.sql > sql/test_queue_sweeps.py sql/test_settle.py sql/test_model.py
- and (e.notes ? 'undo') is not true and not exists (select from agent.kind where kind = e.kind and paused)
+ and (e.notes ? 'undo') is not true
# unled-continuations: a continuation leads its group once its children have ended
@ sql/018-child.sql > sql/test_workflow_fan_out.py
-             perform agent.reelect(array[_waiting.group_key]);
-             perform pg_notify
+             perform pg_notify
# forgotten-cancels: what was asked to be cancelled while it ran does not run again
@ sql/023-change.sql > sql/test_settle.py fleet/test_durable.py sql/test_model.py
-     update agent.event as e set cancelled_by = _who, vt = case
+     update agent.event as e set cancelled_by = null, vt = case
# last-retry-leads: of a group's retries the first one leads
@ sql/002-group.sql > sql/test_group.py sql/test_group_kinds.py sql/test_model.py
~ order by event_ts, id limit 1 for update skip locked) as retried ==> order by id desc limit 1) as retried
# older-payloads: a job that replaces another brings its payload
@ sql/004-job.sql > sql/test_enqueue.py sql/test_schedules.py
~ case when _on_duplicate = 'replace' then _new.event else _found.event end ==> _found.event
# drifting-schedules: a schedule fires at its own times, not so long after the last firing
@ sql/020-cron.sql > sql/test_cron.py fleet/test_schedules.py
~ set next_at = _next_at, last_at ==> set next_at = agent.clock() + interval '1 minute', last_at
# forgetful-promotions: an event that comes to lead its group keeps its priority
@ sql/002-group.sql > sql/test_priority.py sql/test_group.py
- agent.priority_of(lane), group_key, event) where id = _next
+ 1::int2, group_key, event) where id = _next
# children-counted-twice: each child counts off its continuation once
@ sql/018-child.sql > sql/test_workflow_fan_out.py
~ greatest(waits_for - _ended.children, 0) ==> greatest(waits_for - 2 * _ended.children, 0)
# paused-members: a claim brings no member of a paused kind along
@ sql/006-claim.sql > sql/test_group_kinds.py sql/test_claim.py
-     from unnest(_kinds) as wanted left join agent.kind as known on known.kind = wanted
-     where known.paused is not true;
+     from unnest(_kinds) as wanted left join agent.kind as known on known.kind = wanted;
# paused-heads: a claim takes no head of a paused kind
@ sql/006-claim.sql > sql/test_claim.py sql/test_settle.py
~ (select case when paused then -1 else max_attempts end from ==> (select max_attempts from
# keyless-reruns: an event that runs again keeps its natural key
@ sql/024-rerun.sql > sql/test_rerun.py sql/test_operator_actions.py
-     _new.item_key := _old.item_key;
-     _new.group_key
+     _new.group_key
# unheld-arrivals: what comes for a workspace that moves waits for what came before
@ sql/003-insert.sql > extensions/shards/tests/system/test_moving.py
- || array(select kind from agent.kind_limit where parks)
-         || array(select kind from agent.kind where exists (select from agent.arriving));
+ || array(select kind from agent.kind_limit where parks);
# twice-at-both: what both installations of a move got is one event
@ sql/034-move.sql > extensions/shards/tests/system/test_moving.py
~ and (lane >= 60 or exists ==> and (false or exists
# moved-without-steps: a workspace takes the steps of its events with it
@ sql/034-move.sql > sql/test_queue_sweeps.py extensions/shards/tests/system/test_moving.py
- insert into agent.step select * from step;
-     insert into agent.signal
+ insert into agent.signal
# borrowed-keys: a job is encrypted with the key of its own team
@ encryption/sealing.py > extensions/encryption/tests/unit/test_sealing.py
~ self._key(named or ==> self._key(
# attempts-of-rescues: the attempt of a dead worker counts once
@ sql/012-lease.sql > sql/test_sessions.py sql/test_queue_sweeps.py
-         update agent.event set vt = _now
-         , changes
+         update agent.event set vt = _now, attempts = attempts + 1
+         , changes
# freed-followers: what a run got ends with it
@ sql/017-undo.sql > sql/test_coalesce.py fleet/test_coalescing.py
- perform agent.archive_events(_behind, 'completed', 'coalesced into ' || _into);
+ perform agent.return_events(_behind, false);
# stuck-followers: a follower that was cancelled ends as its run is suspended
@ sql/017-undo.sql > sql/test_claim_endings.py sql/test_coalesce.py fleet/test_coalescing.py
-         perform agent.archive_events(_cancelled, 'cancelled', 'cancelled while running');
-         perform agent.return_events(array(select id from unnest(_behind) as id where id <> all(_cancelled)), false);
+         perform agent.return_events(_behind, false);
# fresh-reruns: an event that failed goes on after its stored steps
@ sql/024-rerun.sql > sql/test_rerun.py fleet/test_durable.py
- (h.outcome = 'completed' or h.notes ? 'undone') and s.event_id = h.id and s.nth >= 0;
+ s.event_id = h.id and s.nth >= 0;
# unheld-claims: a worker renews the claim that it has, not that of another
@ sql/012-lease.sql > sql/test_settle.py sql/test_settle_fences.py
- begin
-         _held := agent.hold_claims(_ids, _claims);
-         -- A lapsed run
+ begin
+         _held := _ids;
+         -- A lapsed run
# batches-in-reverse: a request without an answer is stored before those that came later
@ ingest/writer.py > unit/test_ingest_writer.py
~ self._waiting.extendleft(reversed(events)) ==> self._waiting.extend(events)
"""

MUTANTS = {mutant.name: mutant for mutant in read(TABLE)}
"""By name. The first twelve were found by simulations first."""
