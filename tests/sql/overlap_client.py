"""Use the queue as services do, in rounds with a line of output each, until standard input ends.

``test_migration_overlap.py`` runs it with the packages of the previous release, against this release's schema.
"""

import asyncio
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeVar

from surelane.calls import Pool
from surelane.errors import Conflict
from surelane.queue import Queue
from surelane_service.engine import Engine, Settled
from surelane_service.intake import Intake
from surelane_service.pool import close_pool, create_pool

Result = TypeVar("Result")

KIND = "slack.app_mention"


async def main() -> None:
    """Run rounds as the two services' roles, on pools whose connections outlive the migration."""
    ingest = await create_pool(os.environ["INGEST_URL"], service="overlap-ingest", max_size=2)
    worker = await create_pool(os.environ["WORKER_URL"], service="overlap-worker", max_size=2)
    stop = threading.Event()
    # A daemon thread, so that an error ends the process while its input is still open.
    threading.Thread(target=_stop_at_end_of_input, args=(stop,), daemon=True).start()
    number = 0
    try:
        while not stop.is_set():
            await round_of_work(ingest, worker, number)
            print(f"round {number}", flush=True)  # noqa: T201
            number += 1
    finally:
        await close_pool(ingest)
        await close_pool(worker)


def _stop_at_end_of_input(stop: threading.Event) -> None:
    sys.stdin.read()
    stop.set()


async def round_of_work(intake_pool: Pool, worker_pool: Pool, number: int) -> None:
    """Complete one event, fail one, release and delete one, schedule and cancel one."""
    intake, ingest = Intake(intake_pool), Queue(intake_pool)
    engine, worker = Engine(worker_pool), Queue(worker_pool)
    texts = [
        f'{{"type": "app_mention", "event_ts": "{1_760_000_000 + number}.{which}", "client_msg_id": "{which}"}}'
        for which in range(2)
    ]
    await retried(lambda: intake.insert_events(texts))
    await retried(lambda: ingest.insert_event(texts[0].replace('"0"', '"2"')))
    claimed = await retried(lambda: engine.claim_events([KIND], 3, worker="overlap"))
    assert len(claimed) == 3, claimed
    first, second, third = claimed
    assert first.slack["type"] == "app_mention"
    failure = '{"error": {"type": "E", "message": "m"}, "final": true, "reason": "overlap"}'
    for event, outcome, argument in (
        (first, "complete", '"done"'),
        (second, "fail", failure),
        (third, "release", None),
    ):
        settle = partial(engine.settle, [(event.id, event.claim, outcome, argument)])
        assert await retried(settle) == [Settled.DONE], outcome
    again = await retried(lambda: worker_pool.fetchval("select id from agent.claim_event()"))
    assert again is not None
    await retried(lambda: worker_pool.execute("select agent.delete_event($1)", again))
    later = datetime.now(UTC) + timedelta(hours=1)
    await retried(lambda: worker.enqueue("overlap-job", {}, run_at=later, item_key=f"overlap-{number}"))
    assert await retried(lambda: worker.cancel(f"overlap-{number}")) == "cancelled"
    await retried(lambda: worker_pool.execute("select agent.delete_expired_events()"))
    assert await retried(engine.schema_version)


async def retried(call: Callable[[], Awaitable[Result]]) -> Result:
    """Send a statement again if the database asks for that, or the migration holds a lock, as the services do."""
    for _ in range(20):
        with suppress(Conflict):
            answer = await call()
            if answer not in ([Settled.BUSY], "busy"):
                return answer
        await asyncio.sleep(0.05)
    return await call()


if __name__ == "__main__":
    asyncio.run(main())
