"""Put load on ingest: send messages at a fixed rate, even if answers are slow."""

import asyncio
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from surelane_dev.simulator.client import SimulatorClient, SimulatorError
from surelane_dev.simulator.workspace.model import JSON


@dataclass(slots=True)
class Summary:
    """The results so far. Times are in milliseconds."""

    sent: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    """The numbers of first answers by HTTP status or by error."""
    answer_ms: list[float] = field(default_factory=list)
    replies: int = 0
    reply_ms: list[float] = field(default_factory=list)

    @property
    def acknowledged(self) -> int:
        """The number of events whose first answer was a 2xx."""
        return sum(count for answer, count in self.answers.items() if answer.startswith("2"))

    def note_answer(self, event: JSON) -> None:
        """Count the first answer to an event."""
        if not event["attempts"]:
            self.answers["given up"] += 1
            return
        first = event["attempts"][0]
        self.answers[str(first["status"] or first["problem"])] += 1
        self.answer_ms.append(first["ms"])

    def lines(self) -> list[str]:
        answers = ", ".join(f"{count} of {answer}" for answer, count in sorted(self.answers.items()))
        lines = [f"sent {self.sent}", f"first answers: {answers or 'none'}"]
        if self.answer_ms:
            lines.append(f"time to answer, ms: {_spread(self.answer_ms)}")
        if self.reply_ms:
            lines += [f"replies: {self.replies}", f"time to reply, ms: {_spread(self.reply_ms)}"]
        return lines


async def run_load(
    client: SimulatorClient,
    rate: float,
    seconds: float,
    channel: str,
    reply_timeout: float | None = None,
    progress: Callable[[Summary], None] = lambda _: None,
) -> Summary:
    """Send ``rate`` messages per second for ``seconds``, even if earlier answers are late.

    ``reply_timeout``: seconds to wait for each reply of the bot; ``None``: none. ``progress`` is called each second.
    """
    summary = Summary()
    loop = asyncio.get_running_loop()
    started = loop.time()
    async with asyncio.TaskGroup() as group:
        for number in range(round(rate * seconds)):
            await asyncio.sleep(started + number / rate - loop.time())
            group.create_task(_one(client, number, channel, reply_timeout, summary))
            summary.sent += 1
            if number % max(1, round(rate)) == 0:
                progress(summary)
    return summary


async def _one(
    client: SimulatorClient, number: int, channel: str, reply_timeout: float | None, summary: Summary
) -> None:
    said = await client.say(f"load {number}", channel=channel, mention=True, wait=True)
    for event in said["events"]:
        summary.note_answer(event)
    if reply_timeout is None:
        return
    try:
        reply = await client.reply(said["message"], reply_timeout)
    except SimulatorError:
        return
    summary.replies += 1
    summary.reply_ms.append((float(reply["ts"]) - float(said["message"]["ts"])) * 1000)


def _spread(values: list[float]) -> str:
    ordered = sorted(values)
    places = {percent: math.ceil(len(ordered) * percent / 100) - 1 for percent in (50, 95, 99)}
    marks = {f"p{percent}": ordered[max(0, place)] for percent, place in places.items()}
    return ", ".join(f"{name} {value:.1f}" for name, value in {**marks, "max": ordered[-1]}.items())
