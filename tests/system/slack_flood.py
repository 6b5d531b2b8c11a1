"""Handlers that call Slack as fast as its limits allow."""
# ruff: noqa: ARG001 - a handler takes both arguments, used or not

from surelane_worker import Context, Event, Handlers

handlers = Handlers()


@handlers.on("post")
async def post(event: Event, ctx: Context) -> None:
    """Post in the channel that the job names."""
    await ctx.slack.client.chat_postMessage(channel=event.payload["channel"], text="x")


@handlers.on("list")
async def list_users(event: Event, ctx: Context) -> int:
    """Read the users page by page, and return the number of pages."""
    pages = 0
    async for _ in await ctx.slack.client.users_list(limit=1):
        pages += 1
    return pages


@handlers.on("call")
async def call(event: Event, ctx: Context) -> None:
    """Call the method that the job names."""
    await ctx.slack.client.api_call(event.payload["method"])
