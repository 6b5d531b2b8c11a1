"""The fenced report of outcomes: one call for a batch, whatever its outcomes are."""

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from surelane.calls import Calls
from surelane.events import Settled

Item = tuple[int, int, str, str | None]
"""An event's id, its claim, the outcome, and the outcome's argument as JSON text."""


async def settle(database: Calls, items: Sequence[Item], max_attempts: int | None) -> list[Settled]:
    """Settle a batch. Return the answers in the order given."""
    answers = [Settled.DONE] * len(items)
    for outcome in dict.fromkeys(item[2] for item in items):
        places = [place for place, item in enumerate(items) if item[2] == outcome]
        for place, answer in zip(
            places,
            await _alike(database, outcome, [items[place] for place in places], max_attempts),
            strict=True,
        ):
            answers[place] = answer
    return answers


async def _alike(
    database: Calls, outcome: str, items: Sequence[Item], max_attempts: int | None
) -> list[Settled]:
    ids, claims = [item[0] for item in items], [item[1] for item in items]
    if outcome == "complete":
        results = [item[3] for item in items]
        rows = await database.fetch(
            "select * from agent.complete_events($1, $2, $3) where answer <> 'done'",
            ids,
            claims,
            results if any(results) else None,
        )
    elif outcome == "fail":
        failures = [json.loads(item[3] or "{}") for item in items]
        rows = await database.fetch(
            "select * from agent.fail_events($1, $2, $3, $4, $5, $6, $7) where answer <> 'done'",
            ids,
            claims,
            [json.dumps(failure["error"]) for failure in failures],
            [timedelta(seconds=failure.get("retry_in") or 0) for failure in failures],
            [failure.get("final", False) for failure in failures],
            [failure.get("reason") for failure in failures],
            max_attempts,
        )
    elif outcome == "release":
        rows = await database.fetch(
            "select * from agent.release_events($1, $2) where answer <> 'done'", ids, claims
        )
    else:
        return [Settled(await _alone(database, *item)) for item in items]
    answers = [Settled.DONE] * len(items)
    for row in rows:
        answers[row["ordinal"] - 1] = Settled(row["answer"])
    return answers


async def _alone(database: Calls, identity: int, claim: int, outcome: str, argument: str | None) -> Any:  # noqa: ANN401
    given = json.loads(argument or "{}")
    if outcome == "snooze":
        pause = timedelta(seconds=given["pause"])
        return await database.fetchval("select agent.snooze_event($1, $2, $3)", identity, claim, pause)
    if outcome == "await":
        until = datetime.fromisoformat(given["until"])
        return await database.fetchval("select agent.await_event($1, $2, $3)", identity, claim, until)
    return await database.fetchval(
        "select agent.continue_event($1, $2, $3, $4, $5)",
        identity,
        claim,
        json.dumps(given["children"]),
        json.dumps(given["continuation"]),
        None if given.get("result") is None else json.dumps(given["result"]),
    )
