"""The operator's page in a browser: keyboard, live updates, changes, phones, accessibility.

What the screens say is checked in their HTML by ``tests/system/test_console_screens.py``.
"""

import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import asyncpg
import pytest

from surelane.calls import Pool
from surelane_operator.changes import Changes
from surelane_operator.console.live import Live
from tests.browser.console_page import SignedIn, console_at, opened
from tests.browser.console_scenes import CHANNEL, Scenes, Stage, announce, furnish, link_to, seed
from tests.browser.slack_page import Browser, expect
from tests.processes import free_port

pytestmark = pytest.mark.browser


class Desk:
    """The page, its database and its scenes, which the tests of this module share."""

    def __init__(
        self, browser: Browser, pool: Pool, stage: Stage, scenes: Scenes, joining: int, url: str
    ) -> None:
        self.browser, self.pool, self.stage, self.scenes, self.url = browser, pool, stage, scenes, url
        self.joining = joining

    def open(self, address: str = "/console/", **options: Any) -> Any:
        """Open a screen."""
        return opened(self.browser, self.url + address, **options)

    async def failed(self, kind: str, error: str = "broken") -> int:
        """Store an event and let its only attempt fail."""
        identity = await self.stage.queue.enqueue(kind, {"n": 1, "user_id": "U0BOB"}, max_attempts=1)
        await self.stage.claim(kind, "worker-a")
        await self.stage.fail(identity, 1, last=True, message=error)
        return identity


@pytest.fixture(scope="module")
async def shared(browser: Browser, shared_database: str) -> AsyncIterator[Desk]:
    async with asyncpg.create_pool(shared_database, min_size=1, max_size=4) as pool, console_at(pool) as url:
        stage = Stage(pool)
        yield Desk(browser, pool, stage, await seed(stage), await furnish(stage), url)


@pytest.fixture
async def desk(shared: Desk) -> Desk:
    """Keep the worker alive and the figures fresh."""
    await announce(shared.stage)
    await shared.pool.execute("update agent.measurement set due = '-infinity'")
    return shared


async def test_a_message_is_found_by_its_link_and_everything_is_reached_by_keyboard(desk: Desk) -> None:
    ts = desk.scenes.reply
    async with desk.open() as page:
        await page.locator("h1").wait_for()
        await page.keyboard.press("/")
        await page.keyboard.type(link_to(ts, desk.scenes.thread.rpartition(":")[2]))
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", level=1)).to_have_text(f"Event {desk.scenes.behind}")
        await page.goto(f"{desk.url}/console/")
        await page.keyboard.press("Tab")
        await expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        await page.keyboard.press("Enter")
        await page.wait_for_url("**#*")
        await page.keyboard.press("Tab")
        await page.keyboard.press("Tab")
        assert await page.evaluate("document.activeElement.closest('main') !== null")


async def test_an_open_page_follows_its_event(desk: Desk) -> None:
    identity = await desk.stage.queue.enqueue("agent-turn")
    async with desk.open(f"/console/events/{identity}") as page:
        await expect(page.locator("#connection")).to_have_text("live")
        await expect(page.locator("#live .badge").first).to_have_text("pending")
        details = page.get_by_role("button", name="Show the payload")
        await details.focus()
        await desk.stage.claim("agent-turn", "worker-a")
        await expect(page.locator("#live .badge").first).to_have_text("running")
        await desk.pool.execute("select agent.complete_events(array[$1::int8], array[1])", identity)
        await expect(page.locator("#why")).to_have_text("It completed on attempt 1.")
        await expect(details).to_be_focused()


async def test_a_page_says_that_it_is_stale_and_comes_back(desk: Desk) -> None:
    port = free_port()
    async with AsyncExitStack() as stack:
        async with console_at(desk.pool, port=port) as url:
            page = await stack.enter_async_context(opened(desk.browser, f"{url}/console/"))
            await expect(page.locator("#connection")).to_have_text("live")
        await expect(page.locator("#connection")).to_contain_text("not up to date")
        async with console_at(desk.pool, port=port):
            await expect(page.locator("#connection")).to_have_text("live")
            await page.goto("about:blank")


async def test_a_page_that_is_one_too_many_says_so(desk: Desk) -> None:
    async with (
        console_at(desk.pool, live=Live(most_each=1)) as url,
        opened(desk.browser, f"{url}/console/") as first,
    ):
        await expect(first.locator("#connection")).to_have_text("live")
        async with opened(desk.browser, f"{url}/console/kinds") as second:
            await expect(second.locator("#connection")).to_have_text(
                "not up to date: 1 of your pages are live: close some"
            )


async def test_a_failed_event_runs_again_and_is_cancelled_only_after_yes(desk: Desk) -> None:
    identity = await desk.failed("again")
    async with desk.open(f"/console/events/{identity}") as page:
        await page.get_by_role("button", name="Run again").click()
        await page.get_by_role("dialog").get_by_role("button", name="Yes").click()
        await expect(page.get_by_role("status").last).to_have_text("It is in the queue again.")
        await expect(page.locator("#live .badge").first).to_have_text("pending")
        await expect(page.get_by_role("list").filter(has_text="run again")).to_be_visible()
        await page.get_by_role("button", name="Cancel").click()
        await page.get_by_role("dialog").get_by_role("button", name="No").click()
        await expect(page.locator("#live .badge").first).to_have_text("pending")
        await page.get_by_role("button", name="Cancel").click()
        await page.get_by_role("dialog").get_by_role("button", name="Yes").click()
        await expect(page.locator("#live .badge").first).to_have_text("cancelled")


async def test_a_payload_is_hidden_until_somebody_asks_and_runs_again_edited(desk: Desk) -> None:
    identity = await desk.failed("edited")
    async with desk.open(f"/console/events/{identity}") as page:
        shown = await page.content()
        assert '"U0BOB"' not in shown
        assert "Traceback" not in shown
        looked = "select count(*) from agent.operator_action where target = $1"
        before = await desk.pool.fetchval(looked, f"event {identity}")
        await page.get_by_role("button", name="Show the payload").click()
        await expect(page.locator("pre[data-shows]")).to_contain_text('"U0BOB"')
        await expect(page.locator("pre[data-errors]")).to_contain_text("Traceback")
        assert await desk.pool.fetchval(looked, f"event {identity}") == before + 1
        await page.get_by_text("Run again with another payload").click()
        box = page.get_by_role("textbox", name="The new event's payload, JSON")
        await box.fill('{"n": 2')
        await page.get_by_role("button", name="Run again with this payload").click()
        await expect(page.get_by_text("This is not JSON")).to_be_visible()
        await box.fill('{"n": 2}')
        await page.get_by_role("button", name="Run again with this payload").click()
        await page.get_by_role("dialog").get_by_role("button", name="Yes").click()
        await expect(page.locator("dd").get_by_role("link", name=str(identity), exact=True)).to_be_visible()
        again = int(page.url.rpartition("/")[2])
    payload = await desk.pool.fetchval("select event from agent.event where id = $1", again)
    assert json.loads(payload) == {"n": 2}


async def test_an_event_runs_again_from_a_step(desk: Desk) -> None:
    identity = await desk.stage.queue.enqueue("stepped", {"n": 1}, max_attempts=1)
    await desk.stage.claim("stepped", "worker-a")
    for name in ("plan", "build"):
        store = "select agent.store_step($1, 1, $2, 1, null, '1', '[]', interval '0.1 seconds', true)"
        await desk.pool.execute(store, identity, name)
    await desk.stage.fail(identity, 1, last=True)
    async with desk.open(f"/console/events/{identity}") as page:
        await page.get_by_role("combobox", name="From").select_option("build")
        await page.get_by_role("button", name="Run again").click()
        await page.get_by_role("dialog").get_by_role("button", name="Yes").click()
        await expect(page.get_by_text("from step build, steps kept: 1")).to_be_visible()


async def test_some_events_run_again_together(desk: Desk) -> None:
    ids = [await desk.failed("some") for _ in range(3)]
    async with desk.open("/console/events?kind=some") as page:
        for identity in ids[:2]:
            await page.get_by_role("checkbox", name=f"Select event {identity}").check()
        await page.get_by_role("button", name="Run again").click()
        await expect(page.get_by_role("dialog")).to_contain_text("Run 2 events again?")
        await page.get_by_role("dialog").get_by_role("button", name="Yes").click()
        await expect(page.get_by_role("status").last).to_contain_text("2 run again")
        await expect(page.get_by_role("row").filter(has_text="pending")).to_have_count(2)
        await expect(page.locator("#picking")).to_be_hidden()


async def test_all_that_match_are_cancelled_and_those_on_other_pages_too(desk: Desk) -> None:
    await desk.pool.execute(
        "select agent.enqueue('crowded', jsonb_build_object('team_id', 'T' || n % 4), 0)"
        " from generate_series(1, 300) as n"
    )
    async with desk.open("/console/events?kind=crowded&status=pending&workspace=T3") as page:
        await page.get_by_role("checkbox", name="Select all on this page").check()
        await expect(page.locator("#picked")).to_have_text("50")
        await page.get_by_role("checkbox", name="all that match").check()
        await page.get_by_role("button", name="Cancel").click()
        await expect(page.get_by_role("dialog")).to_contain_text("Cancel 75 events?")
        await page.get_by_role("dialog").get_by_role("button", name="Yes").click()
        await expect(page.get_by_role("status").last).to_contain_text("75 cancelled, of 300 looked at")


async def test_a_viewer_is_offered_no_change(desk: Desk) -> None:
    async with console_at(desk.pool, people=SignedIn("viewer")) as url:
        for address in (
            *(f"/console/events/{desk.scenes.failed}", "/console/events"),
            *("/console/kinds/deploy", "/console/schedules/daily"),
        ):
            async with opened(desk.browser, url + address) as page:
                await expect(page.locator("#connection")).to_have_text("live")
                for part in await page.locator("[data-action]:not(.sign-out), .operators").all():
                    await expect(part).to_be_hidden()


PRESS = """async () => {
  const { show } = await import("/console/static/live.js");
  const content = document.querySelector("#live");
  content.querySelector("button").dispatchEvent(new PointerEvent("pointerdown", { bubbles: true }));
  show("<p>all is new</p>");
  const pressed = content.textContent.includes("all is new");
  dispatchEvent(new PointerEvent("pointerup"));
  await new Promise((resolve) => setTimeout(resolve));
  return [pressed, content.textContent];
}"""


async def test_a_kind_is_paused_resumed_limited_and_nothing_moves_under_a_button(desk: Desk) -> None:
    async with desk.open("/console/kinds") as page:
        assert await page.evaluate(PRESS) == [False, "all is new"]
        await page.reload()
        row = page.get_by_role("row", name="deploy")
        await row.get_by_role("button", name="Pause").click()
        await page.get_by_role("button", name="Yes").click()
        await expect(row.get_by_text("paused")).to_be_visible()
        await row.get_by_role("button", name="Resume").click()
        await expect(row.get_by_role("button", name="Pause")).to_be_visible()

        await page.goto(f"{desk.url}/console/kinds/deploy")
        await expect(page.get_by_text("2 at once per workspace")).to_be_visible()
        await page.get_by_label("At once").fill("5")
        await page.get_by_role("button", name="Change").click()
        await expect(page.get_by_text("5 at once per workspace")).to_be_visible()
        await page.get_by_role("button", name="Reset").click()
        await expect(page.get_by_text("2 at once per workspace")).to_be_visible()

        await page.goto(f"{desk.url}/console/actions")
        for done in ("pause", "resume", "set limit", "reset limit"):
            await expect(page.get_by_role("cell", name=done, exact=True).first).to_be_visible()


async def test_a_schedule_is_edited_while_the_page_changes_above_the_field_and_run(desk: Desk) -> None:
    operations = Changes(desk.pool)
    async with desk.open("/console/schedules") as page:
        await page.get_by_role("link", name="daily").click()
        await expect(page.locator(".firings li")).to_have_count(5)
        await expect(page.locator("#connection")).to_have_attribute("data-state", "live")
        field, notice = page.get_by_label("Time zone"), page.get_by_text("This schedule is paused")
        await field.fill("")
        assert await operations.pause_cron("daily")
        await expect(notice).to_be_visible()
        await page.keyboard.type("Asia/")
        assert await operations.resume_cron("daily")
        await expect(notice).to_be_hidden()
        await page.keyboard.type("Tokyo")
        await expect(field).to_have_value("Asia/Tokyo")
        await field.fill("America/New_York")
        await page.get_by_role("button", name="Save").click()
        await expect(page.get_by_text("in America/New_York")).to_be_visible()
        await page.get_by_role("button", name="Pause").click()
        await expect(notice).to_be_visible()
        await page.get_by_role("button", name="Run now").click()
        await page.wait_for_url("**/console/events/*")
        identity = int(page.url.rpartition("/")[2])
    to = await desk.pool.fetchval("select event ->> 'to' from agent.event where id = $1", identity)
    assert to == "C1"


async def test_times_are_in_the_persons_zone_with_utc_beside_them_and_the_filter_asks_in_it(
    desk: Desk,
) -> None:
    async with desk.open(f"/console/events/{desk.scenes.asks}", timezone_id="Asia/Tokyo") as page:
        for place in ("dd > time", "#why time", ".timeline time"):
            shown = page.locator(place).first
            told = await shown.get_attribute("datetime")
            at = datetime.fromisoformat(told or "").astimezone(timezone(timedelta(hours=9)))
            await expect(shown).to_contain_text(f"{at:%Y-%m-%d %H:%M:%S}")
            await expect(shown).to_have_attribute("data-utc", re.compile(f"{at.astimezone(UTC):%H:%M:%S}$"))
        await expect(page.get_by_text("Times are in Asia/Tokyo.")).to_be_visible()
        await page.goto(f"{desk.url}/console/")
        axis = page.locator(".axis time").first
        at = datetime.fromisoformat(await axis.get_attribute("datetime") or "") + timedelta(hours=9)
        await expect(axis).to_have_text(f"{at:%H:%M}")
        await page.goto(f"{desk.url}/console/events?since=2026-01-31T03:00Z")
        await expect(page.get_by_label("From")).to_have_value("2026-01-31 12:00")
        await page.get_by_role("button", name="Show").click()
        await page.wait_for_url("**since=2026-01-31T03%3A00Z**")


async def test_a_phone_has_the_screens_behind_a_button_and_the_doctor_looks_again(desk: Desk) -> None:
    async with desk.open(viewport={"width": 390, "height": 780}, has_touch=True, is_mobile=True) as page:
        link = page.get_by_role("navigation").get_by_role("link", name="Events")
        await expect(link).to_be_hidden()
        await page.get_by_role("button", name="Screens").tap()
        await link.tap()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Events")
        await page.goto(f"{desk.url}/console/doctor")
        await expect(page.locator(".findings li").first).to_be_visible()
        await page.get_by_role("button", name="Look again").tap()
        await expect(page.get_by_text("The doctor has looked.")).to_be_visible()


PANELS = (
    *("", "?span=day", "kinds/deploy?span=day", "kinds", "kinds/deploy", "workflows", "schedules"),
    *("schedules/daily", "workers", "workers/worker-a", "waiting", "doctor", "usage", "actions"),
    *("workflows/{joining}", "feedback", "shards"),
)
SCREENS = {
    "overview": "/console/",
    "events": "/console/events",
    "failed": "/console/events/{failed}",
    "asks": "/console/events/{asks}",
    "thread": "/console/thread?key={thread}",
    "never": f"/console/find?q={CHANNEL}+1700000000.000100",
    "nothing": "/console/find?q=nothing-like-this",
    "missing": "/console/events/999999999",
    **{f"panel {address}": f"/console/{address}" for address in PANELS},
}
