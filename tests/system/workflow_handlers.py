"""Handle the workflow tests' events: the examples', and one that goes on."""

from examples.agent_turn.handlers import handlers as agent_turn
from examples.cron.handlers import handlers as cron
from examples.dispatch.handlers import handlers as dispatching
from examples.orchestration.handlers import handlers as orchestration

from surelane_worker import Context, Event, FanOut, Handlers

handlers = Handlers()
for example in (cron, dispatching, orchestration, agent_turn):  # the last one includes the built-in handlers
    handlers.include(example)


@handlers.on("endless")
async def endless(event: Event, ctx: Context) -> FanOut | int:
    """Count down to zero, one event after another, with a step in each."""
    left: int = event.payload["left"]
    assert await ctx.step("left", lambda: left) == left, "a successor has no steps"
    return ctx.continue_as_new({"left": left - 1}) if left else left
