"""The doctor looks once for all who ask, says times as people do, and judges a rehearsal by what was promised."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from surelane_operator.doctor import Examinations, Finding, Level
from surelane_operator.doctor.finding import span
from surelane_operator.doctor.server import clock_finding
from surelane_operator.rehearsing import judged

AT = datetime(2026, 1, 1, tzinfo=UTC)


async def test_one_examination_serves_all_who_ask_until_somebody_wants_a_newer_one() -> None:
    ends, looked = asyncio.Event(), list[str]()

    async def examine(dsn: str) -> list[Finding]:
        looked.append(dsn)
        await ends.wait()
        return [Finding("workers", Level.PROBLEM, "no worker is alive", "start one")]

    examinations = Examinations("a database", examine)
    asking = [asyncio.create_task(examinations.latest()) for _ in range(5)]
    await asyncio.sleep(0)
    asking[0].cancel()
    ends.set()
    answers = await asyncio.gather(*asking[1:])
    assert answers[0].findings[0].found == "no worker is alive"
    assert all(answer == answers[0] for answer in [*answers, await examinations.latest()])
    assert looked == ["a database"]
    assert (await examinations.latest(timedelta(0))).at > answers[0].at
    assert len(looked) == 2


def test_times_are_for_people_and_a_clock_that_is_wrong_is_found() -> None:
    for seconds, text in ((0.34, "340 ms"), (90, "90 s"), (420, "7 min"), (10800, "3 h"), (200000, "2 d")):
        assert span(seconds) == text
    for seconds, text, level in (
        (3.0, "ours is 3 s ahead of the database's", Level.WARNING),
        (-60.0, "ours is 60 s behind the database's", Level.PROBLEM),
    ):
        finding = clock_finding("ours", seconds)
        assert (finding.found, finding.level) == (text, level)


def row(identity: int, *, after: float = 1.0) -> dict[str, Any]:
    ended = AT + timedelta(seconds=after)
    return {"id": identity, "group_key": "g", "enqueued_at": AT, "finished_at": ended, "attempts": 1}


@pytest.mark.parametrize(
    ("rows", "broken"),
    [
        ([row(1)], "1 of 2 events ended"),
        ([row(1), row(2), row(2)], "1 ended twice"),
        ([row(1, after=2), row(2, after=1)], "1 groups ended in their order"),
        (
            [row(1), row(2, after=10.4)],
            "half within 1 s, all within 10 s; 0 in another attempt (promised: 10 s)",
        ),
    ],
)
def test_a_broken_promise_is_a_problem_and_time_begins_at_the_fault(rows: list[Any], broken: str) -> None:
    found = judged("a scene", 10, [1, 2], AT, rows)
    assert [each.found for each in found if each.level is Level.PROBLEM] == [broken]
    fault = AT + timedelta(seconds=8)
    later = judged("a scene", 10, [1, 2], fault, [row(1, after=7), row(2, after=12)])
    assert later[3].found.startswith("half within 4 s, all within 7 s")
