"""Send a question to two remote agents, and combine their answers when both have come or the time is up.

SURELANE_DISPATCH_URLS=counter=https://counter.example/tasks,shouter=https://shouter.example/tasks
SURELANE_DISPATCH_SECRETS=counter=whsec_…,shouter=whsec_…     (for ingest too, which verifies the answers)
SURELANE_PUBLIC_URL=https://bot.example
"""

from typing import Any

from surelane_worker import Context, Event, FanOut, Handlers
from surelane_worker.builtin.jobs import dispatch, execute

handlers = Handlers()
handlers.on("dispatch-execute", timeout="1m")(execute)  # the built-in function sends the tasks


@handlers.on("question")
async def ask(event: Event, ctx: Context) -> FanOut:
    """Ask both agents."""
    question = event.payload["question"]
    ctx.log.info("asking", agents=2)
    return dispatch({"counter": question, "shouter": question}, within=event.payload.get("within", "10m"))


@handlers.on("dispatch-synthesize")
async def combine(event: Event, ctx: Context) -> dict[str, Any]:
    """Combine the answers. Name the agents that did not answer in time, with the reasons."""
    children = await ctx.queue.children(event.id)
    return {
        child.payload["agent"]: child.result if child.status == "completed" else child.reason
        for child in children
    }
