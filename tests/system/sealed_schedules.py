"""A schedule that a handler declares, with a text that a team does not want in its database."""

import os
from typing import Any

from surelane_worker import Context, Event, Handlers

handlers = Handlers()
handlers.cron("declared", "0 3 * * *", kind="declared", payload={"text": os.environ["DECLARED_TEXT"]})


@handlers.on("declared")
async def declared(event: Event, _ctx: Context) -> dict[str, Any]:
    """Return the text, which is the schedule's."""
    assert event.payload["text"] == os.environ["DECLARED_TEXT"]
    return event.payload
