"""A queue in which every reason has its event why a message is not answered."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from surelane import Queue
from surelane.calls import Calls, Pool
from surelane.jobs import Continuation, Job
from surelane_operator.changes import Changes
from surelane_service.cron import Cron
from surelane_service.engine import Engine
from tests.sql.queue_steps import claim, complete, continue_with, fail, pair

TEAM, CHANNEL = "T0SURELANE", "C0GENERAL1"
TRACEBACK = """Traceback (most recent call last):
  File "handlers.py", line 31, in answer
    model = await choose(event.text)
  File "models.py", line 12, in choose
    raise LookupError("no model is called 'gpt'")
LookupError: no model is called 'gpt'
"""
CAUSES = {
    "failed": "It failed after 3 attempts: all its attempts were used. LookupError",
    "paused": "its kind is paused",
    "unhandled": "no running worker handles kind slack.reaction_added",
    "behind": "It waits behind another event of its thread",
    "asks": "waits for approve deploy:1",
    "died": "worker worker-b died at",
    "expired": "It expired after no attempt: it waited for a worker for so long",
}
"""What is told of each scene."""


@dataclass
class Scenes:
    """The events, by what happened to them. ``thread`` is the group key of the thread that waits."""

    failed: int = 0
    completed: int = 0
    paused: int = 0
    unhandled: int = 0
    first: int = 0
    behind: int = 0
    asks: int = 0
    died: int = 0
    expired: int = 0
    thread: str = ""
    reply: str = ""
    """The timestamp of ``behind``, which is in ``thread``."""


def mention(number: int, ts: str, thread_ts: str | None = None) -> dict[str, Any]:
    """Return what Slack posts for a mention."""
    at = {"channel": CHANNEL, "ts": ts, "event_ts": ts, **({"thread_ts": thread_ts} if thread_ts else {})}
    event = {"type": "app_mention", "user": "U0ADA00001", "text": "hello", **at}
    outer = {"type": "event_callback", "team_id": TEAM, "event_id": f"Ev0CONSOLE{number}"}
    return {**outer, "event": event}


def link_to(ts: str, thread: str | None = None) -> str:
    """Return a link to a message, as Slack copies it."""
    link = f"https://team.slack.com/archives/{CHANNEL}/p{ts.replace('.', '')}"
    return link if thread is None else f"{link}?thread_ts={thread}&cid={CHANNEL}"


def ts_of(at: datetime) -> str:
    """Return a time as Slack writes it."""
    return f"{at.timestamp():.6f}"


class Stage:
    """Makes things happen in the queue by the functions that ingest and workers call."""

    def __init__(self, pool: Pool) -> None:
        self.pool, self.calls, self.queue = pool, Calls(pool), Queue(pool)
        self.ts = ""  # of the last message
        self.now = datetime.now(UTC)
        self._number = 0

    async def worker(self, name: str, *kinds: str) -> None:
        """Announce a worker."""
        await self.calls.fetch(
            "select agent.announce_worker($1, $2, '1.0.0', interval '2 milliseconds', 3)", name, list(kinds)
        )

    async def message(self, kind: str, before: timedelta, thread_ts: str | None = None) -> int:
        """Store a mention that happened a while ago, as another kind."""
        self._number += 1
        self.ts = ts_of(self.now - before + timedelta(milliseconds=self._number))
        payload = mention(self._number, self.ts, thread_ts)
        identity: int = await self.calls.fetchval("select agent.insert_event($1)", json.dumps(payload))
        await self.calls.fetch("update agent.event set kind = $2 where id = $1", identity, kind)
        await self.calls.fetch("select agent.register_kinds(array[$1])", kind)
        return identity

    async def claim(self, kind: str, worker: str) -> list[int]:
        """Claim what is visible of a kind."""
        rows = await self.calls.fetch(
            "select id from agent.claim_events($1, 100, null, interval '10 minutes', $2)", [kind], worker
        )
        return [row[0] for row in rows]

    async def fail(
        self, identity: int, attempt: int, *, last: bool, message: str = "no model is called 'gpt'"
    ) -> None:
        """Fail an attempt with an error that has a traceback."""
        error = {
            "type": "LookupError",
            "message": message,
            "traceback": TRACEBACK,
            "at": datetime.now(UTC).isoformat(),
            "worker": "worker-a",
            "attempt": attempt,
        }
        await self.calls.fetch(
            "select agent.settle(array[$1::int8], array[$2::int4], '{fail}', array[$3::jsonb])",
            identity,
            attempt,
            json.dumps({"error": error, "final": last}),
        )


async def announce(stage: Stage) -> None:
    """Let the worker say that it is alive, as it does every 20 seconds."""
    slacks = ("app_mention", "message.im", "app_home_opened")
    kinds = ("agent-turn", "deploy", "report")
    await stage.worker("worker-a", *(f"slack.{each}" for each in slacks), *kinds)


async def furnish(stage: Stage) -> int:
    """Add a limit, a schedule that has run, and a workflow in its middle; return the workflow's last event.

    Of the workflow's children one failed, one runs, and one fanned out itself.
    """
    pool = stage.pool
    engine, daily = Engine(pool), Cron("0 9 * * 1-5", "Europe/Berlin")
    await engine.declare_limits("worker-a", ["deploy"], {"deploy": {"per": "workspace", "concurrency": 2}})
    await Changes(pool).set_cron("daily", daily, kind="nightly", payload={"to": "C1"})
    due = await pool.fetchval("select next_at from agent.cron where name = 'daily'")
    await engine.fire_cron("daily", due, [daily.last_until(datetime.now(UTC))], due)
    async with pool.acquire() as connected:
        queue: Any = connected
        await stage.queue.enqueue("orchestrator-plan", {})
        (plan,) = await claim(queue, "orchestrator-plan")
        parts = [Job("orchestrator-subtask", {"n": number}, max_attempts=1) for number in range(6)]
        await continue_with(queue, pair(plan), parts, Continuation("orchestrator-synthesize"))
        done, failed, inner, *_ = await claim(queue, "orchestrator-subtask", limit=4, worker="worker-a")
        await complete(queue, pair(done))
        error = json.dumps({"type": "ValueError", "message": "no such order"})
        await fail(queue, pair(failed), errors=[error])
        await continue_with(queue, pair(inner), [Job("lookup")] * 3, Continuation("collect"))
    await pool.execute("update agent.measurement set due = '-infinity'")
    found: int = await pool.fetchval("select id from agent.event where kind = 'orchestrator-synthesize'")
    return found


async def seed(stage: Stage) -> Scenes:
    """Make the events."""
    scenes = Scenes()
    await announce(stage)
    for _ in range(6):
        await stage.message("slack.message.im", timedelta(minutes=2))
    for identity in await stage.claim("slack.message.im", "worker-a"):
        await stage.calls.fetch("select agent.complete_events(array[$1::int8], array[1])", identity)
        scenes.completed = identity
    await stage.calls.fetchval(
        "select agent.rate_turn($1, $2, 'U0ADA00001', $3, -1, $4, 'openai:gpt-5', 1)",
        *(scenes.completed, TEAM, CHANNEL, json.dumps("It is <b>wrong</b>.")),
    )
    scenes.failed = await stage.message("slack.app_mention", timedelta(minutes=30))
    for attempt in (1, 2, 3):
        await stage.claim("slack.app_mention", "worker-a")
        await stage.fail(scenes.failed, attempt, last=attempt == 3)
    await stage.calls.fetch("select agent.pause_kind('report')")
    scenes.paused = await stage.message("report", timedelta(minutes=20))
    scenes.unhandled = await stage.message("slack.reaction_added", timedelta(minutes=15))
    scenes.first = await stage.message("agent-turn", timedelta(minutes=12))
    thread = stage.ts
    scenes.behind = await stage.message("agent-turn", timedelta(minutes=11), thread)
    scenes.thread, scenes.reply = f"{TEAM}:{CHANNEL}:{thread}", stage.ts
    await stage.calls.fetch(
        "update agent.event set claimed = array[now()], claimed_by = 'worker-a', attempts = 1"
        ", vt = now() + interval '1 hour' where id = $1",
        scenes.first,
    )
    scenes.asks = await stage.message("deploy", timedelta(minutes=9))
    await stage.claim("deploy", "worker-a")
    await _ask(stage, scenes.asks)
    await _die(stage, scenes)
    scenes.expired = await stage.message("slack.app_home_opened", timedelta(hours=3))
    await stage.calls.fetch(
        "update agent.event set vt = now() - interval '3 hours', enqueued_at = now() - interval '3 hours'"
        " where id = $1",
        scenes.expired,
    )
    await stage.calls.fetch("select agent.delete_expired_events(3, interval '1 hour')")
    return scenes


async def _ask(stage: Stage, identity: int) -> None:
    """Suspend an event as ``ctx.ask`` does: its question is posted, and it waits for a click."""
    question = "approve deploy:1"
    posted = {
        "ts": ts_of(stage.now),
        "channel": CHANNEL,
        "text": "Deploy web 7.1?",
        "choices": ["Approve", "Reject"],
        "by": ["U0ADA00001"],
    }
    store = "select agent.store_step($1, 1, $2, 1, null, $3, '[]', interval '0.2 seconds', true)"
    await stage.calls.fetchval(store, identity, "plan", json.dumps({"version": "7.1"}))
    await stage.calls.fetchval(store, identity, f"{question} asked", json.dumps(posted))
    waits = [{"sort": "wait", "name": question, "nth": 1, "seconds": 86400}]
    await stage.calls.fetch(
        "select agent.settle(array[$1::int8], array[1], array['suspend'], array[$2::jsonb])",
        identity,
        json.dumps({"waits": waits}),
    )


async def _die(stage: Stage, scenes: Scenes) -> None:
    """Let a worker die while it runs an event, and another one see it."""
    scenes.died = await stage.message("slack.file_shared", timedelta(minutes=5))
    await stage.worker("worker-b", "slack.file_shared")
    await stage.claim("slack.file_shared", "worker-b")
    # A session that no connection holds is one whose process died.
    await stage.calls.fetch("update agent.worker set session = 7 where name = 'worker-b'")
    await stage.calls.fetch("select agent.rescue_worker('worker-b', 7, interval '5 seconds', 'worker-a')")
