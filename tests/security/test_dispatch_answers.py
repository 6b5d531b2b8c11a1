"""Only the answer signed for a task ends that task."""

import base64
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from aiohttp import ClientSession, web
from examples.dispatch.agent import Agent

from surelane import Queue
from surelane.calls import Connection
from surelane_service.probes import serving
from surelane_service.webhooks import ID, answer_id, sign, task_id
from surelane_worker.remote_agents import Accepted, send
from tests.sql.queue_steps import await_answer, claim, ended, pair
from tests.system.ingest_client import Served, own_ingest
from tests.system.test_workflow_remote import KEY, agent

OTHER = b"o" * 32
SECRETS = ",".join(
    f"{name}=whsec_{base64.b64encode(key).decode()}" for name, key in {"scribe": KEY, "critic": OTHER}.items()
)
JSON = {"Content-Type": "application/json"}
ANSWER = b'{"found": 1}'
LATER = timedelta(minutes=10)


system, ingest, connection = own_ingest(dispatch_secrets=SECRETS)


async def parked(connection: Connection) -> int:
    """Make a task that was sent to the scribe and awaits its answer."""
    queue = Queue(connection)
    identity = await queue.enqueue("dispatch-execute", {"agent": "scribe", "task": "?"})
    (row,) = await claim(connection, "dispatch-execute")
    await await_answer(connection, pair(row), datetime.now(UTC) + LATER)
    return identity


async def post(ingest: Served, identity: int | str, headers: Mapping[str, str], body: bytes = ANSWER) -> int:
    return (await ingest.slack.send("POST", f"/v1/dispatch/{identity}", body, {**JSON, **headers})).status


async def test_an_answer_ends_only_its_own_task(ingest: Served, connection: Connection) -> None:
    first, second = await parked(connection), await parked(connection)
    signed = sign(answer_id(first), ANSWER, [KEY])
    assert await post(ingest, second, signed) == 401, "another task's answer"
    assert await post(ingest, second, {**signed, ID: answer_id(second)}) == 401, "the id is signed, too"
    assert await post(ingest, second, sign(answer_id(second), ANSWER, [OTHER])) == 404, "another agent's"
    assert await post(ingest, f"0{first}", signed) == 401, "one way to write an id"
    for prefix in ("", "dispatch-", "webhook:", "answer", "ANSWER-"):
        assert await post(ingest, second, sign(f"{prefix}{second}", ANSWER, [KEY])) == 401, prefix
    assert await ended(connection, second) is None
    assert await post(ingest, first, signed) == 200
    assert await post(ingest, first, signed) == 404, "a second time"
    row = await ended(connection, first)
    assert row is not None
    assert json.loads(row["result"]) == {"found": 1}


async def test_our_own_request_posted_back_is_no_answer(ingest: Served, connection: Connection) -> None:
    identity = await parked(connection)
    sent: list[tuple[Mapping[str, str], bytes]] = []

    async def take(request: web.Request) -> web.Response:
        sent.append((dict(request.headers), await request.read()))
        return web.Response(status=202)

    async with agent(take) as remote:
        assert await send(remote, "scribe", identity, "?", datetime.now(UTC) + LATER) == Accepted()
    ((headers, body),) = sent
    assert {name.lower(): value for name, value in headers.items()}[ID] == task_id(identity)
    ours = {name: value for name, value in headers.items() if name.lower().startswith("webhook-")}
    assert await post(ingest, identity, ours, body) == 401
    assert await ended(connection, identity) is None


async def test_the_examples_agent_takes_no_answer_of_its_own_for_a_task() -> None:
    async with serving(Agent("shouter", KEY).app(), 0, setting="none", host="127.0.0.1") as port:
        url = f"http://127.0.0.1:{port}/tasks"
        task = json.dumps({"id": "7", "task": "x", "answer_url": "http://127.0.0.1:9/"}).encode()
        async with ClientSession() as session:
            for identity, status in ((answer_id(7), 401), (task_id(8), 401), (task_id(7), 202)):
                headers = {**JSON, **sign(identity, task, [KEY])}
                async with session.post(url, data=task, headers=headers) as response:
                    assert response.status == status
