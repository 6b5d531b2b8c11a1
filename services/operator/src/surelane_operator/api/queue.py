"""Endpoints of ``/v1``: events, kinds, limits, workers, schedules, workflows, questions, the doctor's findings."""

from datetime import timedelta
from typing import Any

from surelane.queue import Queue
from surelane_operator.api import models
from surelane_operator.api.endpoint import UNKNOWN, AsCommand, CallRefused, Table, endpoint
from surelane_operator.api.models import EventPath
from surelane_operator.audit import current_actor
from surelane_operator.changes import Changes
from surelane_operator.doctor import AGAIN, Examination, Examinations
from surelane_operator.reads import queue
from surelane_operator.reads.filters import cursor_after
from surelane_operator.reads.lookup import Lookup, look_up, why
from surelane_operator.reads.timeline import EventStory, key_of, story_of, took_by, why_of
from surelane_operator.reads.workflows import Workflow, WorkflowPage, list_workflows, read_workflow
from surelane_service.cron import Cron

NOT_SET = {404: "no operator has changed this limit"}
NO_WORKER = {404: "there is no such worker"}
NO_SCHEDULE = {404: "there is no such schedule"}
NOT_ENDED = UNKNOWN | {409: "it has not ended, or its key is live again"}
ENDED = UNKNOWN | {409: "it has ended"}


def _beside(event: dict[str, Any]) -> dict[str, Any]:
    runs = event["run_at"] or "never"
    return {"runs": runs, "took": took_by(event), "key": key_of(event), "why": why_of(event)}


FOUND = Table("jobs", "id kind* status attempts=tries runs took key*", "no such events", "why", _beside)
EVENTS = AsCommand("events list", FOUND, without=("cursor", "errors"), watch={"errors": False})
SIGNAL = AsCommand("events signal {id} {name} {value}", "sent")
PLAN = AsCommand("orchestrate {goal}", "{id}", renamed={"subtasks": "subtask"})
STATS = AsCommand(
    "stats",
    Table(
        "kinds", "kind* paused pending scheduled running oldest_pending=oldest", "no event was ever stored"
    ),
    more=Table(
        "workers",
        "name*=worker state version started_at=started seen_at=seen died_at=died",
        "no worker is running",
        "kinds",
    ),
    watch={},
)
SET = AsCommand("cron set {name} {kind} {schedule}", "{name} fires next at {next_at}, unless it is paused")
LIMITS = Table(
    "limits",
    "kind* per concurrency=at_once rate declared_concurrency=(declared) declared_rate=(declared)"
    " set_at=set set_by*=by",
    "no kind has a limit",
)
CHANGED = "the limit of {kind} is changed; surelane limits reset {kind} takes that back"
RESET = "the limit of {kind} is as its workers declare it"
SCHEDULES = Table(
    "schedules",
    "name* kind* schedule* time_zone*=zone catch_up overlap paused next_at=next last_at=last",
    "there are no schedules",
    "problem",
)


class QueueApi:
    """The endpoints of events, and of the queue that has them."""

    def __init__(self, changes: Changes, examinations: Examinations) -> None:
        self._changes = changes
        self._examinations = examinations

    @endpoint("GET", "/v1/jobs", command=EVENTS, fixed={"errors": False})
    async def list_events(self, query: models.EventsQuery) -> models.EventPage:
        """List events, newest first: live ones, then ended ones.

        Errors may quote what people wrote, so the look at them is kept.
        """
        events = await self._changes.list_events(
            query.filter(), query.limit, query.cursor, texts=query.errors
        )
        following = cursor_after(events[-1]) if len(events) == query.limit else None
        return models.EventPage.model_validate({"jobs": events, "next": following})

    @endpoint("GET", "/v1/jobs/search", command=AsCommand("events search {text...}", FOUND))
    async def search_events(self, query: models.SearchQuery) -> models.EventsFound:
        """Find events by what people saw: a command, a button, a text, a name, a channel, a message.

        Each word must be in the event, in any case. It looks at the newest 1,000 events.
        """
        events = await self._changes.search(query.text, query.filter(), query.limit)
        return models.EventsFound.model_validate({"jobs": events})

    @endpoint("GET", "/v1/jobs/{id}", refusals=UNKNOWN, fixed={"payload": False})
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

    @endpoint("GET", "/v1/jobs/{id}/why", refusals=UNKNOWN)
    async def why_waiting(self, path: EventPath) -> models.Why | None:
        """Say why an event is not running."""
        found = await self._changes.why(path.id)
        return None if found is None else models.Why(reason=found[0], detail=found[1])

    @endpoint(
        "POST", "/v1/jobs/{id}/rerun", status=202, refusals=NOT_ENDED, destroys=False, fixed={"payload": None}
    )
    async def rerun_event(self, path: EventPath, body: models.RerunBody) -> models.Rerun:
        """Run an ended event again.

        All attempts of the same event begin again. It goes on after its stored steps, or, where it completed, begins
        anew. With `from_step` or `payload` a new event runs instead: the old one stays in history.
        """
        if body.from_step is None and body.payload is None:
            await self._event(path.id)
            if not await self._changes.rerun([path.id]):
                raise CallRefused(409, "the event has not ended, or its key is live again")
            return models.Rerun(id=path.id, rerun_of=None, key=None, kept=[])
        rerun = await self._changes.rerun_as_new(path.id, from_step=body.from_step, payload=body.payload)
        match rerun.answer:
            case "unknown":
                raise CallRefused(404, UNKNOWN[404])
            case "live":
                raise CallRefused(409, "the event has not ended: cancel it, or wait until it ends")
            case "no_step":
                raise CallRefused(400, f"from_step: {rerun.no_step(body.from_step)}")
        return models.Rerun.model_validate(
            {"id": rerun.id, "rerun_of": path.id, "key": rerun.key, "kept": rerun.steps}
        )

    @endpoint("POST", "/v1/jobs/{id}/cancel", refusals=ENDED, destroys=True)
    async def cancel_event(self, path: EventPath, query: models.CancelQuery) -> models.Cancelled:
        """Cancel an event, also while it runs."""
        event = await self._event(path.id)
        answer = await self._changes.cancel(path.id, reason=query.reason, children=query.children)
        if answer is None:
            raise CallRefused(409, f"the event has ended as {event['status']}")
        if answer == "busy":
            raise CallRefused(409, "another transaction has the event locked; try again")
        return models.Cancelled.model_validate({"status": answer})

    @endpoint("POST", "/v1/jobs/{id}/signal", refusals=ENDED, command=SIGNAL)
    async def signal_event(self, path: EventPath, body: models.SignalBody) -> models.SignalSent:
        """Send a value to an event whose handler waits for it, now or later."""
        event = await self._event(path.id)
        if await self._changes.signal(path.id, body.name, body.value) is None:
            raise CallRefused(409, f"the event has ended as {event['status']}")
        return models.SignalSent(status="sent")

    @endpoint("GET", "/v1/find")
    async def find_message(self, query: models.FindQuery) -> Lookup:
        """Find a message's events, and why each waits or how it ended; without one, what may have happened."""
        return await look_up(self._changes, query.text)

    @endpoint("POST", "/v1/orchestrate", status=202, command=PLAN)
    async def orchestrate(self, body: models.Orchestrate) -> models.Started:
        """Start an orchestration: plan, fan out, synthesize."""
        async with self._changes.audit.keeping("orchestrate") as kept:
            by_command = current_actor().via == "command"
            identity = await Queue(kept.connection, encryption=self._changes.codec).enqueue(
                "orchestrator-plan",
                body.model_dump(exclude={"dedupe_key"}, exclude_defaults=True),
                dedupe_key=body.dedupe_key,
                enqueued_by="surelane" if by_command else "POST /v1/orchestrate",
            )
            kept.result = {"id": identity}
        return models.Started(id=identity)

    async def _event(self, identity: int) -> dict[str, Any]:
        event = await self._changes.get(identity)
        if event is None:
            raise CallRefused(404, UNKNOWN[404])
        return event

    @endpoint("GET", "/v1/overview")
    async def get_overview(self) -> queue.Overview:
        """Show what waits the longest and why, what failed or expired lately, and how fast it goes."""
        return await queue.read_overview(self._changes)

    @endpoint("GET", "/v1/stats", command=STATS)
    async def stats(self) -> models.Stats:
        """Count events by kind and state, and list the workers."""
        return models.Stats.model_validate(
            {"kinds": await self._changes.stats(), "workers": await self._changes.workers()}
        )

    @endpoint("GET", "/v1/kinds")
    async def list_kinds(self, query: models.KindsQuery) -> queue.KindPage:
        """List kinds, with their counts, limits and workers."""
        return await queue.read_kinds(self._changes, query.after, query.limit)

    @endpoint(
        "POST",
        "/v1/kinds/{kind}/pause",
        command=AsCommand("kinds pause {kind}", "{kind} is paused", {"paused": True}),
    )
    async def pause_kind(self, path: models.KindPath) -> None:
        """Pause a kind: its waiting events are neither claimed nor expired. Running ones finish."""
        await self._changes.pause(path.kind)

    @endpoint(
        "POST",
        "/v1/kinds/{kind}/resume",
        command=AsCommand("kinds resume {kind}", "{kind} is running", {"paused": False}),
    )
    async def resume_kind(self, path: models.KindPath) -> None:
        """Resume a kind."""
        await self._changes.resume(path.kind)

    @endpoint("GET", "/v1/limits", command=AsCommand("limits list", LIMITS))
    async def list_limits(self) -> models.LimitList:
        """List the limits that hold, and what the workers declare."""
        return models.LimitList.model_validate({"limits": await self._changes.list_limits()})

    @endpoint("PUT", "/v1/limits/{kind}", command=AsCommand("limits set {kind}", CHANGED, {"changed": True}))
    async def set_limit(self, path: models.KindPath, body: models.LimitBody) -> None:
        """Change the limit of a kind, until it is reset. What is not named stays as it is."""
        await self._changes.set_limit(
            path.kind, concurrency=body.concurrency, rate=body.parsed_rate(), per=body.per
        )

    @endpoint(
        "DELETE",
        "/v1/limits/{kind}",
        refusals=NOT_SET,
        command=AsCommand("limits reset {kind}", RESET, {"changed": False}),
    )
    async def reset_limit(self, path: models.KindPath) -> bool:
        """Let the limit that the workers declare hold again."""
        return await self._changes.reset_limit(path.kind)

    @endpoint("GET", "/v1/workers")
    async def list_workers(self) -> queue.WorkerList:
        """List workers, and what each runs now."""
        return await queue.read_workers(self._changes)

    @endpoint("POST", "/v1/workers/{name}/drain", refusals=NO_WORKER)
    async def drain_worker(self, path: models.NamePath) -> bool:
        """Let a worker end what it runs and claim nothing more; it learns of that within a minute."""
        return await self._changes.drain_worker(path.name, drained=True)

    @endpoint("POST", "/v1/workers/{name}/resume", refusals=NO_WORKER)
    async def resume_worker(self, path: models.NamePath) -> bool:
        """Let a drained worker claim again."""
        return await self._changes.drain_worker(path.name, drained=False)

    @endpoint("GET", "/v1/cron", command=AsCommand("cron list", SCHEDULES))
    async def list_cron(self) -> queue.ScheduleList:
        """List the named schedules, with their next firings and last runs."""
        return await queue.read_schedules(self._changes)

    @endpoint("PUT", "/v1/cron/{name}", command=SET)
    async def set_cron(self, path: models.NamePath, body: models.CronBody) -> models.NextFiring:
        """Create or change a schedule."""
        fields = body.model_dump(exclude={"schedule", "time_zone", "jitter"})
        cron = Cron(body.schedule, body.time_zone, timedelta(seconds=body.jitter), path.name)
        following = await self._changes.set_cron(path.name, cron, **fields)
        return models.NextFiring(next_at=following, paused=body.paused)

    @endpoint("PATCH", "/v1/cron/{name}", refusals=NO_SCHEDULE)
    async def change_cron(self, path: models.NamePath, body: models.CronChange) -> bool:
        """Pause or resume a schedule."""
        change = self._changes.pause_cron if body.paused else self._changes.resume_cron
        return await change(path.name)

    @endpoint("POST", "/v1/cron/{name}/run", status=202, refusals=NO_SCHEDULE)
    async def run_cron(self, path: models.NamePath) -> models.Started | None:
        """Enqueue a job of a schedule now."""
        identity = await self._changes.run_cron(path.name)
        return None if identity is None else models.Started(id=identity)

    @endpoint(
        "DELETE",
        "/v1/cron/{name}",
        refusals=NO_SCHEDULE,
        command=AsCommand("cron delete {name}", "{name} is deleted", {"deleted": True}),
    )
    async def delete_cron(self, path: models.NamePath) -> bool:
        """Delete a schedule. Jobs that it has enqueued stay in the queue."""
        return await self._changes.delete_cron(path.name)

    @endpoint("GET", "/v1/workflows")
    async def list_workflows(self, query: models.PageQuery) -> WorkflowPage:
        """List workflows, newest first."""
        return await list_workflows(self._changes.calls, query.cursor, query.limit)

    @endpoint("GET", "/v1/workflows/{id}", refusals=UNKNOWN)
    async def get_workflow(self, path: models.EventPath, query: models.WorkflowQuery) -> Workflow | None:
        """Show the workflow of an event as a tree."""
        return await read_workflow(self._changes.calls, path.id, query.after)

    @endpoint("GET", "/v1/questions")
    async def list_questions(self, query: models.PageQuery) -> queue.QuestionPage:
        """List the questions that wait for people, newest first."""
        return await queue.list_questions(self._changes, query.cursor, query.limit)

    @endpoint("GET", "/v1/usage")
    async def list_usage(self) -> queue.UsageList:
        """List what models used in the last 30 days, by day, workspace and model."""
        return await queue.list_usage(self._changes)

    @endpoint("GET", "/v1/doctor")
    async def get_findings(self) -> Examination:
        """Show what the doctor found in the last minute."""
        return await self._examinations.latest()

    @endpoint("POST", "/v1/doctor")
    async def examine(self) -> Examination:
        """Run the doctor now."""
        return await self._examinations.latest(AGAIN)
