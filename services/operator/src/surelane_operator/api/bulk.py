"""Changes to many events, kept actions and payloads: endpoints of ``/v1``."""

import asyncio
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from surelane.errors import DatabaseRefused, DatabaseUnavailable, described
from surelane_operator.api.endpoint import UNKNOWN, AsCommand, CallRefused, Table, endpoint
from surelane_operator.api.models import EventPath, Place, Strict, Text, Which, digits
from surelane_operator.changes import Changes, ManyChange, Verb
from surelane_operator.reads.filters import ENDED, LIVE, MAX_ID, Filter
from surelane_operator.reads.timeline import ListedEvent
from surelane_service.logs import get_logger

MOST = 100_000
"""Events that one request changes, at most."""
MOST_IDS = 1000
COUNTED = 10_000
"""Events that a preview counts, at most."""
SAMPLE = 10
AT_ONCE = 4
"""Changes to many events that go on at once, at most."""
PATIENCE = 1.0
"""Seconds that a request waits for its change to end: most do."""
FAREWELL = 5.0
"""Seconds that changes have to keep how far they came when the service stops."""
PREVIEW_LOOKS = 10_000
"""Events that a preview looks at, at most, where no index has the filter."""
Part = Annotated[Text, Field(min_length=1, max_length=200)]
Identity = Annotated[int, Field(ge=1, le=MAX_ID)]
_CHANGEABLE: dict[Verb, tuple[str, ...]] = {"rerun": ENDED, "cancel": LIVE, "expire": LIVE[:2]}
_logger = get_logger(__name__)


class BulkFilter(Which):
    """The filter of a change to many events: that of the list."""

    workspace: Part | None = None
    channel: Part | None = None
    user: Part | None = None
    error: Part | None = Field(None, description="part of the error or the reason, in any case")
    text: Part | None = Field(None, description="parts of the keys, separated by spaces, in any case")

    def filter(self) -> Filter:
        texts = self.model_dump(include={"workspace", "channel", "user", "error"})
        return replace(super().filter(), **texts, words=(self.text or "").split())


class BulkTarget(Strict):
    """Events to change: by their ids, or all that match a filter."""

    action: Verb = Field(description="rerun: all attempts of ended events begin again")
    ids: Annotated[list[Identity], Field(min_length=1, max_length=MOST_IDS)] | None = None
    filter: BulkFilter | None = Field(
        None,
        description="to run events again, name the status; else what waits is changed, and to cancel what runs",
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.ids is None) == (self.filter is None):
            raise ValueError("give ids or a filter")
        if self.filter is not None:
            possible = _CHANGEABLE[self.action]
            if self.filter.status is None and self.action == "rerun":
                raise ValueError("name the status of the events to run again")
            if wrong := set(self.filter.status or ()).difference(possible):
                raise ValueError(f"{', '.join(sorted(wrong))}: only {', '.join(possible)} can be changed so")
        return self

    def which(self) -> Filter | list[int]:
        if self.filter is None:
            return self.ids or []
        wanted = self.filter.filter()
        return replace(wanted, statuses=wanted.statuses or _CHANGEABLE[self.action])


class Bulk(BulkTarget):
    """A change to many events."""

    limit: int = Field(MOST, ge=1, le=MOST, description="change this many at most, the newest first")
    reason: Annotated[Text, Field(max_length=1000)] | None = Field(None, description="kept with the action")
    cursor: Place | None = Field(
        None,
        description="`next` of the result of a change that looked at some of the events: go on from there",
    )


class Preview(BaseModel):
    """What a change would do now."""

    matching: int = Field(description=f"events that would be changed, counted up to {COUNTED}")
    more: bool = Field(description="whether there are more than that")
    unchanged: int = Field(description="of the ids, those that the change leaves alone")
    looked: int | None = Field(
        None,
        description="how many events were looked at, where no index has the filter; null: the index counted",
    )
    sample: list[ListedEvent] = Field(description=f"the newest {SAMPLE} of them")


class Action(BaseModel):
    """A kept action: who did what and when, and what came of it."""

    id: int
    at: datetime
    who: str
    via: Literal["page", "api", "command", "mcp", "program"]
    role: str = Field(description="the database's role")
    action: str
    target: str | None = Field(description="such as event 7, kind chat or schedule daily; null: many events")
    detail: dict[str, Any]
    result: dict[str, Any] | None = Field(description="how many events got which answer, and the like")
    seen_at: datetime | None = Field(description="when the result was stored last")
    finished_at: datetime | None = Field(description="null: it goes on, or its process ended before")


class ActionPage(BaseModel):
    """A page of kept actions, newest first."""

    actions: list[Action]
    next: str | None = Field(description="the cursor of the next page; null: this is the last page")


class ActionsQuery(Strict):
    target: Annotated[Text, Field(max_length=300)] | None = Field(
        None, description="only actions on this, such as: event 7, kind chat, schedule daily"
    )
    cursor: Annotated[int, Field(ge=1, le=MAX_ID), BeforeValidator(digits)] | None = Field(
        None, description="`next` of the page before: only actions with a smaller id"
    )
    limit: int = Field(50, ge=1, le=1000, description="how many to list")


class Payload(BaseModel):
    """The payload of an event, and the records of its errors with their texts."""

    payload: Any
    errors: list[Any] = Field(
        description="those of its attempts, then those of its steps, which name the step"
    )


ACTIONS = Table("actions", "id at who* via action target* result*", "no operator has done anything yet")


class BulkApi:
    """The endpoints that change many events, list actions, and show payloads."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._tasks: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Stop the changes that go on; each keeps how far it came."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=FAREWELL)

    @endpoint("POST", "/v1/jobs/bulk/preview", role="viewer")
    async def preview_change(self, body: BulkTarget) -> Preview:
        """Count the events that a change would change now, and show some."""
        which = body.which()
        unchanged, looked, more = 0, None, False
        if not isinstance(which, Filter):
            named = await self._changes.list_ids(which)
            sample = [event for event in named if event["status"] in _CHANGEABLE[body.action]]
            matching, unchanged = len(sample), len(set(which)) - len(sample)
        elif which.narrows:
            found = await self._changes.look_for(which, PREVIEW_LOOKS)
            sample, matching, looked = found.events, len(found.events), found.looked
            more = found.next is not None
        else:
            sample = await self._changes.list_events(which, SAMPLE)
            counted = await self._changes.count(which, COUNTED + 1)
            matching, more = min(counted, COUNTED), counted > COUNTED
        shown = [ListedEvent.model_validate(event) for event in sample[:SAMPLE]]
        return Preview(matching=matching, more=more, unchanged=unchanged, looked=looked, sample=shown)

    @endpoint("POST", "/v1/jobs/bulk", status=202, refusals={409: "too many changes go on"})
    async def change_events(self, body: Bulk) -> Action:
        """Run again, cancel or expire many events, in steps. The answer is the action, which shows the progress.

        Where no index has the filter, one request looks at a million events at most. The result's `next` is then the
        cursor of the request that goes on.
        """
        if len(self._tasks) >= AT_ONCE:
            raise CallRefused(409, f"{AT_ONCE} changes to many events go on: wait until one ends")
        change = ManyChange(body.action, body.which(), body.limit, body.reason, body.cursor)
        action = await self._changes.begin_change(change)
        task = asyncio.create_task(self._change(change, action))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.wait([task], timeout=PATIENCE)
        return Action.model_validate(await self._changes.audit.read(action))

    @endpoint("GET", "/v1/actions", command=AsCommand("actions", ACTIONS, renamed={"cursor": "before"}))
    async def list_actions(self, query: ActionsQuery) -> ActionPage:
        """List what operators did, newest first: who, when, what, and what came of it."""
        found = await self._changes.audit.list_actions(query.limit, before=query.cursor, target=query.target)
        following = str(found[-1]["id"]) if len(found) == query.limit else None
        return ActionPage.model_validate({"actions": found, "next": following})

    @endpoint("GET", "/v1/actions/{id}", refusals={404: "there is no such action"})
    async def get_action(self, path: EventPath) -> Action | None:
        """Show one action, also while it goes on."""
        found = await self._changes.audit.read(path.id)
        return None if found is None else Action.model_validate(found)

    @endpoint("GET", "/v1/jobs/{id}/payload", refusals=UNKNOWN)
    async def get_payload(self, path: EventPath) -> Payload | None:
        """Show the payload of an event, and the texts of its errors. That you looked is kept."""
        event = await self._changes.look(path.id)
        if event is None:
            return None
        of_steps = [
            {"step": step["name"], **error} for step in event["steps"] for error in step.get("errors") or ()
        ]
        return Payload(payload=event["payload"], errors=event["errors"] + of_steps)

    async def _change(self, change: ManyChange, action: int) -> None:
        try:
            await self._changes.change_all(change, action)
        except (DatabaseRefused, DatabaseUnavailable) as error:
            _logger.warning("a change to many events stopped", action=action, **described(error))
