"""The operator's API: find events, see why one waits, requeue, cancel, pause, schedules, orchestrations."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web

from surelane import __version__
from surelane.calls import Pool
from surelane.encryption.sealing import Sealing
from surelane.queue import Queue
from surelane_operator.api import models
from surelane_operator.api.changes import ChangesApi
from surelane_operator.api.operation import Operation, Refused, document
from surelane_operator.api.panels import PanelsApi
from surelane_operator.filters import cursor_after
from surelane_operator.operations import Operations, no_step
from surelane_operator.panels.examinations import Examinations
from surelane_operator.panels.messages import why
from surelane_operator.timeline import story_of
from surelane_service.cron import Cron

_UNKNOWN = {404: "there is no such event"}


def routes_switched_off() -> list[web.AbstractRouteDef]:
    """Return the routes of an API that is off. Each answer says how to switch it on."""
    return switched_off("/v1", "the operator's API is off; set SURELANE_API_TOKEN to switch it on")


def page_switched_off() -> list[web.AbstractRouteDef]:
    """Return the routes of a page that is off. Each answer says how to switch it on."""
    return switched_off(
        "/console", "the operator's page is off; set SURELANE_CONSOLE_SIGN_IN to switch it on"
    )


def assistants_switched_off() -> list[web.AbstractRouteDef]:
    """Return the routes of the assistants' tools while they are off. Each answer says how to switch them on."""
    return switched_off(
        "/mcp", "the tools for assistants are off; set SURELANE_MCP and SURELANE_API_TOKEN to switch them on"
    )


def switched_off(path: str, reason: str) -> list[web.AbstractRouteDef]:
    """Return routes that answer 404 and say why."""

    async def answer(_: web.Request) -> web.Response:
        return _problem(404, reason)

    return [web.route("*", path, answer), web.route("*", path + "/{rest:.*}", answer)]


class OperatorApi:
    """The routes under ``/v1``. They stand behind the guard, which names the viewer of each request."""

    def __init__(
        self,
        pool: Pool,
        examinations: Examinations,
        *,
        received: Callable[[], Mapping[str, int]] = dict,
        sealing: Sealing | None = None,
    ) -> None:
        """Keep the arguments.

        Args:
            pool: connects to the queue as a member of ``agent_operator``.
            examinations: the doctor's.
            received: what the process has received since it started: label and count.
            sealing: decrypts what people wrote; ``None``: what is encrypted stays hidden.
        """
        self._operations = Operations(pool, sealing)
        self._panels = PanelsApi(pool, examinations, self._operations, received)
        self._changes = ChangesApi(self._operations)

    async def close(self) -> None:
        """Stop what goes on beside requests."""
        await self._changes.close()

    def operations(self) -> list[Operation]:
        """Return the operations in the order in which their paths are matched."""
        not_ended = {409: "it has not ended, or its key is live again"}
        still_live = {409: "it has not ended"}
        ended = {409: "it has ended"}
        not_set = {404: "no operator has changed this limit"}
        no_worker = {404: "there is no such worker"}
        no_schedule = {404: "there is no such schedule"}
        return [
            Operation("GET", "/v1/jobs", self.list_jobs),
            Operation("GET", "/v1/jobs/search", self.search_jobs),
            Operation("POST", "/v1/jobs/requeue", self.requeue_jobs),
            Operation("GET", "/v1/jobs/{id}", self.get_job, refusals=_UNKNOWN),
            Operation("GET", "/v1/jobs/{id}/why", self.why_waiting, refusals=_UNKNOWN),
            Operation("POST", "/v1/jobs/{id}/requeue", self.requeue_job, refusals=_UNKNOWN | not_ended),
            Operation(
                "POST", "/v1/jobs/{id}/replay", self.replay_job, status=202, refusals=_UNKNOWN | still_live
            ),
            Operation("POST", "/v1/jobs/{id}/cancel", self.cancel_job, refusals=_UNKNOWN | ended),
            Operation("POST", "/v1/jobs/{id}/signal", self.signal_job, refusals=_UNKNOWN | ended),
            Operation("POST", "/v1/orchestrate", self.orchestrate, status=202),
            Operation("GET", "/v1/stats", self.stats),
            Operation("POST", "/v1/kinds/{kind}/pause", self.pause_kind),
            Operation("POST", "/v1/kinds/{kind}/resume", self.resume_kind),
            Operation("GET", "/v1/limits", self.list_limits),
            Operation("PUT", "/v1/limits/{kind}", self.set_limit),
            Operation("DELETE", "/v1/limits/{kind}", self.reset_limit, refusals=not_set),
            Operation("POST", "/v1/workers/{name}/drain", self.drain_worker, refusals=no_worker),
            Operation("POST", "/v1/workers/{name}/resume", self.resume_worker, refusals=no_worker),
            Operation("PUT", "/v1/cron/{name}", self.set_cron),
            Operation("PATCH", "/v1/cron/{name}", self.change_cron, refusals=no_schedule),
            Operation("POST", "/v1/cron/{name}/run", self.run_cron, status=202, refusals=no_schedule),
            Operation("DELETE", "/v1/cron/{name}", self.delete_cron, refusals=no_schedule),
            *self._panels.operations(),
            *self._changes.operations(),
        ]

    def document(self) -> dict[str, Any]:
        """Return the OpenAPI document."""
        return document(self.operations(), __version__)

    def routes(self) -> list[web.AbstractRouteDef]:
        """Return the routes, including that of the OpenAPI document."""
        operations, described = self.operations(), self.document()

        async def openapi(_: web.Request) -> web.Response:
            return web.json_response(described)

        return [
            *(web.route(each.method, each.path, _answered(each.answer)) for each in operations),
            web.get("/v1/openapi.json", openapi),
        ]

    async def list_jobs(self, query: models.JobsQuery) -> models.JobPage:
        """List events, newest first."""
        jobs = await self._operations.list_jobs(query.filter(), query.limit, query.cursor)
        following = cursor_after(jobs[-1]) if len(jobs) == query.limit else None
        return models.JobPage.model_validate({"jobs": jobs, "next": following})

    async def search_jobs(self, query: models.SearchQuery) -> models.JobsFound:
        """Find events by what people saw, among the newest 1,000."""
        jobs = await self._operations.search(query.text, query.filter(), query.limit)
        return models.JobsFound.model_validate({"jobs": jobs})

    async def requeue_jobs(self, body: models.Requeue) -> models.Ids:
        """Requeue all ended events that match."""
        return models.Ids(requeued=await self._operations.requeue_all(body.filter(), body.limit))

    async def get_job(self, path: models.EventPath, query: models.JobQuery) -> models.JobStory:
        """Show one event, its timeline, and in a sentence why it waits or how it ended."""
        job = await self._job(path.id)
        if query.payload:
            await self._operations.look(path.id)
        else:
            job["payload"] = job["result"] = None
        told = {"timeline": story_of(job), "why": await why(self._operations, job)}
        return models.JobStory.model_validate(job | told)

    async def why_waiting(self, path: models.EventPath) -> models.Why:
        """Say why an event is not running."""
        found = await self._operations.why(path.id)
        if found is None:
            raise Refused(404, _UNKNOWN[404])
        return models.Why(reason=found[0], detail=found[1])

    async def requeue_job(self, path: models.EventPath) -> models.Ids:
        """Requeue an ended event."""
        await self._job(path.id)
        requeued = await self._operations.requeue([path.id])
        if not requeued:
            raise Refused(409, "the event has not ended, or its key is live again")
        return models.Ids(requeued=requeued)

    async def replay_job(self, path: models.EventPath, body: models.ReplayBody) -> models.Replayed:
        """Run an ended event again as a new event."""
        replay = await self._operations.replay(path.id, from_step=body.from_step, payload=body.payload)
        match replay.answer:
            case "unknown":
                raise Refused(404, _UNKNOWN[404])
            case "live":
                raise Refused(409, "the event has not ended: cancel it, or wait until it ends")
            case "no_step":
                raise Refused(400, f"from_step: {no_step(body.from_step, replay)}")
        return models.Replayed.model_validate(
            {"id": replay.id, "key": replay.key, "replay_of": path.id, "kept": replay.steps}
        )

    async def cancel_job(self, path: models.EventPath, query: models.CancelQuery) -> models.Cancelled:
        """Cancel an event, also while it runs."""
        job = await self._job(path.id)
        answer = await self._operations.cancel(path.id, reason=query.reason, children=query.children)
        if answer is None:
            raise Refused(409, f"the event has ended as {job['status']}")
        if answer == "busy":
            raise Refused(409, "another transaction has the event locked; try again")
        return models.Cancelled.model_validate({"status": answer})

    async def signal_job(self, path: models.EventPath, body: models.SignalBody) -> models.Sent:
        """Send a value to an event whose handler waits for it, now or later."""
        job = await self._job(path.id)
        if await self._operations.signal(path.id, body.name, body.value) is None:
            raise Refused(409, f"the event has ended as {job['status']}")
        return models.Sent(status="sent")

    async def orchestrate(self, body: models.Orchestrate) -> models.Started:
        """Start an orchestration: plan, fan out, synthesize."""
        async with self._operations.actions.keeping("orchestrate") as kept:
            identity = await Queue(kept.connection, encryption=self._operations.sealing).enqueue(
                "orchestrator-plan",
                body.model_dump(exclude={"dedupe_key"}, exclude_none=True),
                dedupe_key=body.dedupe_key,
                enqueued_by="POST /v1/orchestrate",
            )
            kept.result = {"id": identity}
        return models.Started(id=identity)

    async def stats(self) -> models.Stats:
        """Show the queue in figures."""
        return models.Stats.model_validate(
            {"kinds": await self._operations.stats(), "workers": await self._operations.workers()}
        )

    async def pause_kind(self, path: models.KindPath) -> None:
        """Pause a kind."""
        await self._operations.pause(path.kind)

    async def resume_kind(self, path: models.KindPath) -> None:
        """Resume a kind."""
        await self._operations.resume(path.kind)

    async def drain_worker(self, path: models.WorkerPath) -> None:
        """Let a worker end what it runs and claim nothing more; it learns of that within a minute."""
        if not await self._operations.drain_worker(path.name):
            raise Refused(404, "there is no such worker")

    async def resume_worker(self, path: models.WorkerPath) -> None:
        """Let a drained worker claim again."""
        if not await self._operations.resume_worker(path.name):
            raise Refused(404, "there is no such worker")

    async def list_limits(self) -> models.LimitList:
        """List the limits of kinds."""
        return models.LimitList.model_validate({"limits": await self._operations.list_limits()})

    async def set_limit(self, path: models.KindPath, body: models.LimitBody) -> None:
        """Change the limit of a kind until it is reset."""
        await self._operations.set_limit(
            path.kind, concurrency=body.concurrency, rate=body.parsed_rate(), per=body.per
        )

    async def reset_limit(self, path: models.KindPath) -> None:
        """Let the limit that workers declare hold again."""
        if not await self._operations.reset_limit(path.kind):
            raise Refused(404, "no operator has changed this limit")

    async def set_cron(self, path: models.CronPath, body: models.CronBody) -> None:
        """Create or change a schedule."""
        fields = body.model_dump(exclude={"schedule", "time_zone"})
        await self._operations.set_cron(path.name, Cron(body.schedule, body.time_zone), **fields)

    async def change_cron(self, path: models.CronPath, body: models.CronChange) -> None:
        """Pause or resume a schedule."""
        change = self._operations.pause_cron if body.paused else self._operations.resume_cron
        if not await change(path.name):
            raise Refused(404, "there is no such schedule")

    async def run_cron(self, path: models.CronPath) -> models.Started:
        """Enqueue a job of a schedule now."""
        identity = await self._operations.run_cron(path.name)
        if identity is None:
            raise Refused(404, "there is no such schedule")
        return models.Started(id=identity)

    async def delete_cron(self, path: models.CronPath) -> None:
        """Delete a schedule."""
        if not await self._operations.delete_cron(path.name):
            raise Refused(404, "there is no such schedule")

    async def _job(self, identity: int) -> dict[str, Any]:
        job = await self._operations.get(identity)
        if job is None:
            raise Refused(404, _UNKNOWN[404])
        return job


def _answered(
    handler: Callable[[web.Request], Awaitable[web.Response]],
) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Answer the refusals of ``handler``."""

    async def answer(request: web.Request) -> web.Response:
        try:
            return await handler(request)
        except Refused as refused:
            return _problem(refused.status, refused.error, refused.headers)

    return answer


def _problem(status: int, error: str, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.json_response({"error": error}, status=status, headers=headers)
