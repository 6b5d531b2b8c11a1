"""Open pages of one address share one reader, which ends with the last of them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from surelane.errors import DatabaseUnavailable
from surelane_operator.console.live import Full, Live, News
from surelane_operator.console.screen import Missing


class Screen:
    """A screen that shows what the test writes, and waits until the test lets it be read."""

    def __init__(self) -> None:
        self.shows: str | Exception = "one"
        self.reads = 0
        self.may_read = asyncio.Semaphore(0)

    async def render(self) -> str:
        await self.may_read.acquire()
        self.reads += 1
        if isinstance(self.shows, Exception):
            raise self.shows
        return self.shows


async def _next(news: AsyncIterator[News]) -> News:
    async with asyncio.timeout(60):
        return await anext(news)


async def test_fifty_viewers_cost_one_read_and_all_see_the_change() -> None:
    live, screen = Live(most_viewers=50, most_each=50), Screen()
    async with AsyncExitStack() as stack:
        follows = [live.follow("/", screen.render, 0, "ada") for _ in range(50)]
        viewers = [await stack.enter_async_context(follow) for follow in follows]
        screen.may_read.release()
        assert [await _next(news) for news in viewers] == [News("fragment", "one")] * 50
        screen.may_read.release()
        assert [await _next(news) for news in viewers] == [News("same")] * 50
        screen.shows = "two"
        screen.may_read.release()
        assert [await _next(news) for news in viewers] == [News("fragment", "two")] * 50
        assert screen.reads == 3
        assert live.topics == 1
    assert live.topics == 0


async def test_who_comes_later_gets_the_latest_content_at_once_and_the_slow_the_newest_alone() -> None:
    live, screen = Live(), Screen()
    async with live.follow("/", screen.render, 0, "ada") as quick:
        screen.may_read.release()
        await _next(quick)
        async with live.follow("/", screen.render, 0, "ada") as slow:
            assert await _next(slow) == News("fragment", "one")
            assert screen.reads == 1
            for number in range(5):
                screen.shows = str(number)
                screen.may_read.release()
                await _next(quick)
            assert await _next(slow) == News("fragment", "4"), "nothing is kept for it"


async def test_a_database_that_is_away_is_said_and_its_return_too() -> None:
    live, screen = Live(), Screen()
    async with live.follow("/", screen.render, 0, "ada") as news:
        seen = []
        away = DatabaseUnavailable("gone")
        for shows in ("one", away, away, "one", Missing("no event 7")):
            screen.shows = shows
            screen.may_read.release()
            seen.append((await _next(news)).sort)
    assert seen == ["fragment", "away", "same", "fragment", "gone"]


async def test_the_number_of_pages_is_bounded_and_closing_ends_every_stream() -> None:
    live, screen = Live(most_topics=1, most_viewers=2), Screen()
    async with live.follow("/", screen.render, 0, "ada"), live.follow("/", screen.render, 0, "ada"):
        with pytest.raises(Full):
            async with live.follow("/", screen.render, 0, "ada"):
                pass
    async with live.follow("/", screen.render, 0, "ada"):
        with pytest.raises(Full):
            async with live.follow("/events", screen.render, 0, "ada"):
                pass
    live, screen = Live(), Screen()
    async with live.follow("/", screen.render, 0, "ada") as news:
        screen.may_read.release()
        await _next(news)
        await live.close()
        with pytest.raises(StopAsyncIteration):
            await _next(news)
        with pytest.raises(Full):
            async with live.follow("/", screen.render, 0, "ada"):
                pass


async def test_one_person_leaves_room_for_the_others() -> None:
    live, screen = Live(most_topics=10, most_viewers=10, most_each=2), Screen()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(live.follow("/", screen.render, 0, "eve"))
        async with live.follow("/events", screen.render, 0, "eve"):
            for address in ("/", "/kinds"):
                with pytest.raises(Full, match="2 of your pages are live"):
                    await stack.enter_async_context(live.follow(address, screen.render, 0, "eve"))
            await stack.enter_async_context(live.follow("/kinds", screen.render, 0, "ada"))
        await stack.enter_async_context(live.follow("/workers", screen.render, 0, "eve"))
        assert live.topics == 3
    assert live.topics == 0
