"""Endpoints of ``/v1``: events, kinds, limits, workers, schedules, workflows, questions, the doctor's findings."""

from datetime import timedelta
from typing import Any

from surelane.queue import Queue
from surelane_operator.api import models
from surelane_operator.api.endpoint import UNKNOWN, Endpoint, Refused
from surelane_operator.api.models import EventPath
from surelane_operator.changes import Changes
from surelane_operator.doctor import AGAIN, Examination, Examinations
from surelane_operator.reads import queue
from surelane_operator.reads.filters import cursor_after
from surelane_operator.reads.lookup import Lookup, look_up, why
from surelane_operator.reads.timeline import EventStory, story_of
from surelane_operator.reads.workflows import Workflow, WorkflowPage, list_workflows, read_workflow
from surelane_service.cron import Cron


class QueueApi:
    """The endpoints of events, and of the queue that has them."""

    def __init__(self, changes: Changes, examinations: Examinations) -> None:
        self._changes = changes
        self._examinations = examinations

    def endpoints(self) -> list[Endpoint]:
        """Return the endpoints in the order in which their paths are matched."""
        not_set = {404: "no operator has changed this limit"}
        no_worker = {404: "there is no such worker"}
        no_schedule = {404: "there is no such schedule"}
        not_ended = UNKNOWN | {409: "it has not ended, or its key is live again"}
        ended = {409: "it has ended"}
        return [
            Endpoint("GET", "/v1/jobs", self.list_events),
            Endpoint("GET", "/v1/jobs/search", self.search_events),
            Endpoint("GET", "/v1/jobs/{id}", self.get_event, refusals=UNKNOWN),
            Endpoint("GET", "/v1/jobs/{id}/why", self.why_waiting, refusals=UNKNOWN),
            Endpoint("POST", "/v1/jobs/{id}/rerun", self.rerun_event, status=202, refusals=not_ended),
            Endpoint("POST", "/v1/jobs/{id}/cancel", self.cancel_event, refusals=UNKNOWN | ended),
            Endpoint("POST", "/v1/jobs/{id}/signal", self.signal_event, refusals=UNKNOWN | ended),
            Endpoint("GET", "/v1/find", self.find_message),
            Endpoint("POST", "/v1/orchestrate", self.orchestrate, status=202),
            Endpoint("GET", "/v1/overview", self.get_overview),
            Endpoint("GET", "/v1/stats", self.stats),
            Endpoint("GET", "/v1/kinds", self.list_kinds),
            Endpoint("POST", "/v1/kinds/{kind}/pause", self.pause_kind),
            Endpoint("POST", "/v1/kinds/{kind}/resume", self.resume_kind),
            Endpoint("GET", "/v1/limits", self.list_limits),
            Endpoint("PUT", "/v1/limits/{kind}", self.set_limit),
            Endpoint("DELETE", "/v1/limits/{kind}", self.reset_limit, refusals=not_set),
            Endpoint("GET", "/v1/workers", self.list_workers),
            Endpoint("POST", "/v1/workers/{name}/drain", self.drain_worker, refusals=no_worker),
            Endpoint("POST", "/v1/workers/{name}/resume", self.resume_worker, refusals=no_worker),
            Endpoint("GET", "/v1/cron", self.list_cron),
            Endpoint("PUT", "/v1/cron/{name}", self.set_cron),
            Endpoint("PATCH", "/v1/cron/{name}", self.change_cron, refusals=no_schedule),
            Endpoint("POST", "/v1/cron/{name}/run", self.run_cron, status=202, refusals=no_schedule),
            Endpoint("DELETE", "/v1/cron/{name}", self.delete_cron, refusals=no_schedule),
            Endpoint("GET", "/v1/workflows", self.list_workflows),
            Endpoint("GET", "/v1/workflows/{id}", self.get_workflow, refusals=UNKNOWN),
            Endpoint("GET", "/v1/questions", self.list_questions),
            Endpoint("GET", "/v1/usage", self.list_usage),
            Endpoint("GET", "/v1/doctor", self.get_findings),
            Endpoint("POST", "/v1/doctor", self.examine),
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
            identity = await Queue(kept.connection, encryption=self._changes.codec).enqueue(
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

    async def get_overview(self) -> queue.Overview:
        """Show what waits the longest and why, what failed or expired lately, and how fast it goes."""
        return await queue.read_overview(self._changes)

    async def stats(self) -> models.Stats:
        """Show the queue in figures."""
        return models.Stats.model_validate(
            {"kinds": await self._changes.stats(), "workers": await self._changes.workers()}
        )

    async def list_kinds(self, query: models.KindsQuery) -> queue.KindPage:
        """List kinds, with their counts, limits and workers."""
        return await queue.read_kinds(self._changes, query.after, query.limit)

    async def pause_kind(self, path: models.KindPath) -> None:
        """Pause a kind."""
        await self._changes.pause(path.kind)

    async def resume_kind(self, path: models.KindPath) -> None:
        """Resume a kind."""
        await self._changes.resume(path.kind)

    async def list_limits(self) -> models.LimitList:
        """List the limits of kinds."""
        return models.LimitList.model_validate({"limits": await self._changes.list_limits()})

    async def set_limit(self, path: models.KindPath, body: models.LimitBody) -> None:
        """Change the limit of a kind until it is reset."""
        await self._changes.set_limit(
            path.kind, concurrency=body.concurrency, rate=body.parsed_rate(), per=body.per
        )

    async def reset_limit(self, path: models.KindPath) -> bool:
        """Let the limit that workers declare hold again."""
        return await self._changes.reset_limit(path.kind)

    async def list_workers(self) -> queue.WorkerList:
        """List workers, and what each runs now."""
        return await queue.read_workers(self._changes)

    async def drain_worker(self, path: models.NamePath) -> bool:
        """Let a worker end what it runs and claim nothing more; it learns of that within a minute."""
        return await self._changes.drain_worker(path.name, drained=True)

    async def resume_worker(self, path: models.NamePath) -> bool:
        """Let a drained worker claim again."""
        return await self._changes.drain_worker(path.name, drained=False)

    async def list_cron(self) -> queue.ScheduleList:
        """List the named schedules, with their next firings and last runs."""
        return await queue.read_schedules(self._changes)

    async def set_cron(self, path: models.NamePath, body: models.CronBody) -> None:
        """Create or change a schedule."""
        fields = body.model_dump(exclude={"schedule", "time_zone", "jitter"})
        cron = Cron(body.schedule, body.time_zone, timedelta(seconds=body.jitter), path.name)
        await self._changes.set_cron(path.name, cron, **fields)

    async def change_cron(self, path: models.NamePath, body: models.CronChange) -> bool:
        """Pause or resume a schedule."""
        change = self._changes.pause_cron if body.paused else self._changes.resume_cron
        return await change(path.name)

    async def run_cron(self, path: models.NamePath) -> models.Started | None:
        """Enqueue a job of a schedule now."""
        identity = await self._changes.run_cron(path.name)
        return None if identity is None else models.Started(id=identity)

    async def delete_cron(self, path: models.NamePath) -> bool:
        """Delete a schedule."""
        return await self._changes.delete_cron(path.name)

    async def list_workflows(self, query: models.PageQuery) -> WorkflowPage:
        """List workflows, newest first."""
        return await list_workflows(self._changes.calls, query.cursor, query.limit)

    async def get_workflow(self, path: models.EventPath, query: models.WorkflowQuery) -> Workflow | None:
        """Show the workflow of an event as a tree."""
        return await read_workflow(self._changes.calls, path.id, query.after)

    async def list_questions(self, query: models.PageQuery) -> queue.QuestionPage:
        """List the questions that wait for people, newest first."""
        return await queue.list_questions(self._changes, query.cursor, query.limit)

    async def list_usage(self) -> queue.UsageList:
        """List what models used in the last 30 days, by day, workspace and model."""
        return await queue.list_usage(self._changes)

    async def get_findings(self) -> Examination:
        """Show what the doctor found in the last minute."""
        return await self._examinations.latest()

    async def examine(self) -> Examination:
        """Run the doctor now."""
        return await self._examinations.latest(AGAIN)
