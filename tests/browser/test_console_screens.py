"""The operator's page in a browser: from the overview to the cause of an unanswered message, and what helps."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from surelane.calls import Pool
from surelane_operator.console.live import Live
from tests.browser.console_page import SignedIn, accessible, console_at, expect, opened
from tests.browser.console_scenes import CHANNEL, Scenes, Stage, announce, mention, seed, ts_of
from tests.processes import free_port

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

pytestmark = pytest.mark.browser
LINK = "https://acme.slack.com/archives/{channel}/p{ts}"


class Desk:
    """The page, its database and its scenes, which the tests of this module share."""

    def __init__(self, browser: "Browser", pool: Pool, stage: Stage, scenes: Scenes, url: str) -> None:
        self.browser, self.pool, self.stage, self.scenes, self.url = browser, pool, stage, scenes, url

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
async def shared(browser: "Browser", shared_database: str) -> AsyncIterator[Desk]:
    async with (
        asyncpg.create_pool(shared_database, min_size=1, max_size=4) as pool,
        console_at(pool) as url,
    ):
        stage = Stage(pool)
        yield Desk(browser, pool, stage, await seed(stage), url)


@pytest.fixture
async def desk(shared: Desk) -> Desk:
    """Keep the worker alive and the figures fresh."""
    await announce(shared.stage)
    await shared.pool.execute("update agent.measurement set due = '-infinity'")
    return shared


CAUSES = {
    "failed": "It failed after 3 attempts: all its attempts were used. LookupError",
    "paused": "its kind is paused",
    "unhandled": "no running worker handles kind slack.reaction_added",
    "behind": "It waits behind another event of its thread",
    "asks": "waits for approve deploy:1",
    "died": "worker worker-b died at",
    "expired": "It expired after no attempt: it waited for a worker for so long",
}


@pytest.mark.parametrize("cause", CAUSES)
async def test_the_cause_is_one_click_from_the_overview(desk: Desk, cause: str) -> None:
    async with desk.open() as page:
        await page.locator(f'a[href="/console/events/{getattr(desk.scenes, cause)}"]').first.click()
        await expect(page.locator("#why")).to_contain_text(CAUSES[cause])


async def test_the_event_that_comes_first_is_one_click_further(desk: Desk) -> None:
    async with desk.open(f"/console/events/{desk.scenes.behind}") as page:
        await page.get_by_role("link", name=f"Event {desk.scenes.first}").click()
        await expect(page.locator("#why")).to_contain_text("A worker handles it now")


async def find(page: "Page", text: str) -> None:
    """Look for something by keyboard."""
    await page.locator("h1").wait_for()
    await page.keyboard.press("/")
    await page.keyboard.type(text)
    await page.keyboard.press("Enter")


async def test_a_duplicate_leads_to_the_one_event(desk: Desk) -> None:
    ts = ts_of(desk.stage.now - timedelta(minutes=40))
    payload = json.dumps(mention(900, ts))
    insert = "select agent.insert_event($1)"
    one = await desk.pool.fetchval(insert, payload)
    await desk.pool.execute(insert, payload)
    async with desk.open() as page:
        await find(page, LINK.format(channel=CHANNEL, ts=ts.replace(".", "")))
        await expect(page.get_by_role("heading", level=1)).to_have_text(f"Event {one}")
        await expect(page.locator("dd").get_by_text("Ev0CONSOLE900", exact=True)).to_be_visible()


async def test_a_reply_in_a_thread_is_found_by_its_link(desk: Desk) -> None:
    ts = ts_of(desk.stage.now - timedelta(minutes=11)).replace(".", "")
    thread = desk.scenes.thread.rpartition(":")[2]
    async with desk.open() as page:
        await find(page, f"{LINK.format(channel=CHANNEL, ts=ts)}?thread_ts={thread}&cid={CHANNEL}")
        await expect(page.get_by_role("heading", level=1)).to_have_text(f"Event {desk.scenes.behind}")


async def test_a_message_that_never_arrived_says_what_may_be_wrong(desk: Desk) -> None:
    async with desk.open() as page:
        await find(page, LINK.format(channel=CHANNEL, ts="1700000000000100"))
        await expect(page.locator("#why")).to_contain_text("No event of this message was stored.")
        await expect(page.locator("main")).to_contain_text("Events of this channel have come lately")
        await expect(page.locator("main")).to_contain_text("count answers by status")


async def test_the_overview_shows_what_the_doctor_finds(desk: Desk) -> None:
    async with desk.open() as page:
        await expect(page.get_by_role("list").filter(has_text="ahead of the database")).to_be_visible()
        row = page.get_by_role("row").filter(has_text="slack.reaction_added no worker")
        await expect(row).to_be_visible()


async def test_a_reply_leads_to_its_message(desk: Desk) -> None:
    identity = await desk.stage.message("replying", timedelta(minutes=4))
    await desk.stage.claim("replying", "worker-a")
    notes = {
        "replies": {"0": "1767225600.000100", "1": None, "2": "", "3": "1767225700.000200"},
        "elsewhere": {"3": "C0OTHER"},
        "streams": {"4": {"ts": "1767225800.000300", "stopped": True}},
    }
    await desk.pool.execute("select agent.note_event($1, 1, $2)", identity, json.dumps(notes))
    await desk.pool.execute("select agent.complete_events(array[$1::int8], array[1])", identity)
    async with desk.open(f"/console/events/{identity}") as page:
        replies = page.get_by_role("listitem").filter(has_text="replied")
        await expect(replies).to_have_count(3)
        for nth, place in enumerate((CHANNEL, "C0OTHER", CHANNEL)):
            link = replies.nth(nth).get_by_role("link", name="open the message in Slack")
            await expect(link).to_have_attribute("href", re.compile(f"channel={place}&message_ts=17672257*"))


async def test_tags_and_progress_show_at_once_and_a_tag_leads_to_its_events(desk: Desk) -> None:
    identity = await desk.stage.queue.enqueue("agent-turn")
    await desk.stage.claim("agent-turn", "worker-a")
    async with desk.open(f"/console/events/{identity}") as page:
        await expect(page.locator("#live .badge").first).to_have_text("running")
        for call in (
            """select agent.store_tags($1, 1, '{"customer": {"found_by": "Acme, Inc.", "value": "Acme, Inc."}}')""",
            """select agent.open_step($1, 1, 'progress', 0, '"3 of 7 files"')""",
        ):
            await desk.pool.execute(call, identity)
        await expect(page.locator("#progress")).to_have_text("3 of 7 files")
        await page.get_by_role("link", name="Acme, Inc.").click()
        await expect(page.locator(f'a[href="/console/events/{identity}"]').first).to_be_visible()
        await expect(page.locator('input[name="tag"]')).to_have_value("customer:Acme, Inc.")


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


async def test_a_failed_event_runs_again(desk: Desk) -> None:
    identity = await desk.failed("again")
    async with desk.open(f"/console/events/{identity}") as page:
        await page.get_by_role("button", name="Run again").click()
        await page.get_by_role("dialog").get_by_role("button", name="Yes").click()
        await expect(page.get_by_role("status").last).to_have_text("It is in the queue again.")
        await expect(page.locator("#live .badge").first).to_have_text("pending")
        await expect(page.get_by_role("list").filter(has_text="run again")).to_be_visible()


async def test_a_waiting_event_is_cancelled_only_after_yes(desk: Desk) -> None:
    identity = await desk.stage.queue.enqueue("unwanted")
    async with desk.open(f"/console/events/{identity}") as page:
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
    await desk.stage.queue.enqueue("many")
    await desk.pool.execute("select agent.enqueue('many', '{}', 0) from generate_series(1, 59)")
    async with desk.open("/console/events?kind=many&status=pending") as page:
        await page.get_by_role("checkbox", name="Select all on this page").check()
        await expect(page.locator("#picked")).to_have_text("50")
        await page.get_by_role("checkbox", name="all that match").check()
        await page.get_by_role("button", name="Cancel").click()
        await expect(page.get_by_role("dialog")).to_contain_text("Cancel 60 events?")
        await page.get_by_role("dialog").get_by_role("button", name="Yes").click()
        await expect(page.get_by_role("status").last).to_contain_text("60 cancelled")


async def test_all_of_a_workspace_are_cancelled(desk: Desk) -> None:
    await desk.pool.execute(
        "select agent.enqueue('crowded', jsonb_build_object('team_id', 'T' || n % 4), 0)"
        " from generate_series(1, 300) as n"
    )
    async with desk.open("/console/events?kind=crowded&status=pending&workspace=T3") as page:
        await page.get_by_role("checkbox", name="Select all on this page").check()
        await page.get_by_role("checkbox", name="all that match").check()
        await page.get_by_role("button", name="Cancel").click()
        await expect(page.get_by_role("dialog")).to_contain_text("Cancel 75 events?")
        await page.get_by_role("dialog").get_by_role("button", name="Yes").click()
        await expect(page.get_by_role("status").last).to_contain_text("75 cancelled, of 300 looked at")


async def test_a_viewer_is_offered_no_change(desk: Desk) -> None:
    async with console_at(desk.pool, people=SignedIn("viewer")) as url:
        for address in (f"/console/events/{desk.scenes.failed}", "/console/events"):
            async with opened(desk.browser, url + address) as page:
                await expect(page.locator("#connection")).to_have_text("live")
                for part in await page.locator("[data-action]:not(.sign-out), .operators").all():
                    await expect(part).to_be_hidden()


FILTERS = {
    "workspace=T0OTHER": 1,
    "channel=C0OTHER": 1,
    "user=U0OTHER": 1,
    "error=unheard+of": 1,
    "text=other": 1,
    "key=Ev0OTHER": 1,
    "kind=filtered&status=failed": 1,
    "kind=filtered&status=failed,pending": 2,
    "kind=filtered&until=2026-01-01": 0,
    "kind=filtered&since=2026-01-01+12:00": 2,
    "kind=filtered&error=unheard&user=U0NOBODY": 0,
}


@pytest.fixture(scope="module")
async def filtered(shared: Desk) -> Desk:
    """Store an event for each filter."""
    await shared.failed("filtered", "something unheard of")
    payload = mention(0, ts_of(shared.stage.now)) | {"event_id": "Ev0OTHER", "team_id": "T0OTHER"}
    payload["event"] |= {"channel": "C0OTHER", "user": "U0OTHER"}
    identity = await shared.pool.fetchval("select agent.insert_event($1)", json.dumps(payload))
    await shared.pool.execute("update agent.event set kind = 'filtered' where id = $1", identity)
    return shared


async def test_filters_find_their_events(filtered: Desk) -> None:
    found = {}
    async with filtered.open("/console/events?kind=filtered&status=failed") as page:
        await expect(page.get_by_role("combobox", name="Kind")).to_have_value("filtered")
        for query in FILTERS:
            answer = await page.request.get(f"{filtered.url}/console/events?{query}")
            found[query] = (await answer.text()).count('<tr data-key="e')
    assert found == FILTERS


async def test_pages_go_on_where_the_last_one_ended(desk: Desk) -> None:
    await desk.stage.queue.enqueue("paged")
    await desk.pool.execute("select agent.enqueue('paged', '{}', 0) from generate_series(1, 74)")
    async with desk.open("/console/events?kind=paged") as page:
        seen = await page.locator("tbody .id").all_inner_texts()
        await page.get_by_role("link", name="Older").click()
        await expect(page.locator("tbody tr")).to_have_count(25)
        seen += await page.locator("tbody a[href^='/console/events/']").all_inner_texts()
    assert len(set(seen) - {""}) == 75


async def test_a_thread_is_told_in_order(desk: Desk) -> None:
    async with desk.open(f"/console/events/{desk.scenes.behind}") as page:
        await page.get_by_role("link", name=desk.scenes.thread).click()
        told = page.get_by_role("listitem").filter(has_text="agent-turn")
        await expect(told).to_have_count(2)
        await expect(told.first).to_contain_text(f"Event {desk.scenes.first}")


async def test_everything_is_reached_by_keyboard(desk: Desk) -> None:
    async with desk.open() as page:
        await page.keyboard.press("Tab")
        await expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        await page.keyboard.press("Enter")
        await page.wait_for_url("**#*")
        await page.keyboard.press("Tab")
        await page.keyboard.press("Tab")
        assert await page.evaluate("document.activeElement.closest('main') !== null")


async def test_a_phone_has_the_screens_behind_a_button(desk: Desk) -> None:
    async with desk.open(viewport={"width": 390, "height": 780}, has_touch=True, is_mobile=True) as page:
        link = page.get_by_role("navigation").get_by_role("link", name="Events")
        await expect(link).to_be_hidden()
        await page.get_by_role("button", name="Screens").tap()
        await link.tap()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Events")


SCREENS = {
    "overview": "/console/",
    "events": "/console/events",
    "failed": "/console/events/{failed}",
    "asks": "/console/events/{asks}",
    "thread": "/console/thread?key={thread}",
    "never": f"/console/find?q={CHANNEL}+1700000000.000100",
    "nothing": "/console/find?q=nothing-like-this",
    "missing": "/console/events/999999999",
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_nothing_and_no_screen_scrolls_sideways(desk: Desk, scheme: Any) -> None:
    found: dict[str, list[str]] = {}
    async with desk.open(color_scheme=scheme) as page:
        for name, address in SCREENS.items():
            await page.goto(desk.url + address.format(**vars(desk.scenes)))
            await expect(page.locator("#connection")).not_to_have_attribute("data-state", "connecting")
            found[name] = await accessible(page)
            for width in (390, 2560):
                await page.set_viewport_size({"width": width, "height": 800})
                wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
                if await page.evaluate(wide):
                    found[name].append(f"scrolls sideways at {width}")
            await page.set_viewport_size({"width": 1280, "height": 800})
    assert {name: problems for name, problems in found.items() if problems} == {}
