"""Check the queue: what holds back vacuum, the workers, the backlog, and whether old history goes."""

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

from surelane.calls import Connection
from surelane.errors import SettingsError
from surelane.slack import EDITS
from surelane_operator.doctor.finding import Finding, Level, judged, ok, span
from surelane_operator.doctor.server import clock_finding
from surelane_operator.reads.events import Reads
from surelane_service.figures import Holder
from surelane_service.manifest import MANIFEST, bot_events, found_manifest, slash_commands
from surelane_service.service_settings import split
from surelane_service.subscriptions import TYPES, doubts, unfollowed, untaken

HOUR = 3600.0
DAY = 24 * HOUR
LATE = timedelta(seconds=75)
"""A worker that has been silent for longer has missed a heartbeat: they come within 65 seconds, most within 20."""
MOST_WAITING = 20
"""How many events, which have waited the longest, are tried."""
_GONE = {
    "drained": "an operator drained these workers; they claim nothing until they are resumed",
    "died": "these workers crashed; other workers have their events",
    "lost": "these workers lost their sessions; without new ones they count as dead within seconds",
    "silent": "these workers hang or lost the database; their events are freed five minutes after the last heartbeat",
}
"""The states of workers that are not alive, and what each means."""
_END = {
    "session": "if it is not needed: select pg_terminate_backend({pid});"
    " idle_in_transaction_session_timeout ends idle sessions automatically",
    "prepared": "run in its database: commit prepared '{name}' or rollback prepared '{name}'",
    "slot": "reconnect its standby, or run: select pg_drop_replication_slot('{name}')",
}


async def vacuum(reads: Reads) -> Sequence[Finding]:
    """Find the session, prepared transaction or slot that has held back vacuum the longest."""
    holder = (await reads.figures()).holder
    if holder is None:
        return [ok("vacuum", "no session, prepared transaction or slot holds back vacuum")]
    return [judged("vacuum", holder.age, _described(holder), _end(holder), warn=300, fail=3600)]


def _described(holder: Holder) -> str:
    since = datetime.fromtimestamp(holder.since, UTC)
    who = f"{holder.holder} {holder.application!r}" + (f", pid {holder.pid}" if holder.pid else "")
    return f"{who}, {holder.state}, has held back vacuum for {span(holder.age)}, since {since:%Y-%m-%d %H:%M:%S} UTC"


def _end(holder: Holder) -> str:
    advice = _END[holder.holder].format(pid=holder.pid, name=holder.application)
    if holder.state == "hidden":
        advice += "; to see its state: grant pg_read_all_stats to the schema's owner"
    return advice


async def workers(reads: Reads) -> Sequence[Finding]:
    """Check that workers are alive, that their clocks are right, and that they handle every pending kind."""
    known = await reads.workers()
    now = await reads.clock()
    alive = [worker for worker in known if worker["alive"]]
    waiting = [kind.kind for kind in (await reads.figures()).kinds if kind.pending and not kind.paused]
    if not alive:
        level = Level.PROBLEM if waiting else Level.WARNING
        return [Finding("workers", level, "no worker is alive", "start one: python -m surelane_worker")]
    return [_counted(alive, known, now), *_unhandled(alive, waiting), *_unheard(alive), *_clocks(alive)]


def _counted(alive: Sequence[dict[str, Any]], known: Sequence[dict[str, Any]], now: datetime) -> Finding:
    found = f"{len(alive)} alive, of version {', '.join(sorted({worker['version'] for worker in alive}))}"
    late = [_last_seen(worker, now) for worker in alive if now - worker["seen_at"] > LATE]
    if late:
        found += f"; late: {', '.join(late)}"
    advice = []
    for state, meaning in _GONE.items():
        gone = [_last_seen(worker, now) for worker in known if worker["state"] == state]
        if gone:
            found += f"; {state}: {', '.join(gone)}"
            advice.append(meaning)
    return Finding("workers", Level.WARNING, found, "; ".join(advice)) if advice else ok("workers", found)


def _last_seen(worker: dict[str, Any], now: datetime) -> str:
    last = worker["died_at"] or worker["seen_at"]
    return f"{worker['name']} ({span((now - last).total_seconds())} ago)"


def _unhandled(alive: Sequence[dict[str, Any]], waiting: Sequence[str]) -> list[Finding]:
    handled = {kind for worker in alive for kind in worker["kinds"]}
    orphans = [kind for kind in waiting if kind not in handled]
    if not orphans:
        return []
    found = f"no worker handles these pending kinds: {', '.join(orphans)}"
    advice = "register a handler, or cancel the events: surelane events cancel --status pending --kind KIND"
    return [Finding("workers", Level.WARNING, found, advice)]


def _unheard(alive: Sequence[dict[str, Any]]) -> list[Finding]:
    """Compare the kinds of live workers with the event types that ingest takes, as far as this process knows them."""
    kinds = {kind.partition("@")[0] for worker in alive for kind in worker["kinds"]}
    named = cast("list[str]", split(os.environ.get(TYPES, ""))) or None
    path = os.environ.get(MANIFEST)
    try:
        manifest = Path(path) if path else found_manifest()
        subscribed, commands = bot_events(manifest), slash_commands(manifest)
    except SettingsError as error:
        return [Finding("workers", Level.WARNING, str(error), "mount it here, or correct it")]
    # The worker itself handles edits wherever it answers.
    doubted = doubts(kinds, named, subscribed, commands)
    gaps = [why for kind, why in doubted.items() if kind[6:] not in EDITS]
    taken = (subscribed or []) if named is None else named
    gaps += [f"no worker handles {name}, which ingest stores" for name in untaken(kinds, taken)]
    silent = unfollowed(kinds, named, subscribed)
    gaps += [f"agents do not hear messages without a mention: {why}" for why in silent]
    advice = f"give ingest, workers and this program the same {MANIFEST}, naming what handlers take"
    found = f"events that nothing takes: {'; '.join(gaps)}"
    return [Finding("workers", Level.WARNING, found, advice)] if gaps else []


async def versions(reads: Reads) -> Sequence[Finding]:
    """Say how many live runs need which version of their handler, and whether a worker has it."""
    claimed = [set(worker["kinds"]) for worker in await reads.workers() if worker["alive"]]
    said: dict[str, list[str]] = {}
    lacking = set[str]()
    for row in await reads.calls.fetch("select * from agent.count_versions() order by kind, version"):
        kind, version = row["kind"], row["version"]
        runs = f"{row['runs']:,}{'' if kind in said else ' runs'} of version {version}"
        if not any(_has_version(kinds, kind, version) for kinds in claimed):
            lacking.add(kind)
            runs += " (no worker)"
        said.setdefault(kind, []).append(runs)
    return [_needed(kind, runs, lacking=kind in lacking) for kind, runs in said.items()]


def _has_version(kinds: set[str], kind: str, version: str) -> bool:
    """Return whether a worker with these kinds has a version: a handler that names none is version 1."""
    named = any(each.startswith(f"{kind}@") for each in kinds)
    return f"{kind}@{version}" in kinds or (version == "1" and kind in kinds and not named)


def _needed(kind: str, runs: Sequence[str], *, lacking: bool) -> Finding:
    found = f"{kind}: {', '.join(runs)}"
    if not lacking:
        return ok("versions", found)
    advice = f"register a handler for each version, beside the newest: on({kind!r}, version=…)"
    return Finding("versions", Level.WARNING, found, advice)


def _clocks(alive: Sequence[dict[str, Any]]) -> list[Finding]:
    compared = [
        (worker["name"], worker["clock_offset"]) for worker in alive if worker["clock_offset"] is not None
    ]
    findings = [clock_finding(f"the clock of {name}", offset.total_seconds()) for name, offset in compared]
    return [finding for finding in findings if finding.level is not Level.OK]


async def backlog(reads: Reads) -> Sequence[Finding]:
    """Check the number of pending events, and for how long the oldest one has waited."""
    kinds = (await reads.figures()).kinds
    total = sum(kind.pending for kind in kinds)
    running = sum(kind.running for kind in kinds)
    active = [kind for kind in kinds if not kind.paused]
    oldest = max(active, key=lambda kind: kind.oldest_pending_age, default=None)
    age = oldest.oldest_pending_age if oldest else 0.0
    found = f"{total:,} pending, {running:,} running"
    if oldest and age:
        found += f"; the oldest, of kind {oldest.kind}, has waited for {span(age)}"
    advice = "start more workers, or see why: surelane stats; surelane events list --status pending"
    findings = [judged("queue", age, found, advice, warn=600, fail=3600)]
    paused = [kind.kind for kind in kinds if kind.paused and kind.pending]
    if paused:
        found = f"these kinds are paused and have pending events: {', '.join(paused)}"
        advice = f"when it is time: surelane kinds resume {paused[0]}"
        findings.append(Finding("queue", Level.WARNING, found, advice))
    return findings


async def refused_claims(reads: Reads) -> Sequence[Finding]:
    """Find events whose rows refuse to be claimed. It tries the longest waiting ones alone."""
    waiting = await reads.longest_waiting(MOST_WAITING)
    advice = "drop what refuses it, or let it pass the row; if the row is damaged, restore it"
    findings = [
        Finding(
            "claims", Level.PROBLEM, f"event {each['id']} refuses to be claimed: {each['detail']}", advice
        )
        for each in waiting
        if each["reason"] == "refused"
    ]
    return findings or [
        ok("refused claims", f"of {len(waiting)} events that have waited the longest, none refuses")
    ]


async def sockets(reads: Reads) -> Sequence[Finding]:
    """Find other clients' connections of Socket Mode: Slack gives them events instead of us."""
    return [
        _sockets(row["app_id"] or "of ours", row["ours"], row["others"])
        for row in await reads.calls.rows("list_sockets")
    ]


def _sockets(app: str, ours: int, others: int | None) -> Finding:
    if not others:
        return ok("socket mode", f"app {app} has {ours} connections, all of them ours")
    found = f"{others} of the {ours + others} connections of app {app} are not ours, and take events from us"
    advice = (
        "Slack gives each event to one connection only. Stop the other program that has the app's token;"
        " if it is not known, make a new app-level token and revoke the old one"
    )
    return Finding("socket mode", Level.WARNING, found, advice)


async def retention(connection: Connection) -> Sequence[Finding]:
    """Find out whether workers drop old history, or a transaction keeps them from it."""
    row = await connection.fetchrow(
        "select extract(epoch from older_than)::float8 as kept"
        ", extract(epoch from agent.clock() - done_at)::float8 as done"
        ", extract(epoch from agent.clock() - blocked_at)::float8 as blocked from agent.retention"
    )
    if row is None or row["kept"] is None:
        advice = "a worker does so two minutes after its start, unless SURELANE_HISTORY_RETENTION is off"
        return [ok("history", f"no worker has dropped old history yet: {advice}")]
    kept = f"history is kept for {span(row['kept'])}"
    if row["blocked"] is not None:
        found = f"{kept}, but another transaction has locked older history for {span(row['blocked'])}"
        advice = "find it in pg_stat_activity, and end it if it is not needed"
        return [judged("history", row["blocked"], found, advice, warn=HOUR, fail=7 * DAY)]
    found = f"{kept}; a worker dropped what is older {span(row['done'])} ago"
    advice = "see the workers' logs: retention failed, or SURELANE_HISTORY_RETENTION is off now"
    return [judged("history", row["done"], found, advice, warn=DAY, fail=30 * DAY)]


async def schedules(connection: Connection) -> Sequence[Finding]:
    """Check that every schedule fires."""
    rows = await connection.fetch("select name, problem from agent.cron where not paused order by name")
    marked = [row for row in rows if row["problem"] is not None]
    advice = "correct it with surelane cron set, or delete it with surelane cron delete"
    found = [
        Finding("schedules", Level.WARNING, f"{row['name']} did not fire: {row['problem']}", advice)
        for row in marked
    ]
    return found or [ok("schedules", f"none of {len(rows)} has a problem")]
