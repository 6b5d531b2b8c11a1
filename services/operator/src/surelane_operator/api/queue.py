"""The endpoints of the queue: kinds, limits, workers, schedules, workflows, questions, the doctor's findings."""

from datetime import timedelta

from surelane_operator.api import models
from surelane_operator.api.endpoint import UNKNOWN, Endpoint
from surelane_operator.changes import Changes
from surelane_operator.reads.findings import Examination, Examinations
from surelane_operator.reads.queue import (
    KindPage,
    Overview,
    QuestionPage,
    ScheduleList,
    WorkerList,
    list_questions,
    read_kinds,
    read_overview,
    read_schedules,
    read_workers,
)
from surelane_operator.reads.workflows import Workflow, WorkflowPage, list_workflows, read_workflow
from surelane_service.cron import Cron


class QueueApi:
    """The endpoints of the queue."""

    def __init__(self, changes: Changes, examinations: Examinations) -> None:
        self._changes = changes
        self._examinations = examinations

    def endpoints(self) -> list[Endpoint]:
        not_set = {404: "no operator has changed this limit"}
        no_worker = {404: "there is no such worker"}
        no_schedule = {404: "there is no such schedule"}
        return [
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
            Endpoint("GET", "/v1/doctor", self.get_findings),
            Endpoint("POST", "/v1/doctor", self.examine),
        ]

    async def get_overview(self) -> Overview:
        """Show what waits the longest and why, what failed or expired lately, and how fast it goes."""
        return await read_overview(self._changes)

    async def stats(self) -> models.Stats:
        """Show the queue in figures."""
        return models.Stats.model_validate(
            {"kinds": await self._changes.stats(), "workers": await self._changes.workers()}
        )

    async def list_kinds(self, query: models.KindsQuery) -> KindPage:
        """List kinds, with their counts, limits and workers."""
        return await read_kinds(self._changes, query.after, query.limit)

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

    async def list_workers(self) -> WorkerList:
        """List workers, and what each runs now."""
        return await read_workers(self._changes)

    async def drain_worker(self, path: models.NamePath) -> bool:
        """Let a worker end what it runs and claim nothing more; it learns of that within a minute."""
        return await self._changes.drain_worker(path.name)

    async def resume_worker(self, path: models.NamePath) -> bool:
        """Let a drained worker claim again."""
        return await self._changes.resume_worker(path.name)

    async def list_cron(self) -> ScheduleList:
        """List the named schedules, with their next firings and last runs."""
        return await read_schedules(self._changes)

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

    async def list_questions(self, query: models.PageQuery) -> QuestionPage:
        """List the questions that wait for people, newest first."""
        return await list_questions(self._changes, query.cursor, query.limit)

    async def get_findings(self) -> Examination:
        """Show what the doctor found in the last minute."""
        return await self._examinations.latest()

    async def examine(self) -> Examination:
        """Run the doctor now."""
        return await self._examinations.again()
