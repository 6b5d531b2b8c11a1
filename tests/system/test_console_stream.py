"""Open pages get their content over one stream each, and cost one read together."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta

import aiohttp
import asyncpg
import pytest
from aiohttp import web
from yarl import URL

from surelane import Queue
from surelane.calls import Pool
from surelane_operator.console.live import Live
from surelane_operator.roles import Viewer
from tests.browser.console_page import CSRF, SignedIn, console_at

ACCEPT = {"Accept": "text/event-stream"}
PAGES = 8


@pytest.fixture
async def pool(database: str) -> AsyncIterator[Pool]:
    connected = await asyncpg.create_pool(database, min_size=1, max_size=2)
    yield connected
    connected.terminate()


async def _news(response: aiohttp.ClientResponse, *wanted: str) -> str:
    """Return the data of the next event of one of these sorts."""
    while line := (await response.content.readuntil(b"\n\n")).decode():
        sort, data = (field.partition(": ")[2] for field in line.strip().split("\n"))
        if sort in wanted:
            return str(json.loads(data))
    raise EOFError


class Named(SignedIn):
    """People whom the test names in a header."""

    async def viewer(self, request: web.Request) -> Viewer:
        return Viewer(request.headers["Who"], self.role, CSRF)


async def test_pages_share_a_reader_see_a_change_and_end_with_the_service(pool: Pool) -> None:
    live = Live(most_viewers=PAGES + 2, most_each=PAGES)
    # Without end, the service would wait 30 seconds for its streams: the time counts from the last page on.
    async with (
        asyncio.timeout(200) as most,
        AsyncExitStack() as stack,
        console_at(pool, people=Named(), live=live) as url,
        aiohttp.ClientSession() as session,
    ):

        async def follow(who: str, screen: str = "kinds") -> aiohttp.ClientResponse:
            followed = session.get(f"{url}/console/{screen}", headers={**ACCEPT, "Who": who})
            return await stack.enter_async_context(followed)

        pages = [await follow("eve") for _ in range(PAGES)]
        for page in pages:
            assert "fresh-kind" not in await _news(page, "fragment")
        assert live.topics == 1
        await pool.execute("insert into agent.kind (kind) values ('fresh-kind')")
        await pool.execute("update agent.measurement set due = '-infinity'")
        for page in pages:
            assert "fresh-kind" in await _news(page, "fragment")
        assert f"{PAGES} of your pages" in await _news(await follow("eve", "events"), "full")
        others = [await follow("ada") for _ in range(3)]
        for page in others[:2]:
            await _news(page, "fragment")
        assert "as many pages" in await _news(others[2], "full")
        pages.pop().close()
        while "of your pages" in await _news(await follow("eve"), "full", "fragment"):
            pass
        pool.terminate()
        for page in pages:
            assert await _news(page, "away")
        most.reschedule(asyncio.get_running_loop().time() + 25)
    assert live.topics == 0


async def test_a_stream_ends_after_its_spell_so_that_the_guard_sees_the_page_again(pool: Pool) -> None:
    async with (
        console_at(pool, spell=timedelta()) as url,
        aiohttp.ClientSession() as session,
        session.get(f"{url}/console/", headers=ACCEPT) as page,
    ):
        text = await page.text()
    assert text.endswith('event: again\ndata: ""\n\n')


ODD = [
    *("events?since=yesterday", "events?status=lost", "events?after=nonsense", "events?key=%00%ff%ed%a0%80"),
    *("events?until=9999-12-31+23:59", "events?kind=,&user=%27", "find?q=http://[", "find?q=" + 900 * "9"),
    *("find?q=C0GENERAL1+9999999999.999999", "find", "thread", "thread?key=%27"),
    *("events/-1", "events/" + 30 * "9"),
]


async def test_no_address_makes_a_screen_fail(pool: Pool) -> None:
    async with console_at(pool) as url, aiohttp.ClientSession() as session:
        answers = {}
        for address in ODD:
            async with session.get(URL(f"{url}/console/{address}", encoded=True)) as page:
                answers[address] = page.status
    assert {address: status for address, status in answers.items() if status not in (200, 400, 404)} == {}


async def test_a_page_is_kept_by_no_cache_and_loads_nothing_from_elsewhere(pool: Pool) -> None:
    await Queue(pool).enqueue("<script>alert(1)</script>")
    async with console_at(pool, people=SignedIn("viewer")) as url, aiohttp.ClientSession() as session:
        async with session.get(f"{url}/console/") as page:
            text = await page.text()
            assert page.headers["Cache-Control"] == "no-store"
            assert page.headers["Content-Security-Policy"].startswith(
                "default-src 'none'; script-src 'self';"
            )
            assert "unsafe" not in page.headers["Content-Security-Policy"]
        assert "<script>alert" not in text
        assert "&lt;script&gt;alert" in text
        async with session.get(f"{url}/console/static/page.js") as file:
            tag = file.headers["ETag"]
        async with session.get(f"{url}/console/static/page.js", headers={"If-None-Match": tag}) as again:
            assert again.status == 304
        async with session.get(f"{url}/console/static/..%2fconsole.py") as outside:
            assert outside.status == 404
