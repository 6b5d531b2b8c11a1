"""Mentions in a simulation: by seed Slack delivers one several times, and its author edits it, until it is answered.

Some are in direct messages and in group messages, where Slack reports an edit as ``message_changed``.

What must hold of each mention:

- It is one event, under all ids that it came under. Each restart by an edit is one more. The turn before it is
  cancelled, unless it ended before its worker heard of that.
- It is answered, by hosts that were well once per text that it ran for, and never with a text that it did not run for.
- Later texts replace earlier ones. A turn that outlasts the report of a later edit was not cancelled by the setting.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from itertools import pairwise
from random import Random
from typing import Any

from surelane.events import Event
from surelane_agents.agent_settings import AgentSettings, using
from surelane_agents.context.thread import TURN
from surelane_agents.people import edits
from surelane_dev.testing.fleets.virtual import EPOCH
from surelane_dev.testing.fleets.wire import Host
from surelane_worker.handling.context import Context
from surelane_worker.handling.registry import Handlers
from tests.simulation.plan import TROUBLE
from tests.simulation.witness import BrokenError, Witness

MODEL = {
    "SURELANE_MODEL": "openai:none",
    "SURELANE_MODEL_URL": "http://127.0.0.1:9/v1",
    "SURELANE_MODEL_KEY": "none",
}
PLACES = "C1", "D1", "G1"
KINDS = {"C1": "slack.app_mention", "D1": "slack.message.im", "G1": "slack.message.mpim"}
"""The kind of a mention, by its channel."""
RUNS = """
select coalesce(event #>> '{event,message,ts}', event #>> '{event,ts}') as ts
, coalesce(event #>> '{event,message,text}', event #>> '{event,text}')::int as text, kind, outcome, finished_at
, event_ts, enqueued_at from agent.event_hist where kind like any(array['slack.app\\_mention', 'slack.message%'])
order by id
"""


def key_of(message: Mapping[str, Any]) -> str:
    """Return the key of the event that a message answers."""
    return str(message["metadata"]["event_payload"]["event_id"])


class Mentions:
    """The mentions of a seed. Most seeds have none. The text of each is the number of its version."""

    def __init__(self, witness: Witness, deliver: Callable[[str, dict[str, Any]], Awaitable[None]]) -> None:
        """``deliver``: posts to ingest what Slack sends, under a key."""
        self._witness, self._deliver = witness, deliver
        random = self._random = Random(f"mentions {witness.seed}")
        self.count = random.randint(2, 6) if random.random() < 0.4 else 0
        self.rule = random.choice(("restart", "restart", "ignore"))
        self.keys: set[str] = set()
        """The event ids under which the mentions came."""
        self._answers: dict[str, Counter[int]] = defaultdict(Counter)
        """How often each mention was answered with each text, by hosts that were well; 0: by others alone."""

    def settings(self) -> AbstractContextManager[None]:
        """Return a block in which workers have the settings for them."""
        given: Any = MODEL | {"SURELANE_MODEL_EDITED": self.rule} if self.count else {}
        return using(AgentSettings(**given))

    async def talk(self) -> None:
        """Let people mention the bot and edit what they wrote, and Slack tell of it."""
        async with asyncio.TaskGroup() as group:
            for number in range(self.count):
                for nth, (at, inner) in enumerate(self._deliveries()):
                    group.create_task(self._tell(at, f"mention-{number}-{nth}", inner))

    def _deliveries(self) -> Iterator[tuple[float, dict[str, Any]]]:
        random, at, text = self._random, self._random.uniform(0, TROUBLE), 0
        posted = f"{EPOCH + at:.6f}"
        channel = random.choice(PLACES)
        direct = {"type": "message", "channel_type": "im" if channel == "D1" else "mpim"}
        where = {"channel": channel, **({"type": "app_mention"} if channel == "C1" else direct)}
        said: dict[str, Any] = {**where, "user": "U1", "ts": posted}
        self._answers[posted].clear()
        for nth in range(random.choice((1, 2, 3))):
            ts = f"{EPOCH + at:.6f}"
            before, edited = said, ({"edited": {"user": "U1", "ts": ts}} if nth else {})
            inner = said = {**before, "text": str(text), "event_ts": ts, **edited}
            if nth and channel != "C1":
                message, previous = ({**each, "type": "message"} for each in (said, before))
                changed = {"subtype": "message_changed", "message": message, "previous_message": previous}
                inner = {**where, **changed, "hidden": True, "ts": ts, "event_ts": ts}
            for _ in range(random.randint(1, 3)):
                yield at + random.choice((0, random.uniform(0, 15))), inner
            at += random.uniform(0, 15)
            text += random.random() < 0.8

    async def _tell(self, at: float, key: str, inner: dict[str, Any]) -> None:
        await asyncio.sleep(at)
        self.keys.add(key)
        await self._deliver(key, {"type": "event_callback", "team_id": "T1", "event_id": key, "event": inner})

    def include(self, handlers: Handlers, host: Host) -> None:
        """Add the handlers of a worker."""
        if not self.count:
            return
        random = Random(f"{host.name} mentions {self._witness.seed}")
        handlers.include(edits.handlers)

        @handlers.on(*KINDS.values())
        async def answer(event: Event, ctx: Context) -> None:
            async with self._witness.seen(host, event):
                await ctx.step(TURN, list)
                await asyncio.sleep(random.uniform(0, 12))
                await ctx.slack.reply(event, event.slack["text"])

    def hears(self, host: Host, message: Mapping[str, Any]) -> bool:
        """Note a message; return whether it answers a mention."""
        if (answers := self._answers.get(message.get("thread_ts") or "")) is None:
            return False
        text = int(message["text"])
        answers[text] += self._witness.is_well(host.name)
        if answers[text] > 1 and not self._witness.may_repeat(key_of(message)):
            raise BrokenError("a mention is answered once per text", f"{message}")
        return True

    async def check(self, see: Callable[[str], Awaitable[list[Any]]]) -> None:
        """Check what must hold at the end. A standby that took over may lack any of it."""
        rows = [] if self._witness.forgot else await see(RUNS)
        for ts in () if self._witness.forgot else self._answers:
            runs = [row for row in rows if row["ts"] == ts and row["kind"] in KINDS.values()]
            texts = [row["text"] for row in runs]
            how = (
                f"{ts} ran for {[(row['text'], row['outcome']) for row in runs]}, answers {self._answers[ts]}"
            )
            late = [nxt["enqueued_at"] < row["finished_at"] for row, nxt in pairwise(runs)]
            outcomes = {(row["outcome"], late) for row, late in zip(runs, [*late, True], strict=False)}
            if not runs or runs[-1]["outcome"] != "completed" or ("completed", False) in outcomes:
                raise BrokenError("a mention is one event", how)
            if texts != sorted({*texts}) or (len(texts) > 1 and self.rule == "ignore"):
                raise BrokenError("a later text replaces an earlier one by the setting", how)
            if texts[-1] not in self._answers[ts] or not self._answers[ts].keys() <= {*texts}:
                raise BrokenError("a mention is answered for what it ran", how)
            if self.rule == "restart" and not self._witness.backwards:
                self._check_edits(runs[-1], [row for row in rows if row["ts"] == ts and row not in runs])

    def _check_edits(self, last: Any, reports: list[Any]) -> None:
        for row in reports:
            live = last["enqueued_at"] < row["enqueued_at"] and row["finished_at"] < last["finished_at"]
            if live and row["text"] > last["text"] and row["event_ts"] > last["event_ts"]:
                raise BrokenError("an edit restarts the turn that it meets", f"{dict(row)}, {dict(last)}")
