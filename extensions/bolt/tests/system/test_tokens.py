"""A Bolt app's calls carry the token of the event's workspace, or of its workflow's step."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from surelane.calls import Connection
from surelane.queue import Queue
from surelane_service.probes import serving
from tests.processes import service
from tests.system.ingest_client import envelope
from tests.system.worker import ended, environment


@dataclass
class Api:
    """A Web API that says yes, and records each call."""

    calls: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    """The method, the token and the arguments."""

    async def take(self, request: web.Request) -> web.Response:
        method = request.match_info["method"]
        given = await request.json() if request.content_type == "application/json" else await request.post()
        token = request.headers["Authorization"].removeprefix("Bearer ")
        self.calls.append((method, token, dict(request.query) | dict(given)))
        return web.json_response({"ok": True, "ts": "1700000000.000100", "channel": "C1"})

    def of(self, method: str) -> list[tuple[str, dict[str, Any]]]:
        return [(token, given) for called, token, given in self.calls if called == method]


@pytest.fixture
async def api(database: str, tmp_path: Path) -> AsyncIterator[Api]:
    api = Api()
    app = web.Application()
    app.router.add_post("/api/{method}", api.take)
    async with serving(app, 0, setting="none", host="127.0.0.1") as port:
        settings = {
            "SURELANE_HANDLERS": "extensions.bolt.tests.system.apps.installed:app",
            "SURELANE_TEST_FOLDER": str(tmp_path),
            "SLACK_API_URL": f"http://127.0.0.1:{port}/api/",
            "SLACK_SIGNING_SECRET": "unused",
        }
        async with service("surelane_worker", environment(database, **settings)):
            yield api


async def end(connection: Connection, team: str, event: dict[str, Any]) -> dict[str, Any]:
    stored = await Queue(connection).insert_event(
        json.dumps(envelope(event) | {"team_id": team, "authorizations": [{"team_id": team}]})
    )
    return dict(await ended(connection, stored))


async def test_tokens_of_workspaces_and_the_messages_own_metadata(api: Api, connection: Connection) -> None:
    event = {"type": "app_mention", "channel": "C1", "user": "U1", "text": "hi", "ts": "1.1"}
    for team, token, attempts in (("T1", "xoxb-one", 1), ("T2", "xoxb-two", 1), ("T3", "xoxb-three", 2)):
        row = await end(connection, team, event | {"event_ts": f"{team[1]}.1"})
        assert (row["outcome"], row["attempts"]) == ("completed", attempts), row["errors"]
        assert [used for used, _ in api.of("reactions.add")] == [token]
        ((used, posted),) = api.of("chat.postMessage")
        mark = {"event_id": row["item_key"], "ordinal": 0}
        expected = {"event_type": "mine", "event_payload": {"a": 1, "surelane_reply": mark}}
        assert (used, posted["text"], posted["metadata"]) == (token, "hello", expected)
        api.calls.clear()
    assert "NotAuthorizedError" in row["errors"]


async def test_step_of_a_workflow_is_completed_once_with_its_own_token(
    api: Api, connection: Connection
) -> None:
    event = {
        "type": "function_executed",
        "function": {"callback_id": "reverse"},
        "inputs": {"text": "abc"},
        "function_execution_id": "Fx1",
        "bot_access_token": "xwfp-step",
        "event_ts": "1.1",
    }
    row = await end(connection, "T1", event)
    assert (row["outcome"], row["attempts"]) == ("completed", 2), row["errors"]
    ((token, given),) = api.of("functions.completeSuccess")
    assert (token, given["function_execution_id"]) == ("xwfp-step", "Fx1")
    outputs = given["outputs"]
    assert (json.loads(outputs) if isinstance(outputs, str) else outputs) == {"reversed": "cba"}
