"""The endpoints of events: find them, see why one waits, run again, cancel, signal."""

from typing import Any

from surelane.queue import Queue
from surelane_operator.api import models
from surelane_operator.api.endpoint import UNKNOWN, Endpoint, Refused
from surelane_operator.api.models import EventPath
from surelane_operator.changes import Changes
from surelane_operator.reads.filters import cursor_after
from surelane_operator.reads.lookup import Lookup, look_up, why
from surelane_operator.reads.shown import EventStory
from surelane_operator.reads.timeline import story_of


class EventsApi:
    """The endpoints of events."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes

    def endpoints(self) -> list[Endpoint]:
        """Return the endpoints in the order in which their paths are matched."""
        not_ended = {409: "it has not ended, or its key is live again"}
        ended = {409: "it has ended"}
        return [
            Endpoint("GET", "/v1/jobs", self.list_events),
            Endpoint("GET", "/v1/jobs/search", self.search_events),
            Endpoint("GET", "/v1/jobs/{id}", self.get_event, refusals=UNKNOWN),
            Endpoint("GET", "/v1/jobs/{id}/why", self.why_waiting, refusals=UNKNOWN),
            Endpoint(
                "POST", "/v1/jobs/{id}/rerun", self.rerun_event, status=202, refusals=UNKNOWN | not_ended
            ),
            Endpoint("POST", "/v1/jobs/{id}/cancel", self.cancel_event, refusals=UNKNOWN | ended),
            Endpoint("POST", "/v1/jobs/{id}/signal", self.signal_event, refusals=UNKNOWN | ended),
            Endpoint("GET", "/v1/find", self.find_message),
            Endpoint("POST", "/v1/orchestrate", self.orchestrate, status=202),
        ]

    async def list_events(self, query: models.EventsQuery) -> models.EventPage:
        """List events, newest first."""
        events = await self._changes.list_events(
            query.filter(), query.limit, query.cursor, texts=query.errors
        )
        following = cursor_after(events[-1]) if len(events) == query.limit else None
        return models.EventPage.model_validate({"jobs": events, "next": following})

    async def search_events(self, query: models.SearchQuery) -> models.EventsFound:
        """Find events by what people saw, among the newest 1,000."""
        events = await self._changes.search(query.text, query.filter(), query.limit)
        return models.EventsFound.model_validate({"jobs": events})

    async def get_event(self, path: EventPath, query: models.EventQuery) -> EventStory | None:
        """Show one event, its timeline, and in a sentence why it waits or how it ended."""
        read = self._changes.look if query.payload else self._changes.get
        event = await read(path.id)
        if event is None:
            return None
        if not query.payload:
            event["payload"] = None
        told = {"timeline": story_of(event), "why": await why(self._changes, event)}
        return EventStory.model_validate(event | told)

    async def why_waiting(self, path: EventPath) -> models.Why | None:
        """Say why an event is not running."""
        found = await self._changes.why(path.id)
        return None if found is None else models.Why(reason=found[0], detail=found[1])

    async def rerun_event(self, path: EventPath, body: models.RerunBody) -> models.Rerun:
        """Run an ended event again.

        All attempts of the same event begin again. It goes on after its stored steps, or, where it completed, begins
        anew. With `from_step` or `payload` a new event runs instead: the old one stays in history.
        """
        if body.from_step is None and body.payload is None:
            await self._event(path.id)
            if not await self._changes.rerun([path.id]):
                raise Refused(409, "the event has not ended, or its key is live again")
            return models.Rerun(id=path.id, rerun_of=None, key=None, kept=[])
        rerun = await self._changes.rerun_as_new(path.id, from_step=body.from_step, payload=body.payload)
        match rerun.answer:
            case "unknown":
                raise Refused(404, UNKNOWN[404])
            case "live":
                raise Refused(409, "the event has not ended: cancel it, or wait until it ends")
            case "no_step":
                raise Refused(400, f"from_step: {rerun.no_step(body.from_step)}")
        return models.Rerun.model_validate(
            {"id": rerun.id, "rerun_of": path.id, "key": rerun.key, "kept": rerun.steps}
        )

    async def cancel_event(self, path: EventPath, query: models.CancelQuery) -> models.Cancelled:
        """Cancel an event, also while it runs."""
        event = await self._event(path.id)
        answer = await self._changes.cancel(path.id, reason=query.reason, children=query.children)
        if answer is None:
            raise Refused(409, f"the event has ended as {event['status']}")
        if answer == "busy":
            raise Refused(409, "another transaction has the event locked; try again")
        return models.Cancelled.model_validate({"status": answer})

    async def signal_event(self, path: EventPath, body: models.SignalBody) -> models.Sent:
        """Send a value to an event whose handler waits for it, now or later."""
        event = await self._event(path.id)
        if await self._changes.signal(path.id, body.name, body.value) is None:
            raise Refused(409, f"the event has ended as {event['status']}")
        return models.Sent(status="sent")

    async def find_message(self, query: models.FindQuery) -> Lookup:
        """Find a message's events, and why each waits or how it ended; without one, what may have happened."""
        return await look_up(self._changes, query.text)

    async def orchestrate(self, body: models.Orchestrate) -> models.Started:
        """Start an orchestration: plan, fan out, synthesize."""
        async with self._changes.audit.keeping("orchestrate") as kept:
            identity = await Queue(kept.connection, encryption=self._changes.sealing).enqueue(
                "orchestrator-plan",
                body.model_dump(exclude={"dedupe_key"}, exclude_none=True),
                dedupe_key=body.dedupe_key,
                enqueued_by="POST /v1/orchestrate",
            )
            kept.result = {"id": identity}
        return models.Started(id=identity)

    async def _event(self, identity: int) -> dict[str, Any]:
        event = await self._changes.get(identity)
        if event is None:
            raise Refused(404, UNKNOWN[404])
        return event
