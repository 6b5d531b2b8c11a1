"""``/v1`` previews and makes changes to many events, shows payloads, runs schedules, and lists what was done."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from surelane import Queue
from surelane.calls import Connection
from surelane_service.engine import Engine
from tests.databases import as_role
from tests.system.operators import Person, page, person

TOKEN = "a-token-of-the-operators"


@pytest.fixture(scope="module")
async def script(shared_database: str) -> AsyncIterator[Person]:
    database = as_role(shared_database, "surelane_operator")
    async with page(database, SURELANE_API_TOKEN=TOKEN) as url, person(url) as found:
        found.headers = {"Authorization": f"Bearer {TOKEN}"}
        yield found


@pytest.fixture
async def connection(shared_database: str) -> AsyncIterator[Connection]:
    connected = await asyncpg.connect(shared_database)
    await connected.execute(
        "truncate agent.event, agent.event_hist, agent.kind, agent.cron, agent.operator_action"
    )
    yield connected
    await connected.close()


async def call(script: Person, method: str, path: str, body: object = None) -> tuple[int, Any]:
    status, text = await script.send(method, path, **({} if body is None else {"json": body}))
    return status, json.loads(text) if text else None


async def until_over(script: Person, action: dict[str, Any]) -> dict[str, Any]:
    while action["finished_at"] is None:
        await asyncio.sleep(0.05)
        _, action = await call(script, "GET", f"/v1/actions/{action['id']}")
    return action


async def test_all_that_match_are_previewed_and_changed_with_progress(
    script: Person, connection: Connection
) -> None:
    await connection.execute("select agent.enqueue('bulk') from generate_series(1, 1204)")
    await Queue(connection).enqueue("other")
    wanted = {"action": "cancel", "filter": {"kind": ["bulk"]}}
    status, preview = await call(script, "POST", "/v1/jobs/bulk/preview", wanted)
    assert status == 200
    assert (preview["matching"], preview["more"], len(preview["sample"])) == (1204, False, 10)
    assert {job["kind"] for job in preview["sample"]} == {"bulk"}
    status, action = await call(script, "POST", "/v1/jobs/bulk", {**wanted, "reason": "a loop"})
    assert status == 202
    action = await until_over(script, action)
    assert action["result"] == {"cancelled": 1204}
    assert (action["who"], action["via"], action["action"]) == ("operator token", "api", "cancel")
    assert action["detail"] == {
        "filter": {"statuses": ["pending", "scheduled", "running"], "kinds": ["bulk"]},
        "limit": 100_000,
        "reason": "a loop",
    }
    _, jobs = await call(script, "GET", "/v1/jobs?status=cancelled&limit=1")
    assert jobs["jobs"][0]["reason"] == "cancelled by operator token: a loop"
    retry = {"action": "rerun", "filter": {"status": ["cancelled"]}, "limit": 700}
    action = await until_over(script, (await call(script, "POST", "/v1/jobs/bulk", retry))[1])
    assert action["result"] == {"rerun": 700}


async def test_all_that_match_what_no_index_has_are_previewed_and_changed(
    script: Person, connection: Connection
) -> None:
    await connection.execute(
        "select agent.enqueue('bulk', jsonb_build_object('team_id', 'T' || n % 100)) from generate_series(1, 1200) as n"
    )
    wanted = {"action": "cancel", "filter": {"kind": ["bulk"], "workspace": "T9"}}
    _, preview = await call(script, "POST", "/v1/jobs/bulk/preview", wanted)
    assert (preview["matching"], preview["more"], preview["looked"]) == (12, False, 1200)
    assert len(preview["sample"]) == 10
    status, action = await call(script, "POST", "/v1/jobs/bulk", {**wanted, "limit": 5})
    assert status == 202
    action = await until_over(script, action)
    assert (action["result"]["cancelled"], action["detail"]["filter"]["workspace"]) == (5, "T9")
    again = {**wanted, "cursor": action["result"]["next"]}
    action = await until_over(script, (await call(script, "POST", "/v1/jobs/bulk", again))[1])
    assert action["result"]["cancelled"] == 7
    assert "next" not in action["result"]
    nothing = {"action": "rerun", "filter": {"status": ["cancelled"], "error": "no such thing"}}
    _, preview = await call(script, "POST", "/v1/jobs/bulk/preview", nothing)
    assert (preview["matching"], preview["looked"]) == (0, 12)
    nothing["filter"] = {"status": ["cancelled"], "text": " "}
    assert (await call(script, "POST", "/v1/jobs/bulk/preview", nothing))[1]["matching"] == 12


async def test_selected_events_are_changed_and_the_others_are_told(
    script: Person, connection: Connection
) -> None:
    ids = [await Queue(connection).enqueue("few") for _ in range(3)]
    await connection.execute("select agent.cancel_job($1)", ids[0])
    chosen = {"action": "expire", "ids": ids}
    _, preview = await call(script, "POST", "/v1/jobs/bulk/preview", chosen)
    assert (preview["matching"], preview["unchanged"], preview["more"]) == (2, 1, False)
    assert [job["id"] for job in preview["sample"]] == [ids[2], ids[1]]
    action = await until_over(script, (await call(script, "POST", "/v1/jobs/bulk", chosen))[1])
    assert action["result"] == {"expired": 2}
    assert action["detail"] == {"ids": ids, "count": 3}


@pytest.mark.parametrize(
    "body",
    [
        {"action": "rerun"},
        {"action": "rerun", "filter": {}},
        {"action": "rerun", "filter": {"status": ["pending"]}},
        {"action": "cancel", "filter": {"status": ["failed"]}},
        {"action": "expire", "filter": {"status": ["running"]}},
        {"action": "cancel", "ids": []},
        {"action": "cancel", "ids": [1], "filter": {}},
        {"action": "delete", "ids": [1]},
        {"action": "cancel", "ids": list(range(1, 1003))},
        {"action": "cancel", "filter": {"kinds": ["misspelt"]}},
    ],
    ids=str,
)
async def test_an_unclear_change_is_refused(script: Person, body: dict[str, Any]) -> None:
    for path in ("/v1/jobs/bulk", "/v1/jobs/bulk/preview"):
        assert (await call(script, "POST", path, body))[0] == 400


async def test_each_look_at_a_payload_or_a_result_is_kept(script: Person, connection: Connection) -> None:
    identity = await Queue(connection).enqueue("secret", {"text": "hello"})
    await connection.execute(
        "select agent.settle(array_agg(id), array_agg(claim), array['complete'], array['\"hello, too\"'::jsonb])"
        " from agent.claim_events(array['secret'])"
    )
    status, shown = await call(script, "GET", f"/v1/jobs/{identity}/payload")
    assert (status, shown) == (200, {"payload": {"text": "hello"}, "errors": []})
    _, story = await call(script, "GET", f"/v1/jobs/{identity}")
    assert (story["payload"], story["result"]) == ({"text": "hello"}, "hello, too")
    _, story = await call(script, "GET", f"/v1/jobs/{identity}?payload=false")
    assert (story["payload"], story["result"]) == (None, None)
    assert "hello" not in json.dumps(story)
    await call(script, "GET", "/v1/jobs?kind=secret")
    _, kept = await call(script, "GET", f"/v1/actions?target=event%20{identity}")
    assert [each["action"] for each in kept["actions"]] == ["look at payload"] * 2
    assert (await call(script, "GET", "/v1/jobs/999999/payload"))[0] == 404


async def test_texts_of_errors_are_shown_only_with_a_look_that_is_kept(
    script: Person, connection: Connection
) -> None:
    identity = await Queue(connection).enqueue("secret", max_attempts=1)
    error = {"type": "ValueError", "message": "hello", "traceback": "hello", "at": "2026-01-01T00:00:00Z"}
    (claimed,) = await Engine(connection).claim_events(["secret"], 1, worker="w")
    await Engine(connection).store_step(
        identity, 1, "look", 1, "a-hash", "1", json.dumps([error | {"attempt": 1}]), timedelta(0)
    )
    failure = {
        "error": error,
        "retry_in": 1,
        "final": True,
        "reason": "attempts_exhausted",
        "max_attempts": 1,
    }
    await Engine(connection).settle([(identity, claimed.claim, "fail", json.dumps(failure))])

    async def kept() -> list[str]:
        _, found = await call(script, "GET", "/v1/actions")
        return [each["action"] for each in found["actions"]]

    for path in (
        f"/v1/jobs/{identity}?payload=false",
        "/v1/jobs?status=failed&errors=false",
        "/v1/jobs/search?text=secret",
        "/v1/find?text=" + str(identity),
        "/v1/overview",
        "/v1/workflows",
        f"/v1/workflows/{identity}",
    ):
        status, told = await call(script, "GET", path)
        assert (status, "hello" in json.dumps(told)) == (200, False), path
    assert await kept() == []
    for path, action, texts in (
        (f"/v1/jobs/{identity}", "look at payload", 4),
        (f"/v1/jobs/{identity}/payload", "look at payload", 4),
        ("/v1/jobs?status=failed", "look at errors", 1),
    ):
        _, told = await call(script, "GET", path)
        assert json.dumps(told).count("hello") >= texts, path
        assert (await kept())[0] == action, path
    assert len(await kept()) == 3
    await call(script, "GET", "/v1/jobs?status=scheduled")
    assert len(await kept()) == 3, "a list without errors is no look"


async def test_a_schedule_is_paused_resumed_and_run_now(script: Person, connection: Connection) -> None:
    await call(script, "PUT", "/v1/cron/daily", {"kind": "report", "schedule": "0 9 * * *"})
    assert (await call(script, "PATCH", "/v1/cron/daily", {"paused": True}))[0] == 204
    assert (await call(script, "GET", "/v1/cron"))[1]["schedules"][0]["paused"]
    status, started = await call(script, "POST", "/v1/cron/daily/run")
    assert status == 202
    assert await connection.fetchval("select kind from agent.event where id = $1", started["id"]) == "report"
    assert (await call(script, "PATCH", "/v1/cron/daily", {"paused": False}))[0] == 204
    _, kept = await call(script, "GET", "/v1/actions?target=schedule%20daily&limit=2")
    assert [each["action"] for each in kept["actions"]] == ["resume schedule", "run schedule"]
    _, rest = await call(script, "GET", f"/v1/actions?target=schedule%20daily&limit=9&cursor={kept['next']}")
    assert [each["action"] for each in rest["actions"]] == ["pause schedule", "set schedule"]
    assert rest["next"] is None
    for method, path, body in (
        ("PATCH", "/v1/cron/none", {"paused": True}),
        ("POST", "/v1/cron/none/run", None),
    ):
        assert (await call(script, method, path, body))[0] == 404


async def test_an_orchestration_and_a_signal_are_kept(script: Person, connection: Connection) -> None:
    _, started = await call(script, "POST", "/v1/orchestrate", {"goal": "a report"})
    await call(script, "POST", f"/v1/jobs/{started['id']}/signal", {"name": "paid", "value": 1})
    _, kept = await call(script, "GET", "/v1/actions")
    assert [(each["action"], each["target"]) for each in kept["actions"]] == [
        ("signal", f"event {started['id']}"),
        ("orchestrate", None),
    ]
    assert kept["actions"][1]["result"] == {"id": started["id"]}
    assert await connection.fetchval("select sent_by from agent.signal") == "operator token"


async def test_the_document_names_the_role_of_each_operation(script: Person) -> None:
    _, document = await call(script, "GET", "/v1/openapi.json")
    roles = {
        f"{method.upper()} {path}": operation["x-surelane-role"]
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    }
    viewers = {name for name, role in roles.items() if role == "viewer"}
    assert viewers == {name for name in roles if name.startswith("GET ")} | {"POST /v1/jobs/bulk/preview"}
