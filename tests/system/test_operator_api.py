"""The operator's API, on a real service and a real database, as an operator's role."""

import asyncio
import base64
import io
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import asyncpg
import pytest

from surelane import Queue
from surelane.calls import Connection
from surelane.jobs import Continuation, Job
from surelane_service.engine import Engine
from tests.databases import as_role
from tests.processes import service

TOKEN = "an-operators-token-0123456789"


class Api:
    """A client of the API."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self.url = url

    async def call(self, method: str, path: str, *, token: str = TOKEN, **options: Any) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with self._session.request(method, self.url + path, headers=headers, **options) as response:
            return response.status, await response.json() if response.content_length else None


@pytest.fixture(scope="module")
async def running_api(shared_database: str) -> AsyncIterator[Api]:
    env = {"DATABASE_URL": as_role(shared_database, "surelane_operator"), "SURELANE_API_TOKEN": TOKEN}
    async with service("surelane_operator", env) as operator, aiohttp.ClientSession() as session:
        yield Api(session, operator.private_url)


@pytest.fixture
async def connection(shared_database: str) -> AsyncIterator[Connection]:
    connected = await asyncpg.connect(shared_database)
    await connected.execute("truncate agent.event, agent.event_hist, agent.kind, agent.cron")
    yield connected
    await connected.close()


@pytest.fixture
async def api(running_api: Api, connection: Connection) -> Api:  # noqa: ARG001 - an empty queue
    """Use one service for all tests, each on an empty queue: a start takes longer than a test."""
    return running_api


def _cursor(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


async def _fail(connection: Connection, kind: str, message: str) -> int:
    """Store a job and fail its only attempt."""
    identity = await Queue(connection).enqueue(kind, {"n": 1}, max_attempts=1)
    await connection.execute("select agent.claim_events($1)", [kind])
    await connection.execute(
        "select agent.settle($1, '{1}', '{fail}', $2)",
        [identity],
        [
            json.dumps(
                {
                    "error": {
                        "type": "ValueError",
                        "message": message,
                        "at": "2026-01-01T00:00:00Z",
                        "worker": "w",
                    }
                }
            )
        ],
    )
    return identity


@pytest.mark.parametrize("token", ["", "wrong", "ein-schlüssel"])
async def test_nothing_is_answered_without_the_token(api: Api, token: str) -> None:
    for path in ("/v1/jobs", "/v1/stats", "/v1/openapi.json", "/v1/jobs/1"):
        status, _ = await api.call("GET", path, token=token)
        assert status == 401


async def test_no_route_of_the_document_is_answered_without_a_token(api: Api) -> None:
    _, document = await api.call("GET", "/v1/openapi.json")
    routes = [(method, path) for path, methods in document["paths"].items() for method in methods]
    assert len(routes) > 30
    for method, path in routes:
        status, _ = await api.call(method.upper(), re.sub(r"\{\w+\}", "1", path), token="")
        assert status == 401, (method, path)


async def test_failed_jobs_are_listed_newest_first_with_their_errors(
    api: Api, connection: Connection
) -> None:
    first = await _fail(connection, "agent-turn", "no answer")
    second = await _fail(connection, "agent-turn", "no luck")
    await Queue(connection).enqueue("agent-turn")

    status, page = await api.call("GET", "/v1/jobs?status=failed&limit=20")

    assert status == 200
    assert [job["id"] for job in page["jobs"]] == [second, first]
    assert page["next"] is None
    job = page["jobs"][0]
    assert (job["kind"], job["status"], job["error"], job["attempts"]) == (
        "agent-turn",
        "failed",
        "no luck",
        1,
    )
    assert not {"payload", "errors", "result"} & set(job), "a list leaves large fields out"
    _, whole = await api.call("GET", f"/v1/jobs/{second}")
    assert (whole["payload"], whole["errors"][0]["type"]) == ({"n": 1}, "ValueError")


async def test_a_page_of_large_events_is_small(api: Api, connection: Connection) -> None:
    queue = Queue(connection)
    await queue.enqueue_many(
        [Job("large", {"text": "x" * 500_000}, enqueued_by="y" * 5000) for _ in range(5)]
    )
    status, page = await api.call("GET", "/v1/jobs?limit=1000")
    assert (status, len(page["jobs"])) == (200, 5)
    assert len(json.dumps(page)) < 10_000


async def test_pages_follow_each_other_from_the_live_ones_into_history(
    api: Api, connection: Connection
) -> None:
    ended = [await _fail(connection, "agent-turn", str(number)) for number in range(3)]
    live = [await Queue(connection).enqueue("agent-turn", {"n": number}) for number in range(3)]
    seen: list[int] = []
    cursor = ""
    while True:
        _, page = await api.call("GET", f"/v1/jobs?limit=2{cursor}")
        seen += [job["id"] for job in page["jobs"]]
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"

    assert seen == [*reversed(live), *reversed(ended)]


async def test_events_are_searched_by_what_people_saw(api: Api, connection: Connection) -> None:
    click = {
        "type": "block_actions",
        "trigger_id": "1.2.3f",
        "channel": {"id": "C0OPS", "name": "ops"},
        "message": {"ts": "1700000000.000100", "text": "Deploy api?"},
        "actions": [{"action_id": "go", "text": {"type": "plain_text", "text": "Approve"}}],
    }
    clicked = await Queue(connection).insert_event(json.dumps(click))
    deploy = await Queue(connection).enqueue("agent-turn", {"text": "Deploy web"})
    for query, found in (
        ("text=DEPLOY", [deploy, clicked]),
        ("text=deploy+approve", [clicked]),
        ("text=deploy&kind=agent-turn", [deploy]),
        ("text=deploy&limit=1", [deploy]),
        ("text=deploy&since=2999-01-01T00:00:00Z", []),
        ("text=https://team.slack.com/archives/C0OPS/p1700000000000100", [clicked]),
    ):
        status, answer = await api.call("GET", f"/v1/jobs/search?{query}")
        assert (status, [job["id"] for job in answer["jobs"]]) == (200, found), query
    for query in ("", "text=", "text=x&status=failed", "text=%00"):
        assert (await api.call("GET", f"/v1/jobs/search?{query}"))[0] == 400, query
    document = (await api.call("GET", "/v1/openapi.json"))[1]
    parameters = document["paths"]["/v1/jobs/search"]["get"]["parameters"]
    assert [each["name"] for each in parameters if each["required"]] == ["text"]


async def test_events_are_found_by_their_tags(api: Api, connection: Connection) -> None:
    acme, other = [await Queue(connection).enqueue("agent-turn", {"text": "hello"}) for _ in range(2)]
    for event in await Engine(connection).claim_events(["agent-turn"], 2, worker="w"):
        customer = "Acme, Inc." if event.id == acme else "other"
        await Engine(connection).store_tags(event.id, event.claim, {"customer": customer, "order": "17"})
    for query, found in (
        ("jobs?tag=customer:Acme,+Inc.", [acme]),
        ("jobs?tag=customer=other,order:17", [other]),
        ("jobs?tag=customer:other,customer:Acme,+Inc.", [other, acme]),
        ("jobs?tag=order:1", []),
        ("jobs/search?text=hello&tag=customer:other", [other]),
    ):
        status, answer = await api.call("GET", f"/v1/{query}")
        assert (status, [job["id"] for job in answer["jobs"]]) == (200, found), query
    assert (await api.call("GET", "/v1/jobs?tag=customer"))[0] == 400
    assert (await api.call("GET", f"/v1/jobs/{acme}"))[1]["tags"] == {"customer": "Acme, Inc.", "order": "17"}
    bulk = {"action": "cancel", "filter": {"tag": ["customer:other"], "status": ["running"]}}
    _, preview = await api.call("POST", "/v1/jobs/bulk/preview", json=bulk)
    assert [job["id"] for job in preview["sample"]] == [other]


async def test_an_event_has_its_timeline_its_reason_and_a_way_back(api: Api, connection: Connection) -> None:
    identity = await _fail(connection, "agent-turn", "no answer")

    _, job = await api.call("GET", f"/v1/jobs/{identity}")
    assert [step["what"] for step in job["timeline"]][-3:] == ["enqueued", "claimed", "failed"]
    assert len(job["trace_id"]) == 32
    assert (await api.call("GET", f"/v1/jobs/{identity}/why"))[1]["reason"] == "ended"

    rerun: dict[str, Any] = {"id": identity, "rerun_of": None, "key": None, "kept": []}
    assert await api.call("POST", f"/v1/jobs/{identity}/rerun") == (202, rerun)
    assert (await api.call("GET", f"/v1/jobs/{identity}/why"))[1]["reason"] == "no_worker"
    assert (await api.call("POST", f"/v1/jobs/{identity}/rerun"))[0] == 409

    assert await api.call("POST", f"/v1/jobs/{identity}/cancel") == (200, {"status": "cancelled"})
    assert (await api.call("POST", f"/v1/jobs/{identity}/cancel"))[0] == 409
    _, job = await api.call("GET", f"/v1/jobs/{identity}")
    assert job["status"] == "cancelled"
    assert "run again" in [step["what"] for step in job["timeline"]]


async def test_all_that_failed_can_run_again_at_once(api: Api, connection: Connection) -> None:
    ids = {await _fail(connection, "agent-turn", "x") for _ in range(3)}
    other = await _fail(connection, "embed-memories", "x")

    which = {"status": ["failed"], "kind": ["agent-turn"]}
    status, action = await api.call("POST", "/v1/jobs/bulk", json={"action": "rerun", "filter": which})
    assert status == 202
    async with asyncio.timeout(60):
        while action["finished_at"] is None:
            action = (await api.call("GET", f"/v1/actions/{action['id']}"))[1]

    assert action["result"] == {"rerun": 3}
    pending = (await api.call("GET", "/v1/jobs?status=pending"))[1]["jobs"]
    assert {job["id"] for job in pending} == ids
    assert (await api.call("GET", f"/v1/jobs/{other}"))[1]["status"] == "failed"


async def test_kinds_are_paused_and_resumed_and_the_figures_show_it(api: Api, connection: Connection) -> None:
    await Queue(connection).enqueue("agent-turn")
    assert (await api.call("POST", "/v1/kinds/agent-turn/pause"))[0] == 204
    assert await connection.fetch("select * from agent.claim_event()") == []

    _, stats = await api.call("GET", "/v1/stats")
    assert [(kind["kind"], kind["paused"], kind["pending"]) for kind in stats["kinds"]] == [
        ("agent-turn", True, 1)
    ]

    assert (await api.call("POST", "/v1/kinds/agent-turn/resume"))[0] == 204
    assert len(await connection.fetch("select * from agent.claim_event()")) == 1


async def test_schedules_are_set_listed_and_deleted(api: Api) -> None:
    body = {"kind": "provider-refresh", "schedule": "0 3 * * *", "time_zone": "Europe/Berlin"}
    assert (await api.call("PUT", "/v1/cron/nightly", json=body))[0] == 204

    _, listed = await api.call("GET", "/v1/cron")
    assert [(cron["name"], cron["schedule"], cron["catch_up"]) for cron in listed["schedules"]] == [
        ("nightly", "0 3 * * *", "one")
    ]
    chosen = {"catch_up": "10", "overlap": "skip", "jitter": 90}
    assert (await api.call("PUT", "/v1/cron/nightly", json=body | chosen))[0] == 204
    _, listed = await api.call("GET", "/v1/cron")
    assert {name: listed["schedules"][0][name] for name in chosen} == chosen
    for wrong in ({"catch_up": "1001"}, {"overlap": "stop"}, {"jitter": 86401}):
        assert (await api.call("PUT", "/v1/cron/nightly", json=body | wrong))[0] == 400
    assert (await api.call("PUT", "/v1/cron/nightly", json={**body, "schedule": "often"}))[0] == 400
    for priority in (-1, 4, "high", 1.5):
        status, answer = await api.call("PUT", "/v1/cron/nightly", json={**body, "priority": priority})
        assert (status, answer["error"].partition(": ")[0]) == (400, "priority")
    assert (await api.call("DELETE", "/v1/cron/nightly"))[0] == 204
    assert (await api.call("DELETE", "/v1/cron/nightly"))[0] == 404


async def test_an_orchestration_begins_with_its_plan(api: Api, connection: Connection) -> None:
    status, answer = await api.call("POST", "/v1/orchestrate", json={"goal": "a report", "dedupe_key": "r1"})
    again = await api.call("POST", "/v1/orchestrate", json={"goal": "a report", "dedupe_key": "r1"})

    assert status == 202
    assert again == (202, answer)
    row = await connection.fetchrow(
        "select kind, event ->> 'goal' from agent.event where id = $1", answer["id"]
    )
    assert tuple(row or ()) == ("orchestrator-plan", "a report")


async def test_a_waiting_continuation_has_no_time_and_says_what_it_waits_for(
    api: Api, connection: Connection
) -> None:
    identity = await Queue(connection).fan_out([Job("a"), Job("b")], Continuation("c"))

    _, job = await api.call("GET", f"/v1/jobs/{identity}")
    _, why = await api.call("GET", f"/v1/jobs/{identity}/why")

    assert (job["run_at"], job["waits_for"], job["status"]) == (None, 2, "scheduled")
    assert why["reason"] == "waits_for_children"


@pytest.mark.parametrize(
    "query",
    [
        "status=done",
        "limit=0",
        "limit=x",
        "cursor=%00",
        "since=yesterday",
        "statsu=failed",
        "key=%00",
        "kind=" + "x" * 300,
        "since=0001-01-01T00:00:00%2B14:00",
        "until=9999-12-31T23:59:59-14:00",
        "cursor=" + _cursor("5 0001-01-01T00:00:00+14:00"),
        "cursor=" + _cursor("5 0001-01-01T00:00:00"),
        "cursor=" + _cursor("9" * 30),
        "cursor=" + _cursor("5 infinity"),
    ],
)
async def test_a_query_that_cannot_be_read_is_refused_with_its_name(api: Api, query: str) -> None:
    status, answer = await api.call("GET", f"/v1/jobs?{query}")

    assert status == 400
    assert query.partition("=")[0] in answer["error"]


@pytest.mark.parametrize(
    "identity", ["0", "-1", "x", "9" * 30, "1.5", "0" * 19 + "1" + "9" * 30, "0" * 19 + "9" * 4400]
)
async def test_a_text_that_is_no_id_is_refused(api: Api, identity: str) -> None:
    for method, path in (("GET", ""), ("GET", "/why"), ("POST", "/rerun"), ("POST", "/cancel")):
        assert (await api.call(method, f"/v1/jobs/{identity}{path}"))[0] == 400


@pytest.mark.parametrize(
    "body",
    [
        '{"payload": {"text": "\\u0000"}}',
        '{"payload": {"\\u0000": 1}}',
        '{"payload": {"n": NaN}}',
        '{"payload": {"n": 1e999}}',
        '{"payload": {"n": -Infinity}}',
        '{"time_zone": "Europe"}',
        '{"time_zone": "\\u0000"}',
        '{"kind": "\\u0000"}',
    ],
)
async def test_a_schedule_that_cannot_be_stored_is_refused(api: Api, body: str) -> None:
    whole = json.dumps({"kind": "k", "schedule": "0 3 * * *"})[:-1] + "," + body[1:]
    status, answer = await api.call("PUT", "/v1/cron/odd", data=whole)
    assert (status, bool(answer["error"])) == (400, True)


async def test_a_body_that_cannot_be_read_is_refused_with_its_field(api: Api) -> None:
    for body in (b"", b"\xff", b"[" * 5000, b'"\\ud800"', b'{"kind": "k", "schedule": "often"}'):
        status, answer = await api.call("PUT", "/v1/cron/odd", data=body)
        assert (status, answer["error"].partition(": ")[0]) == (400, "body"), body
    wrong = {"action": "rerun", "filter": {"status": ["failed", "done"]}}
    status, answer = await api.call("POST", "/v1/jobs/bulk", json=wrong)
    assert (status, answer["error"].partition(": ")[0]) == (400, "filter.status.1")


async def test_without_a_token_the_api_says_how_to_switch_it_on(shared_database: str) -> None:
    env = {"DATABASE_URL": as_role(shared_database, "surelane_operator")}
    async with service("surelane_operator", env) as operator, aiohttp.ClientSession() as session:
        for path in ("/v1/jobs", "/v1/openapi.json", "/v1"):
            async with session.get(operator.private_url + path) as response:
                assert response.status == 404
                assert "SURELANE_API_TOKEN" in (await response.json())["error"]


async def test_an_ended_event_runs_again_as_a_new_one(api: Api, connection: Connection) -> None:
    first = await _fail(connection, "agent-turn", "no answer")
    status, answer = await api.call("POST", f"/v1/jobs/{first}/rerun", json={"payload": {"n": 2}})
    key = f"{first}:rerun:{answer['id']}"
    assert (status, answer) == (202, {"id": answer["id"], "key": key, "rerun_of": first, "kept": []})
    _, old = await api.call("GET", f"/v1/jobs/{first}")
    _, new = await api.call("GET", f"/v1/jobs/{answer['id']}")
    assert (old["rerun_as"], old["rerun_of"]) == ([answer["id"]], None)
    assert (new["rerun_as"], new["rerun_of"]) == ([], first)
    assert [step["detail"] for step in new["timeline"] if step["what"] == "runs again"] == [
        f"event {first}, with another payload"
    ]
    assert [step["detail"] for step in old["timeline"] if step["what"] == "run again as"] == [
        f"event {answer['id']} ({key})"
    ]
    refusals = [
        await api.call("POST", f"/v1/jobs/{first}/rerun", json={"from_step": "deploy"}),
        await api.call("POST", f"/v1/jobs/{first}/rerun", json={"payload": [1]}),
        await api.call("POST", f"/v1/jobs/{first}/rerun", data=io.BytesIO(b"x" * 5_000_000)),
        await api.call("POST", f"/v1/jobs/{first}/rerun", json={"step": "deploy"}),
        await api.call("POST", f"/v1/jobs/{answer['id']}/rerun", json={"payload": {}}),
        await api.call("POST", f"/v1/jobs/{first + 1000}/rerun", json={"payload": {}}),
    ]
    assert [(status, problem["error"].partition(":")[0]) for status, problem in refusals] == [
        (400, "from_step"),
        (400, "a value cannot be stored"),
        (413, "the body is too large"),
        (400, "step"),
        (409, "the event has not ended"),
        (404, "there is no such event"),
    ]


async def test_a_value_is_sent_to_a_live_event_alone(api: Api, connection: Connection) -> None:
    identity = await Queue(connection).enqueue("agent-turn", item_key="waits")
    status, answer = await api.call(
        "POST", f"/v1/jobs/{identity}/signal", json={"name": "paid", "value": {"n": 1}}
    )
    assert (status, answer) == (200, {"status": "sent"})
    _, job = await api.call("GET", f"/v1/jobs/{identity}")
    assert [step["detail"] for step in job["timeline"] if step["what"] == "signalled"] == ["paid"]
    status, _ = await api.call("POST", f"/v1/jobs/{identity}/signal", json={"value": 1})
    assert status == 400
    status, _ = await api.call("POST", f"/v1/jobs/{identity}/cancel?reason=enough")
    assert (status, await Queue(connection).cancel("waits")) == (200, None)
    _, job = await api.call("GET", f"/v1/jobs/{identity}")
    assert job["reason"].endswith(": enough")
    status, problem = await api.call("POST", f"/v1/jobs/{identity}/signal", json={"name": "paid"})
    assert (status, problem["error"]) == (409, "the event has ended as cancelled")


async def test_a_continuation_is_cancelled_with_its_children_when_asked(
    api: Api, connection: Connection
) -> None:
    queue = Queue(connection)
    inner = await queue.fan_out([Job("child"), Job("child")], Continuation("then"))
    status, answer = await api.call("POST", f"/v1/jobs/{inner}/cancel?children=true")
    assert (status, answer) == (200, {"status": "cancelled"})
    assert await connection.fetchval("select count(*) from agent.event_hist where outcome = 'cancelled'") == 3
