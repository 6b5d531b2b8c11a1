"""Every screen of the page shows what it is for, and says what it does not find."""

import re
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
        ("/usage", ["Usage of models"]),
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
        await shown.stage.calls.fetch(call, identity)
    status, text = await shown.get(f"/events/{identity}")
    assert status == 200
    line = text.partition('-step failed for good"')[2].partition("</li>")[0]
    assert 'data-state="failed"' in line
    assert [word for word in ("pay: ", "Acme", "3 of 7 files") if word not in text] == []


async def test_usage_shows_tokens_and_cost_by_day_workspace_and_model_of_the_last_thirty_days(
    shown: Shown,
) -> None:
    assert "No model was asked" in (await shown.get("/usage"))[1]
    for day, team, user, model, cost in (
        (0, "TDEAR", "U1", "openai:gpt-5", "0.5"),
        (0, "TDEAR", "U2", "openai:gpt-5", "1.25"),
        (0, "TCHEAP", "U1", "local:<b>", "0"),
        (1, "", "", "openai:gpt-5", "9"),
        (29, "TOLDEST", "U1", "m", "1"),
        (30, "TGONE", "U1", "m", "1"),
    ):
        await shown.stage.calls.fetch(
            "insert into agent.model_usage (day, owner_id, user_id, model, requests, input_tokens, output_tokens"
            ", cost, latest) select (agent.clock() at time zone 'utc')::date - $1::int4, $2, $3, $4, 2, 1000, 500"
            ", $5::text::numeric, ''",
            *(day, team, user, model, cost),
        )
    status, text = await shown.get("/usage")
    assert status == 200
    drawn, _, listed = text.partition('<caption class="unseen">Usage of models')
    assert [drawn.count(each) for each in ("<svg", "<title>", ">Tokens</title>")] == [2, 7, 1]
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in listed.split("<tr data-key=")[1:]]
    today, yesterday = rows[0][0], rows[2][0]
    assert rows[:3] == [
        [today, "TDEAR", "openai:gpt-5", "4", "2,000", "1,000", "1.7500"],
        [today, "TCHEAP", "local:&lt;b&gt;", "2", "1,000", "500", "0.0000"],
        [yesterday, '<span class="soft">none</span>', "openai:gpt-5", "2", "1,000", "500", "9.0000"],
    ]
    assert today > yesterday
    assert ("TOLDEST" in text, "TGONE" in text, "U1" in text) == (True, False, False)
    assert 'scope="row"' in listed
    async with shown.session.get(f"{shown.url}/v1/usage") as answer:
        found = (await answer.json())["usage"]
    assert (len(found), found[0]["workspace"], float(found[0]["cost"])) == (4, "TDEAR", 1.75)


@pytest.mark.parametrize("path", ["/", "/kinds/slack.message.im", "/?span=day", "/?span=nonsense"])
async def test_what_happened_is_drawn_over_time_with_a_table_for_each_drawing(
    shown: Shown, path: str
) -> None:
    status, text = await shown.get(path)
    assert status == 200
    charts = re.findall(r'<figure class="chart".*?</figure>', text, re.DOTALL)
    assert [re.findall(r'<title id="[^"]*">([^<]*)', each) for each in charts] == [
        ["Depth"],
        ["Completed and cancelled"],
        ["Failed and expired"],
        ["Wait for a worker"],
    ]
    ended = charts[1]
    assert re.search(r"<title>\d\d:\d\d: completed 6, cancelled 0</title>", ended)
    assert re.search(r'<th scope="row">\d\d:\d\d</th><td class="number">6</td>', ended)
    assert ('<rect data-state="failed"' in charts[2]) == (path[1:6] != "kinds")
    assert ("The last day, by half hours" in text) == ("day" in path)


async def test_the_screen_of_installations_tells_how_each_does_and_which_is_away(
    shown: Shown, shared_database: str
) -> None:
    assert "/console/shards" not in (await shown.get("/"))[1]
    assert "SURELANE_SHARDS names them" in (await shown.get("/shards"))[1]
    shards = {"alpha": shared_database, "beta": "postgresql://127.0.0.1:9/away"}
    async with (
        asyncpg.create_pool(shared_database, min_size=1, max_size=1) as pool,
        console_at(pool, shards=shards) as url,
    ):
        other = Shown(url, shown.session, shown.scenes, shown.stage)
        assert '<a href="/console/shards">All 2 installations</a>' in (await other.get("/"))[1]
        _, text = await other.get("/shards")
    alpha, beta = re.findall(r'<tr data-key="(?:alpha|beta)">(.*?)</tr>', text, re.DOTALL)
    waiting, running, later, workers = map(int, re.findall(r'<td class="number">(\d+)</td>', alpha))
    assert min(waiting, running, workers) > 0
    assert later >= 0
    assert "away" in beta
    assert "number" not in beta


async def test_the_overview_has_the_hours_of_each_workspace(shown: Shown) -> None:
    _, text = await shown.get("/")
    row = re.search(r'<a href="/console/events\?workspace=T0SURELANE">.*?</tr>', text, re.DOTALL)
    assert row is not None
    counts = [int(each) for each in re.findall(r'data-heat="[1-5]">(\d+)<', row[0])]
    assert (row[0].count("<td"), sum(counts) >= 8) == (24, True)


async def test_steps_are_drawn_over_time(shown: Shown) -> None:
    _, text = await shown.get(f"/events/{shown.scenes.asks}")
    rows = re.findall(
        r'<tr data-key="w\d+"><th scope="row">([^<]*)</th>.*?<rect data-state="(\w+)"', text, re.DOTALL
    )
    assert rows == [
        ("plan", "completed"),
        ("approve deploy:1 asked", "completed"),
        ("approve deploy:1", "waits"),
    ]
    assert "Steps over time" not in (await shown.get(f"/events/{shown.scenes.completed}"))[1]


async def test_an_ended_event_has_one_button_and_a_live_one_none_to_run_again(shown: Shown) -> None:
    button = re.compile(r"<button[^>]*>(Run [^<]*)<")
    ended, live = [
        (await shown.get(f"/events/{each}"))[1] for each in (shown.scenes.completed, shown.scenes.asks)
    ]
    assert button.findall(ended.partition('class="columns"')[0]) == ["Run again"]
    assert "Its handler does everything once more" in ended
    assert button.findall(live.partition('class="columns"')[0]) == []


async def test_workers_are_listed_by_version_with_what_their_runs_say(shown: Shown) -> None:
    await shown.stage.calls.fetch(
        "select agent.announce_worker('worker-new', '{chat}', '1.1.0', interval '0', 3)"
    )
    identity = await shown.stage.queue.enqueue("chat")
    await shown.stage.claim("chat", "worker-new")
    for call in (
        """select agent.store_tags($1, 1, '{"customer": {"found_by": "Acme", "value": "Acme"}}')""",
        """select agent.open_step($1, 1, 'progress', 0, '"3 of 7 files"')""",
    ):
        await shown.stage.calls.fetch(call, identity)
    _, text = await shown.get("/workers")
    versions = re.findall(r'<dt>([\d.]+)</dt><dd>\d+ workers?: .*?">(worker-[\w]+)', text)
    assert versions == [("1.0.0", "worker-a"), ("1.1.0", "worker-new")]
    assert "Live workers run 2 versions" in text
    _, text = await shown.get("/workers/worker-new")
    assert [
        word for word in ("3 of 7 files", "/console/events?tag=customer%3AAcme") if word not in text
    ] == []


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
