"""A test skips the time until an event expires, kills the worker among its undos, and sees them all run."""

import pytest

from surelane.testing import Bot
from surelane_worker import Context, Event, Handlers

DONE: list[str] = []


@pytest.fixture
def handlers() -> Handlers:
    handlers = Handlers()
    DONE.clear()

    @handlers.on("trip")
    async def trip(_: Event, ctx: Context) -> None:
        for part in ("flight", "hotel"):
            await ctx.undo(part, DONE.append, f"undid {part}")
            await ctx.step(part, DONE.append, f"booked {part}")
        await ctx.wait_for("paid")

    return handlers


async def test_undos_run_once_each_although_the_worker_is_killed_between_them(bot: Bot) -> None:
    await bot.queue.enqueue("trip", {}, item_key="trip 1")
    await bot.idle()
    assert DONE == ["booked flight", "booked hotel"]
    with bot.killed_at("step undo hotel"):
        await bot.queue.cancel("trip 1")
        await bot.idle()
    assert DONE[2:] == ["undid hotel", "undid flight"]
    assert [event.state for event in bot.events] == ["cancelled"]
