"""Serve ``/api/{method}``: check a call, apply faults, and answer as Slack does."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from secrets import token_hex

from aiohttp import web

from surelane_dev.simulator.faults import Fault, Faults
from surelane_dev.simulator.installs import Grant, RefusedGrantError
from surelane_dev.simulator.webapi.call import (
    ApiError,
    Method,
    MethodCall,
    RequestContent,
    SlackState,
    invalid_arguments,
    read,
)
from surelane_dev.simulator.webapi.methods import METHODS
from surelane_dev.simulator.webapi.tiers import RateLimitedError, RateLimits
from surelane_dev.simulator.workspace.model import JSON
from surelane_dev.simulator.workspace.workspace import Workspace
from surelane_service.lifecycle import sleep_unless

KNOWN_SCOPES = frozenset(method.scope for method in METHODS.values() if method.scope)
CALLS_KEPT = 300
SCOPES = web.RequestKey("scopes", dict[str, str])
"""Headers of each answer: the scopes of the token, and the scopes that the method takes."""
TEAM = web.RequestKey("team", str)
"""The workspace of a call's token."""
NAMES_WORKSPACE = frozenset({"team_id", "channel", "channel_id", "user", "users", "user_id"})
"""The arguments that name a workspace, or a channel or user of it."""


@dataclass(frozen=True, slots=True)
class Logged:
    """A call in the page's list."""

    at: float
    method: str
    status: int
    error: str | None
    team_id: str | None
    """The workspace of the token."""


@dataclass(eq=False)
class WebApi:
    """Answer calls, and log them, newest last."""

    slack: SlackState
    faults: Faults
    scopes: frozenset[str] | None
    limits: RateLimits
    noted: Callable[[JSON], None] = lambda _: None
    calls: deque[JSON] = field(default_factory=lambda: deque(maxlen=CALLS_KEPT))
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    """Set to release delayed calls."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["method"]
        fault = self.faults.take(Faults.API, name)
        response, error = await self._answer(request, name, fault)
        response.headers["X-Slack-Req-Id"] = token_hex(16)
        response.headers.update(request.get(SCOPES, {}))
        lost = fault is not None and fault.kind == "answer_lost"
        refused = "answer_lost" if lost else error
        self._note(Logged(time.time(), name, response.status, refused, request.get(TEAM)))
        if lost and request.transport is not None:
            request.transport.abort()
        return response

    async def _answer(
        self, request: web.Request, name: str, fault: Fault | None
    ) -> tuple[web.Response, str | None]:
        match fault:
            case Fault(kind="rate_limited", retry_after=seconds):
                return _rate_limited(seconds)
            case Fault(kind="server_error"):
                return _response({"ok": False, "error": "internal_error"}, status=500)
            case Fault(kind="invalid_auth"):
                return _response({"ok": False, "error": "invalid_auth"})
            case Fault(kind="refused", error=name_of_error):
                return _response({"ok": False, "error": name_of_error})
        try:
            unshared = fault is not None and fault.kind == "unshared"
            answer = _response(await self._run(request, name, ("channel_id", "channels") if unshared else ()))
        except RateLimitedError as error:
            return _rate_limited(error.retry_after)
        except (ApiError, RefusedGrantError) as error:
            answer = _response({"ok": False, "error": str(error), **getattr(error, "details", {})})
        match fault:
            case Fault(kind="slow"):
                await sleep_unless(self.closing, fault.delay)
            case Fault(kind="done_but_failed"):
                return _response({"ok": False, "error": fault.error})
            case Fault(kind="garbled"):
                return web.Response(text="<html></html>", content_type="text/html"), "garbled"
        return answer

    async def _run(self, request: web.Request, name: str, lost: Sequence[str] = ()) -> JSON:
        """Do what a call asks for, without its ``lost`` arguments."""
        method = METHODS.get(name)
        if method is None:
            raise ApiError("unknown_method", req_method=name)
        sent = await read(request, method)
        self.limits.count(name, method.per_minute, sent.token, sent.arguments)
        grant = self._granted(method, sent)
        scopes = self.scopes if grant is None else frozenset(grant.scopes.split(","))
        if method.needs_token:
            held = ",".join(sorted(KNOWN_SCOPES if scopes is None else scopes))
            request[SCOPES] = {"x-oauth-scopes": held, "x-accepted-oauth-scopes": method.scope or ""}
        _check(method, sent, scopes)
        workspace = self._workspace(sent) if grant is None else _workspace(self.slack, grant, sent)
        if method.needs_token:
            request[TEAM] = workspace.team_id
        slack = replace(self.slack, workspace=workspace)
        arguments = {each: value for each, value in sent.arguments.items() if each not in lost}
        answer = {"ok": True, **method.run(MethodCall(arguments, slack, sent.token))}
        if sent.warnings:
            metadata = answer.get("response_metadata", {})
            warnings = [*metadata.get("warnings", ()), *sent.warnings]
            answer |= {"warning": ",".join(warnings), "response_metadata": {**metadata, "warnings": warnings}}
        return answer

    def _granted(self, method: Method, sent: RequestContent) -> Grant | None:
        grant = self.slack.installs.grant_of(sent.token)
        if grant is not None:
            if method.takes_app_token or (grant.sort == "user" and not method.takes_user_token):
                raise ApiError("not_allowed_token_type")
        elif method.needs_token:
            self._check_token(sent.token, "xapp-" if method.takes_app_token else "xoxb-")
        return grant

    def _check_token(self, token: str | None, prefix: str) -> None:
        """Check a token that no install has given. That of a function's run ends with the run."""
        run = self.slack.executions.of_token(token or "")
        if run is None:
            _check_token(token, prefix)
        elif prefix != "xoxb-":
            raise ApiError("not_allowed_token_type")
        elif run.state != "running":
            raise ApiError("token_expired")

    def _workspace(self, sent: RequestContent) -> Workspace:
        run = self.slack.executions.of_token(sent.token or "")
        workspaces = self.slack.installs.workspaces
        return self.slack.workspace if run is None else workspaces[run.team_id]

    def _note(self, call: Logged) -> None:
        self.calls.append(asdict(call))
        self.noted(asdict(call))


def _workspace(slack: SlackState, grant: Grant, sent: RequestContent) -> Workspace:
    """Return the workspace that a call is about. An organization's token reaches all workspaces of its own."""
    if not grant.wide:
        return grant.workspace
    given = {name: str(value) for name, value in sent.arguments.items()}
    named = {given[name] for name in NAMES_WORKSPACE & given.keys()}
    named.add(slack.interactions.trigger(given.get("trigger_id", ""))[1])
    view = slack.interactions.views.find(given.get("view_id", ""), given.get("external_id", ""))
    if view is not None:
        named.add(view.user)
    for workspace in slack.installs.workspaces.values():
        own = workspace.enterprise_id == grant.workspace.enterprise_id
        if own and named & {workspace.team_id, *workspace.channels, *workspace.users}:
            return workspace
    return grant.workspace


def _check(method: Method, sent: RequestContent, scopes: frozenset[str] | None) -> None:
    if scopes is not None and method.scope and method.scope not in scopes:
        raise ApiError("missing_scope", needed=method.scope, provided=",".join(sorted(scopes)))
    missing = [name for name in method.required if name not in sent.arguments]
    if missing:
        raise invalid_arguments(*(f"missing required field: {name}" for name in missing))


def _check_token(token: str | None, prefix: str) -> None:
    if not token:
        raise ApiError("not_authed")
    if token.startswith(prefix):
        return
    known = token.startswith(("xoxb-", "xoxp-", "xapp-", "xoxe."))
    raise ApiError("not_allowed_token_type" if known else "invalid_auth")


def _rate_limited(retry_after: int | str) -> tuple[web.Response, str | None]:
    refused, headers = {"ok": False, "error": "ratelimited"}, {"Retry-After": str(retry_after)}
    return _response(refused, status=429, headers=headers)


def _response(
    body: JSON, *, status: int = 200, headers: dict[str, str] | None = None
) -> tuple[web.Response, str | None]:
    return web.json_response(body, status=status, headers=headers), body.get("error")
