"""The operator's API: find events, see why one waits, requeue, cancel, pause, schedules, orchestrations."""

import hmac
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from aiohttp import web
from pydantic import BaseModel

from surelane import Queue, __version__
from surelane.calls import Pool
from surelane.errors import Conflict, InvalidInput
from surelane_operator.api import schemas
from surelane_operator.api.openapi import Operation, document
from surelane_operator.api.requests import (
    Refused,
    cursor_of,
    identity_of,
    job_of,
    name_of,
    position_of,
    problem,
    read,
    read_body,
)
from surelane_operator.operations import Operations
from surelane_operator.timeline import story_of
from surelane_service.cron import Cron
from surelane_service.logs import get_logger
from surelane_service.pool import FORBIDDEN, UNAVAILABLE

Answer = BaseModel | None
Handler = Callable[[web.Request], Awaitable[Answer]]

_ID = {"id": {"type": "integer", "minimum": 1, "maximum": 2**63 - 1}}
_KIND = {"kind": {"type": "string", "pattern": schemas.NAME}}
_NAME = {"name": {"type": "string", "pattern": schemas.NAME}}
_UNKNOWN = {"404": "there is no such event"}
_logger = get_logger(__name__)


def routes_switched_off() -> list[web.AbstractRouteDef]:
    """The routes without a token: whoever looks for the API learns how to switch it on."""

    async def answer(_: web.Request) -> web.Response:
        return problem(404, "the operator's API is off; set SURELANE_API_TOKEN to switch it on")

    return [web.route("*", "/v1", answer), web.route("*", "/v1/{rest:.*}", answer)]


class OperatorApi:
    """The routes under ``/v1``, behind a bearer token."""

    def __init__(self, pool: Pool, token: str) -> None:
        """``pool`` connects as a member of ``agent_operator``."""
        self._operations = Operations(pool)
        self._queue = Queue(pool)
        self._token = token.encode()
        self._routes: list[tuple[Operation, Handler]] = [
            (
                Operation(
                    "GET",
                    "/v1/jobs",
                    "listJobs",
                    "Events, newest first",
                    schemas.JobPage,
                    query=schemas.JobsQuery,
                ),
                self.list_jobs,
            ),
            (
                Operation(
                    "POST",
                    "/v1/jobs/requeue",
                    "requeueJobs",
                    "Requeue all ended events that match",
                    schemas.Ids,
                    body=schemas.Requeue,
                ),
                self.requeue_all,
            ),
            (
                Operation(
                    "GET",
                    "/v1/jobs/{id}",
                    "getJob",
                    "One event and its timeline",
                    schemas.JobStory,
                    variables=_ID,
                    refusals=_UNKNOWN,
                ),
                self.get_job,
            ),
            (
                Operation(
                    "GET",
                    "/v1/jobs/{id}/why",
                    "whyWaiting",
                    "Why an event is not running",
                    schemas.Why,
                    variables=_ID,
                    refusals=_UNKNOWN,
                ),
                self.why,
            ),
            (
                Operation(
                    "POST",
                    "/v1/jobs/{id}/requeue",
                    "requeueJob",
                    "Requeue an ended event",
                    schemas.Ids,
                    variables=_ID,
                    refusals={**_UNKNOWN, "409": "it has not ended, or its key is live again"},
                ),
                self.requeue,
            ),
            (
                Operation(
                    "POST",
                    "/v1/jobs/{id}/cancel",
                    "cancelJob",
                    "Cancel an event",
                    schemas.Cancelled,
                    variables=_ID,
                    refusals={**_UNKNOWN, "409": "it has ended"},
                ),
                self.cancel,
            ),
            (
                Operation(
                    "POST",
                    "/v1/orchestrate",
                    "orchestrate",
                    "Plan, fan out, synthesize",
                    schemas.Started,
                    status=202,
                    body=schemas.Orchestrate,
                ),
                self.orchestrate,
            ),
            (Operation("GET", "/v1/stats", "stats", "The queue in figures", schemas.Stats), self.stats),
            (
                Operation(
                    "POST",
                    "/v1/kinds/{kind}/pause",
                    "pauseKind",
                    "Pause a kind",
                    None,
                    status=204,
                    variables=_KIND,
                ),
                self.pause,
            ),
            (
                Operation(
                    "POST",
                    "/v1/kinds/{kind}/resume",
                    "resumeKind",
                    "Resume a kind",
                    None,
                    status=204,
                    variables=_KIND,
                ),
                self.resume,
            ),
            (
                Operation("GET", "/v1/cron", "listCron", "The named schedules", schemas.CronList),
                self.list_cron,
            ),
            (
                Operation(
                    "PUT",
                    "/v1/cron/{name}",
                    "setCron",
                    "Create or change a schedule",
                    None,
                    status=204,
                    body=schemas.CronBody,
                    variables=_NAME,
                ),
                self.set_cron,
            ),
            (
                Operation(
                    "DELETE",
                    "/v1/cron/{name}",
                    "deleteCron",
                    "Delete a schedule",
                    None,
                    status=204,
                    variables=_NAME,
                    refusals={"404": "there is no such schedule"},
                ),
                self.delete_cron,
            ),
        ]
        self._document = document([operation for operation, _ in self._routes], __version__)

    def routes(self) -> list[web.AbstractRouteDef]:
        """The routes, the document's own included."""
        routes: list[web.AbstractRouteDef] = [
            web.route(operation.method, operation.path, self._answering(operation, handler))
            for operation, handler in self._routes
        ]
        return [*routes, web.get("/v1/openapi.json", self._openapi)]

    async def list_jobs(self, request: web.Request) -> Answer:
        query = read(schemas.JobsQuery, dict(request.query))
        after = None if query.cursor is None else cursor_of(query.cursor)
        jobs = await self._operations.list_jobs(query.filter(query.status), query.limit, after)
        return schemas.JobPage(
            jobs=[job_of(schemas.ListedJob, job) for job in jobs],
            next=position_of(jobs[-1]) if len(jobs) == query.limit else None,
        )

    async def get_job(self, request: web.Request) -> Answer:
        job = await self._job(request)
        steps = [schemas.Step(**asdict(step)) for step in story_of(job)]
        return schemas.JobStory(**job_of(schemas.Job, job).model_dump(), timeline=steps)

    async def why(self, request: web.Request) -> Answer:
        found = await self._operations.why(identity_of(request))
        if found is None:
            raise Refused(404, "there is no such event")
        return schemas.Why(reason=found[0], detail=found[1])

    async def requeue(self, request: web.Request) -> Answer:
        job = await self._job(request)
        requeued = await self._operations.requeue([job["id"]])
        if not requeued:
            raise Refused(409, "the event has not ended, or its key is live again")
        return schemas.Ids(requeued=requeued)

    async def requeue_all(self, request: web.Request) -> Answer:
        body = await read_body(schemas.Requeue, request)
        jobs = await self._operations.list_jobs(body.filter(body.status), body.limit)
        return schemas.Ids(requeued=await self._operations.requeue([job["id"] for job in jobs]))

    async def cancel(self, request: web.Request) -> Answer:
        job = await self._job(request)
        answer = await self._operations.cancel(job["id"])
        if answer is None:
            raise Refused(409, f"the event has ended as {job['status']}")
        return schemas.Cancelled.model_validate({"status": answer})

    async def orchestrate(self, request: web.Request) -> Answer:
        body = await read_body(schemas.Orchestrate, request)
        payload = body.model_dump(exclude={"dedupe_key"}, exclude_none=True)
        identity = await self._queue.enqueue(
            "orchestrator-plan", payload, dedupe_key=body.dedupe_key, enqueued_by="POST /v1/orchestrate"
        )
        return schemas.Started(id=identity)

    async def stats(self, _: web.Request) -> Answer:
        return schemas.Stats.model_validate(
            {"kinds": await self._operations.stats(), "workers": await self._operations.workers()}
        )

    async def pause(self, request: web.Request) -> Answer:
        await self._operations.pause(name_of(request, "kind"))
        return None

    async def resume(self, request: web.Request) -> Answer:
        await self._operations.resume(name_of(request, "kind"))
        return None

    async def list_cron(self, _: web.Request) -> Answer:
        return schemas.CronList.model_validate({"schedules": await self._operations.list_cron()})

    async def set_cron(self, request: web.Request) -> Answer:
        body = await read_body(schemas.CronBody, request)
        following = Cron(body.schedule, body.time_zone).next_after(datetime.now(UTC))
        await self._operations.set_cron(name_of(request, "name"), **body.model_dump(), next_at=following)
        return None

    async def delete_cron(self, request: web.Request) -> Answer:
        if not await self._operations.delete_cron(name_of(request, "name")):
            raise Refused(404, "there is no such schedule")
        return None

    async def _job(self, request: web.Request) -> dict[str, Any]:
        job = await self._operations.get(identity_of(request))
        if job is None:
            raise Refused(404, "there is no such event")
        return job

    async def _openapi(self, request: web.Request) -> web.Response:
        return (
            web.json_response(self._document)
            if self._allowed(request)
            else problem(401, "a bearer token is needed")
        )

    def _allowed(self, request: web.Request) -> bool:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(
            token.strip().encode(errors="surrogateescape"), self._token
        )

    def _answering(
        self, operation: Operation, handler: Handler
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(request: web.Request) -> web.Response:
            if not self._allowed(request):
                return problem(401, "a bearer token is needed", {"WWW-Authenticate": "Bearer"})
            try:
                found = await handler(request)
            except Refused as refused:
                return problem(refused.status, refused.error)
            except InvalidInput as error:
                return problem(400, f"a value cannot be stored: {error}")
            except Conflict:
                return problem(409, "another transaction, or another event under the same key, is in the way")
            except UNAVAILABLE as error:
                _logger.warning("database away", error=type(error).__name__, operation=operation.name)
                return problem(503, "the database is away", {"Retry-After": "2"})
            except FORBIDDEN:
                _logger.warning("the API's role is no member of agent_operator", operation=operation.name)
                return problem(
                    503, "set SURELANE_OPERATOR_DATABASE_URL to a role that is a member of agent_operator"
                )
            if found is None:
                return web.Response(status=operation.status)
            return web.Response(
                text=found.model_dump_json(), status=operation.status, content_type="application/json"
            )

        return answer
