"""Handle the jobs of a worker that reaches the database through a proxy. No other worker handles their kind."""

from surelane_worker import Context, Event, Handlers

KIND = "proxied"
handlers = Handlers()


@handlers.on(KIND)
async def handle(event: Event, ctx: Context) -> None:
    """Return at once."""
