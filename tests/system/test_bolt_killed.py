"""No run of a listener is lost although workers with Bolt apps are killed at random, lazy listeners included."""

import asyncio
import random
import signal
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import asyncpg

from tests.processes import Service, until
from tests.system.bolt import Bolt, bolt_worker
from tests.system.slack_stand import slack_stand
from tests.system.test_leasing import LEASE

ROUNDS = 5
EVENTS = 12
"""Events per round; each round kills one worker."""
PARTS = ("listener", "one", "two")


async def test_killed_workers_lose_no_run_and_repeat_no_message(database: str, tmp_path: Path) -> None:
    """One worker runs the ``App``, the other the ``AsyncApp``."""
    connection = await asyncpg.connect(database)
    settings = {
        "SURELANE_TEST_FOLDER": str(tmp_path),
        "SURELANE_LEASE": LEASE,
        "SURELANE_MAX_ATTEMPTS": "50",
        "SURELANE_CONCURRENCY": "4",
    }
    chance = random.Random(7)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(connection.close)
        slack = await stack.enter_async_context(slack_stand(connection))

        async def start(name: str) -> Service:
            app = f"tests.system.bolt_apps.{name}:app"
            return await stack.enter_async_context(bolt_worker(database, slack, app, **settings))

        names = ["synchronous", "asynchronous"]
        workers = list(await asyncio.gather(*map(start, names)))
        app = Bolt(slack, connection, workers[0])
        general = slack.simulator.workspace.channel("general")
        assert general is not None
        identities = []
        for round_ in range(ROUNDS):
            for number in range(round_ * EVENTS, (round_ + 1) * EVENTS):
                item = {"type": "message", "channel": general.id, "ts": f"1700000000.{number:06}"}
                event = {
                    "type": "reaction_removed",
                    "user": app.ada.id,
                    "reaction": f"slow{number}.",
                    "item": item,
                }
                identities.append(await app.happens(event))
            await until(partial(_has_run, tmp_path, round_ * EVENTS + 1), what="a listener")
            await asyncio.sleep(chance.random() / 4)  # in the middle of what it does
            which = chance.randrange(2)
            workers[which].process.send_signal(signal.SIGKILL)
            await workers[which].child.wait()
            workers[which] = await start(names[which])
        rows = [await app.end(identity) for identity in identities]
    assert {row["outcome"] for row in rows} == {"completed"}
    assert any(row["attempts"] > 1 for row in rows), "no kill met a running listener"
    reactions = [f"slow{number}." for number in range(ROUNDS * EVENTS)]
    assert not [name for name in reactions for part in PARTS if not (tmp_path / f"{part} {name}").exists()]
    said = sorted(text for text in app.said() if text.startswith(("one slow", "two slow")))
    assert said == sorted(f"{part} {name}" for name in reactions for part in ("one", "two"))


def _has_run(folder: Path, number: int) -> bool:
    """Return whether so many listeners have begun."""
    return len(list(folder.glob("listener *"))) >= number
