"""Every screen of the page shows what it is for, and says what it does not find."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp
import asyncpg
import pytest

from tests.browser.console_page import console_at
from tests.browser.console_scenes import Scenes, Stage, seed


@dataclass
class Shown:
    """A served page, and what there is to see."""

    url: str
    session: aiohttp.ClientSession
    scenes: Scenes
    stage: Stage

    async def get(self, path: str) -> tuple[int, str]:
        """Return the status and the text of a screen."""
        async with self.session.get(f"{self.url}/console{path}") as answer:
            return answer.status, await answer.text()


@pytest.fixture(scope="module")
async def shown(shared_database: str) -> AsyncIterator[Shown]:
    async with asyncpg.create_pool(shared_database, min_size=1, max_size=2) as pool:
        scenes = await seed(stage := Stage(pool))
        async with console_at(pool) as url, aiohttp.ClientSession() as session:
            yield Shown(url, session, scenes, stage)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/", ["slack.reaction_added"]),
        ("/events", ["slack.app_mention", "report"]),
        ("/kinds", ["report", "slack.message.im"]),
        ("/kinds/report", ["report", "Resume"]),
        ("/workers", ["worker-a"]),
        ("/workers/worker-a", ["worker-a", "agent-turn"]),
        ("/waiting", ["deploy"]),
        ("/feedback", ["openai:gpt-5", "It is &lt;b&gt;wrong", "U0ADA00001"]),
        ("/feedback?rating=bad&workspace=T0SURELANE", ["It is &lt;b&gt;wrong"]),
        ("/feedback?rating=good", ["Nobody has rated"]),
        ("/feedback?rating=bad&workspace=T0OTHER", ["Nobody has rated"]),
        ("/workflows", ["Workflows"]),
        ("/schedules", ["Schedules"]),
        ("/actions", ["Actions"]),
        ("/doctor", ["Doctor"]),
    ],
)
async def test_a_screen_shows_what_there_is(shown: Shown, path: str, words: list[str]) -> None:
    status, text = await shown.get(path)
    assert status == 200
    assert [word for word in words if word not in text] == []


@pytest.mark.parametrize(
    ("scene", "words"),
    [
        ("failed", ["LookupError", "worker-a"]),
        ("completed", ["completed"]),
        ("paused", ["report", "paused"]),
        ("unhandled", ["slack.reaction_added"]),
        ("behind", ["agent-turn"]),
        ("asks", ["deploy"]),
        ("died", ["died"]),
        ("expired", ["expired"]),
    ],
)
async def test_an_events_screen_tells_what_became_of_it(shown: Shown, scene: str, words: list[str]) -> None:
    status, text = await shown.get(f"/events/{getattr(shown.scenes, scene)}")
    assert status == 200
    assert [word for word in words if word not in text] == []


async def test_an_events_screen_shows_a_step_that_failed_for_good_its_tags_and_its_progress(
    shown: Shown,
) -> None:
    identity = await shown.stage.queue.enqueue("charge")
    await shown.stage.claim("charge", "worker-a")
    for call in (
        "select agent.store_step($1, 1, 'pay', 1, null, null, '[]', interval '1 second', true)",
        """select agent.store_tags($1, 1, '{"customer": {"found_by": "Acme", "value": "Acme"}}')""",
        """select agent.open_step($1, 1, 'progress', 0, '"3 of 7 files"')""",
    ):
        await shown.stage.calls.execute(call, identity)
    status, text = await shown.get(f"/events/{identity}")
    assert status == 200
    line = text.partition('-step failed for good"')[2].partition("</li>")[0]
    assert 'data-state="failed"' in line
    assert [word for word in ("pay: ", "Acme", "3 of 7 files") if word not in text] == []


@pytest.mark.parametrize(
    "path",
    [
        "/kinds/never-stored",
        "/workers/nobody",
        "/events/999999999",
        "/workflows/999999999",
        "/schedules/none",
        "/waiting?cursor=nonsense",
        "/workflows?cursor=nonsense",
    ],
)
async def test_a_screen_says_what_it_does_not_find(shown: Shown, path: str) -> None:
    status, text = await shown.get(path)
    assert (status, "Not found" in text) == (404, True)
