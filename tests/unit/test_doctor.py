"""The doctor looks once for all who ask, and says times as people do."""

import asyncio
from datetime import timedelta

from surelane_operator.doctor import Examinations, Finding, Level
from surelane_operator.doctor.finding import span
from surelane_operator.doctor.server import clock_finding


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
