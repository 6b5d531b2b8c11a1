"""No run of a listener is lost although workers with Bolt apps are killed at random, lazy listeners included."""

import asyncio
import random
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import asyncpg

from tests.processes import Service, until
from tests.system.bolt import Bolt, bolt_worker
from tests.system.slack_stand import slack_stand
from tests.system.test_leasing import LEASE

EVENTS = 60
KILLS = 6
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
        for number in range(EVENTS):
            item = {"type": "message", "channel": general.id, "ts": f"1700000000.{number:06}"}
            event = {"type": "reaction_removed", "user": app.ada.id, "reaction": f"r{number}.", "item": item}
            identities.append(await app.happens(event))
        for kill in range(KILLS):
            done = EVENTS * (kill + 1) // (KILLS + 2)
            await until(lambda wanted=done: len(list(tmp_path.glob("listener *"))) >= wanted, what="progress")
            which = chance.randrange(2)
            workers[which].process.send_signal(signal.SIGKILL)
            await workers[which].child.wait()
            workers[which] = await start(names[which])
        rows = [await app.end(identity) for identity in identities]
    assert {row["outcome"] for row in rows} == {"completed"}
    assert sum(row["attempts"] > 1 for row in rows) >= 1, "no kill met a running listener"
    lost = [
        f"{part} r{number}."
        for number in range(EVENTS)
        for part in PARTS
        if not (tmp_path / f"{part} r{number}.").exists()
    ]
    assert not lost
    said = sorted(text for text in app.said() if text.startswith(("one r", "two r")))
    assert said == sorted(f"{part} r{number}." for number in range(EVENTS) for part in ("one", "two"))
