"""The operator's page in a browser: kinds, schedules, workflows, people, workers, the doctor, actions."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import asyncpg
import pytest

from surelane import Queue
from surelane.calls import Connection, Pool
from surelane.jobs import Continuation, Job
from surelane_operator.api.api import OperatorApi
from surelane_operator.changes import Changes
from surelane_operator.doctor import Examinations
from surelane_service.cron import Cron
from surelane_service.engine import Engine
from tests.browser.console_page import SignedIn, accessible, console_at, expect, opened
from tests.sql.queue_steps import claim, complete, continue_with, fail, pair

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

pytestmark = pytest.mark.browser

SCREENS = (
    *("", "?span=day", "kinds/chat?span=day"),
    *("kinds", "kinds/chat", "workflows", "schedules", "schedules/report", "workers", "workers/worker-1"),
    *("waiting", "doctor", "usage", "actions"),
)
MESSAGE = "https://slack.com/app_redirect?team=&channel=C024BE91L&message_ts=1767225600.000100"
ASKED = {
    "ts": "1767225600.000100",
    "channel": "C024BE91L",
    "thread_ts": None,
    "at": "2026-01-01T00:00:00Z",
    "text": "Shall I refund order 4711 to the customer?",
    "choices": ["Refund", "Leave it"],
    "by": ["U1", "U2"],
    "judged": False,
}


@dataclass
class Stage:
    """The page, and what is in its database."""

    url: str
    pool: Pool
    joining: int
    asking: int
    running: int


async def _asking(queue: Connection) -> int:
    await Queue(queue).enqueue("refund", {})
    (row,) = await claim(queue, "refund", worker="worker-1")
    await queue.execute(
        "select agent.store_step($1, $2, 'ask:1 asked', 1, null, $3::json, '[]', interval '0', true)",
        *pair(row),
        json.dumps(ASKED),
    )
    waits = {"waits": [{"sort": "wait", "name": "ask:1", "nth": 1, "seconds": 86400}], "blocking": False}
    await queue.execute(
        "select agent.settle(array[$1::int8], array[$2::int4], array['suspend'], array[$3::jsonb])",
        *pair(row),
        json.dumps(waits),
    )
    identity: int = row["id"]
    return identity


async def _workflow(queue: Connection) -> int:
    """Store an orchestration in the middle: a failed child, one that runs, one that fanned out itself."""
    await Queue(queue).enqueue("orchestrator-plan", {})
    (plan,) = await claim(queue, "orchestrator-plan")
    parts = [Job("orchestrator-subtask", {"n": number}, max_attempts=1) for number in range(6)]
    await continue_with(queue, pair(plan), parts, Continuation("orchestrator-synthesize"))
    done, failed, inner, *_ = await claim(queue, "orchestrator-subtask", limit=4, worker="worker-1")
    await complete(queue, pair(done))
    await fail(queue, pair(failed), errors=[json.dumps({"type": "ValueError", "message": "no such order"})])
    await continue_with(queue, pair(inner), [Job("lookup")] * 3, Continuation("collect"))
    found: int = await queue.fetchval("select id from agent.event where kind = 'orchestrator-synthesize'")
    return found


@pytest.fixture(scope="module")
async def stage(shared_database: str) -> AsyncIterator[Stage]:
    """Serve the page on a database with something on every screen."""
    queue = await asyncpg.connect(shared_database)
    engine = Engine(queue)
    await announce(queue)
    await engine.declare_limits("worker-2", ["chat"], {"chat": {"per": "workspace", "concurrency": 2}})
    for number in range(12):
        await Queue(queue).enqueue("chat", {"team_id": f"T{number % 3}"})
    await claim(queue, "chat", worker="worker-1")
    await Queue(queue).enqueue("nightly", {})
    operations = Changes(queue)
    await operations.set_cron(
        "report", Cron("0 9 * * 1-5", "Europe/Berlin"), kind="nightly", payload={"to": "C1"}
    )
    last = Cron("0 9 * * 1-5", "Europe/Berlin").last_until(datetime.now(UTC))
    due = await queue.fetchval("select next_at from agent.cron where name = 'report'")
    await engine.fire_cron("report", due, [last], due)
    await queue.execute("update agent.measurement set due = '-infinity'")
    joining, asking = await _workflow(queue), await _asking(queue)
    running = await queue.fetchval(
        "select min(id) from agent.event where kind = 'chat' and claimed_by = 'worker-1'"
    )
    async with asyncpg.create_pool(shared_database, min_size=1, max_size=3) as pool:
        examinations = Examinations(shared_database)
        routes = tuple(OperatorApi(Changes(pool), examinations).routes())
        async with console_at(pool, routes=routes, examination=examinations.latest) as url:
            yield Stage(url, pool, joining, asking, running)
    await queue.close()


async def announce(database: Connection | Pool) -> None:
    """Let the workers say that they are alive, as they do every 20 seconds."""
    kinds = ["chat", "refund", "orchestrator-plan", "orchestrator-subtask", "lookup"]
    for number in (1, 2):
        await Engine(database).announce_worker(
            f"worker-{number}", kinds, "1.0.0", timedelta(milliseconds=12), 3
        )


@pytest.fixture
async def page(browser: "Browser", stage: Stage) -> AsyncIterator["Page"]:
    await announce(stage.pool)
    async with opened(browser, f"{stage.url}/console/kinds") as found:
        yield found


async def test_every_screen_is_accessible_and_fits_a_phone(page: "Page", stage: Stage) -> None:
    await page.set_viewport_size({"width": 390, "height": 780})
    for screen in (*SCREENS, f"workflows/{stage.joining}"):
        response = await page.goto(f"{stage.url}/console/{screen}")
        assert response is not None
        assert response.status == 200, screen
        assert await accessible(page) == [], screen
        wider = await page.evaluate(
            "document.querySelector('main').scrollWidth - document.querySelector('main').clientWidth"
        )
        assert wider <= 0, screen


async def test_a_kind_is_paused_resumed_and_limited(page: "Page", stage: Stage) -> None:
    row = page.get_by_role("row", name="refund")
    await row.get_by_role("button", name="Pause").click()
    await page.get_by_role("button", name="Yes").click()
    await expect(row.get_by_text("paused")).to_be_visible()
    await row.get_by_role("button", name="Resume").click()
    await expect(row.get_by_role("button", name="Pause")).to_be_visible()

    await page.goto(f"{stage.url}/console/kinds/chat")
    await expect(page.get_by_text("2 at once per workspace")).to_be_visible()
    await page.get_by_label("At once").fill("5")
    await page.get_by_role("button", name="Change").click()
    await expect(page.get_by_text("5 at once per workspace")).to_be_visible()
    await page.get_by_role("button", name="Reset").click()
    await expect(page.get_by_text("2 at once per workspace")).to_be_visible()

    await page.goto(f"{stage.url}/console/actions")
    for done in ("pause", "resume", "set limit", "reset limit"):
        await expect(page.get_by_role("cell", name=done, exact=True).first).to_be_visible()


async def test_typing_goes_on_while_the_page_changes_above_the_field(page: "Page", stage: Stage) -> None:
    operations = Changes(stage.pool)
    await page.goto(f"{stage.url}/console/schedules/report")
    await expect(page.locator("#connection")).to_have_attribute("data-state", "live")
    field, notice = page.get_by_label("Time zone"), page.get_by_text("This schedule is paused")
    await field.fill("")
    assert await operations.pause_cron("report")
    await expect(notice).to_be_visible()
    await page.keyboard.type("Asia/")
    assert await operations.resume_cron("report")
    await expect(notice).to_be_hidden()
    await page.keyboard.type("Tokyo")
    await expect(field).to_have_value("Asia/Tokyo")


async def test_nothing_moves_under_a_pressed_button(page: "Page") -> None:
    script = """async () => {
      const { show } = await import("/console/static/live.js");
      const content = document.querySelector("#live");
      content.querySelector("button").dispatchEvent(new PointerEvent("pointerdown", { bubbles: true }));
      show("<p>all is new</p>");
      const pressed = content.textContent.includes("all is new");
      dispatchEvent(new PointerEvent("pointerup"));
      await new Promise((resolve) => setTimeout(resolve));
      return [pressed, content.textContent];
    }"""
    assert await page.evaluate(script) == [False, "all is new"]


async def test_a_schedule_is_edited_and_run(page: "Page", stage: Stage) -> None:
    await page.goto(f"{stage.url}/console/schedules")
    await page.get_by_role("link", name="report").click()
    await expect(page.locator(".firings li")).to_have_count(5)
    await page.get_by_label("Time zone").fill("America/New_York")
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_text("in America/New_York")).to_be_visible()
    await page.get_by_role("button", name="Pause").click()
    await expect(page.get_by_text("This schedule is paused")).to_be_visible()
    await page.get_by_role("button", name="Run now").click()
    await page.wait_for_url("**/console/events/*")
    assert (
        await stage.pool.fetchval(
            "select event ->> 'to' from agent.event where id = $1", int(page.url.rpartition("/")[2])
        )
        == "C1"
    )


async def test_a_workflow_is_a_tree_that_any_of_its_events_opens(page: "Page", stage: Stage) -> None:
    await page.goto(f"{stage.url}/console/workflows")
    await page.get_by_role("link", name=str(stage.joining), exact=True).click()
    tree = page.locator(".tree")
    await expect(tree.get_by_text("ValueError")).to_be_visible()
    await expect(tree.locator(".leaf", has_text="lookup")).to_have_count(3)
    inner = await stage.pool.fetchval("select min(id) from agent.event where kind = 'lookup'")
    await page.goto(f"{stage.url}/console/workflows/{inner}")
    await expect(page.get_by_label("Way from the root").get_by_role("link")).to_have_count(2)


async def test_an_open_question_leads_to_its_event_and_message(page: "Page", stage: Stage) -> None:
    await page.goto(f"{stage.url}/console/waiting")
    row = page.get_by_role("row", name="Shall I refund")
    await expect(row.get_by_text("U1")).to_be_visible()
    await expect(row.get_by_role("link", name=str(stage.asking))).to_have_attribute(
        "href", f"/console/events/{stage.asking}"
    )
    await expect(row.get_by_role("link", name="in C024BE91L")).to_have_attribute("href", MESSAGE)


async def test_a_worker_shows_what_it_runs(page: "Page", stage: Stage) -> None:
    await page.goto(f"{stage.url}/console/workers")
    await page.get_by_role("row").get_by_role("link", name="worker-1", exact=True).click()
    await expect(page.get_by_role("link", name=str(stage.running), exact=True)).to_be_visible()


async def test_the_doctor_looks_again_when_asked(page: "Page", stage: Stage) -> None:
    await page.goto(f"{stage.url}/console/doctor")
    await expect(page.locator(".findings li").first).to_be_visible()
    await page.get_by_role("button", name="Look again").click()
    await expect(page.get_by_text("The doctor has looked.")).to_be_visible()


async def test_a_viewer_is_offered_no_change(browser: "Browser", stage: Stage) -> None:
    async with (
        console_at(stage.pool, people=SignedIn("viewer")) as url,
        opened(browser, f"{url}/console/kinds/chat") as page,
    ):
        await expect(page.get_by_role("heading", name="chat")).to_be_visible()
        await expect(page.get_by_role("button", name="Pause")).to_be_hidden()
        await expect(page.get_by_role("button", name="Change")).to_be_hidden()
