"""Scripts use ``/v1``: they find events and say why each waits, change one or many, and see who did what."""

import asyncio
import base64
import io
import json
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import aiohttp
import pytest

from surelane import Queue
from surelane.calls import Connection
from surelane.jobs import Continuation, Job
from surelane_service.engine import Engine
from tests.databases import as_role
from tests.system.operators import emptied, fail, page

TOKEN = "an-operators-token-0123456789"
CLICK = {
    "type": "block_actions",
    "trigger_id": "1.2.3f",
    "channel": {"id": "C0OPS", "name": "ops"},
    "message": {"ts": "1700000000.000100", "text": "Deploy api?"},
    "actions": [{"action_id": "go", "text": {"type": "plain_text", "text": "Approve"}}],
}


class Api:
    """A client of the API."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self.url = url

    async def call(self, method: str, path: str, *, token: str = TOKEN, **options: Any) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with self._session.request(method, self.url + path, headers=headers, **options) as response:
            return response.status, await response.json() if response.content_length else None

    async def get(self, path: str) -> Any:
        status, answer = await self.call("GET", path)
        assert status == 200, answer
        return answer

    async def post(self, path: str, body: object = None) -> tuple[int, Any]:
        options: dict[str, Any] = {} if body is None else {"json": body}
        return await self.call("POST", path, **options)

    async def changed(self, body: object) -> dict[str, Any]:
        """Change many events; return the action when it is over."""
        status, action = await self.post("/v1/jobs/bulk", body)
        assert status == 202, action
        async with asyncio.timeout(60):
            while action["finished_at"] is None:
                await asyncio.sleep(0.05)
                action = await self.get(f"/v1/actions/{action['id']}")
        return dict(action)

    async def steps(self, identity: int, what: str) -> list[str]:
        story = await self.get(f"/v1/jobs/{identity}?payload=false")
        return [step["detail"] for step in story["timeline"] if step["what"] == what]


@pytest.fixture(scope="module")
async def served(shared_database: str) -> AsyncIterator[Api]:
    async with (
        page(as_role(shared_database, "surelane_operator"), SURELANE_API_TOKEN=TOKEN) as url,
        aiohttp.ClientSession() as session,
    ):
        yield Api(session, url)


connection = emptied


@pytest.fixture
def api(served: Api, connection: Connection) -> Api:  # noqa: ARG001 - an empty queue
    return served


async def _failed(connection: Connection, message: str) -> int:
    identity = await Queue(connection).enqueue("agent-turn", {"n": 1}, max_attempts=1)
    await fail(connection, identity, message)
    return identity


async def test_nothing_is_answered_without_the_token(api: Api) -> None:
    document = await api.get("/v1/openapi.json")
    routes = [(method, path) for path, methods in document["paths"].items() for method in methods]
    assert len(routes) > 30
    for method, path in [*routes, ("get", "/v1/openapi.json")]:
        status, _ = await api.call(method.upper(), re.sub(r"\{\w+\}", "1", path), token="")
        assert status == 401, (method, path)
    for token in ("wrong", "ein-schlüssel"):
        assert (await api.call("GET", "/v1/jobs", token=token))[0] == 401


async def test_failed_jobs_are_listed_newest_first_with_their_errors(
    api: Api, connection: Connection
) -> None:
    first, second = [await _failed(connection, message) for message in ("no answer", "no luck")]
    large = Job("large", {"text": "x" * 500_000}, enqueued_by="y" * 5000)
    await Queue(connection).enqueue_many([large] * 5)
    found = await api.get("/v1/jobs?status=failed&limit=20")
    assert ([job["id"] for job in found["jobs"]], found["next"]) == ([second, first], None)
    job = found["jobs"][0]
    expected = {"kind": "agent-turn", "status": "failed", "error": "no luck", "attempts": 1}
    assert {name: job[name] for name in expected} == expected
    assert not {"payload", "errors", "result"} & set(job), "a list leaves large fields out"
    whole = await api.get(f"/v1/jobs/{second}")
    assert (whole["payload"], whole["errors"][0]["type"]) == ({"n": 1}, "ValueError")
    found = await api.get("/v1/jobs?limit=1000")
    assert (len(found["jobs"]), len(json.dumps(found)) < 12_000) == (7, True)


async def test_events_are_searched_by_what_people_saw(api: Api, connection: Connection) -> None:
    clicked = await Queue(connection).insert_event(json.dumps(CLICK))
    deploy = await Queue(connection).enqueue("agent-turn", {"text": "Deploy web"})
    for query, found in (
        ("text=DEPLOY", [deploy, clicked]),
        ("text=deploy+approve", [clicked]),
        ("text=deploy&kind=agent-turn", [deploy]),
        ("text=deploy&limit=1", [deploy]),
        ("text=deploy&since=2999-01-01T00:00:00Z", []),
        ("text=https://team.slack.com/archives/C0OPS/p1700000000000100", [clicked]),
    ):
        answer = await api.get(f"/v1/jobs/search?{query}")
        assert [job["id"] for job in answer["jobs"]] == found, query
    for query in ("", "text=", "text=x&status=failed", "text=%00"):
        assert (await api.call("GET", f"/v1/jobs/search?{query}"))[0] == 400, query


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
        answer = await api.get(f"/v1/{query}")
        assert [job["id"] for job in answer["jobs"]] == found, query
    assert (await api.call("GET", "/v1/jobs?tag=customer"))[0] == 400
    assert (await api.get(f"/v1/jobs/{acme}"))["tags"] == {"customer": "Acme, Inc.", "order": "17"}
    bulk = {"action": "cancel", "filter": {"tag": ["customer:other"], "status": ["running"]}}
    _, preview = await api.post("/v1/jobs/bulk/preview", bulk)
    assert [job["id"] for job in preview["sample"]] == [other]


async def test_an_event_has_its_timeline_its_reason_and_a_way_back(api: Api, connection: Connection) -> None:
    identity = await _failed(connection, "no answer")
    at = f"/v1/jobs/{identity}"
    job = await api.get(at)
    assert [step["what"] for step in job["timeline"]][-3:] == ["enqueued", "claimed", "failed"]
    assert len(job["trace_id"]) == 32
    assert (await api.get(f"{at}/why"))["reason"] == "ended"
    again: dict[str, Any] = {"id": identity, "rerun_of": None, "key": None, "kept": []}
    assert await api.post(f"{at}/rerun") == (202, again)
    assert (await api.get(f"{at}/why"))["reason"] == "no_worker"
    assert (await api.post(f"{at}/rerun"))[0] == 409
    assert await api.post(f"{at}/cancel") == (200, {"status": "cancelled"})
    assert (await api.post(f"{at}/cancel"))[0] == 409
    job = await api.get(at)
    assert (job["status"], "run again" in [step["what"] for step in job["timeline"]]) == ("cancelled", True)


async def test_an_ended_event_runs_again_as_a_new_one(api: Api, connection: Connection) -> None:
    first = await _failed(connection, "no answer")
    at = f"/v1/jobs/{first}/rerun"
    status, answer = await api.post(at, {"payload": {"n": 2}})
    new, key = answer["id"], f"{first}:rerun:{answer['id']}"
    assert (status, answer) == (202, {"id": new, "key": key, "rerun_of": first, "kept": []})
    stories = [await api.get(f"/v1/jobs/{each}") for each in (first, new)]
    assert [(each["rerun_as"], each["rerun_of"]) for each in stories] == [([new], None), ([], first)]
    assert await api.steps(new, "runs again") == [f"event {first}, with another payload"]
    assert await api.steps(first, "run again as") == [f"event {new} ({key})"]
    refusals = [
        await api.post(at, {"from_step": "deploy"}),
        await api.post(at, {"payload": [1]}),
        await api.call("POST", at, data=io.BytesIO(b"x" * 5_000_000)),
        await api.post(at, {"step": "deploy"}),
        await api.post(f"/v1/jobs/{new}/rerun", {"payload": {}}),
        await api.post(f"/v1/jobs/{first + 1000}/rerun", {"payload": {}}),
    ]
    assert [(status, problem["error"].partition(":")[0]) for status, problem in refusals] == [
        (400, "from_step"),
        (400, "a value cannot be stored"),
        (413, "the body is too large"),
        (400, "step"),
        (409, "the event has not ended"),
        (404, "there is no such event"),
    ]


async def test_an_orchestration_begins_once_with_its_plan_and_gets_values_while_it_lives(
    api: Api, connection: Connection
) -> None:
    goal = {"goal": "a report", "dedupe_key": "r1"}
    status, answer = await api.post("/v1/orchestrate", goal)
    assert status == 202
    identity, at = answer["id"], f"/v1/jobs/{answer['id']}"
    assert await api.post(f"{at}/signal", {"name": "paid", "value": {"n": 1}}) == (200, {"status": "sent"})
    assert await api.steps(identity, "signalled") == ["paid"]
    assert await connection.fetchval("select sent_by from agent.signal") == "operator token"
    kept = (await api.get("/v1/actions"))["actions"]
    assert [(each["action"], each["target"]) for each in kept[:2]] == [
        ("signal", f"event {identity}"),
        ("orchestrate", None),
    ]
    assert kept[1]["result"] == {"id": identity}
    assert await api.post("/v1/orchestrate", goal) == (202, answer)
    row = await connection.fetchrow("select kind, event ->> 'goal' from agent.event where id = $1", identity)
    assert tuple(row or ()) == ("orchestrator-plan", "a report")
    assert (await api.post(f"{at}/signal", {"value": 1}))[0] == 400
    assert (await api.post(f"{at}/cancel?reason=enough"))[0] == 200
    assert (await api.get(at))["reason"].endswith(": enough")
    ended = (409, {"error": "the event has ended as cancelled"})
    assert await api.post(f"{at}/signal", {"name": "paid"}) == ended


async def test_a_continuation_waits_has_its_tree_and_is_cancelled_with_its_children(
    api: Api, connection: Connection
) -> None:
    joining = await Queue(connection).fan_out([Job("part"), Job("part")], Continuation("join"))
    job = await api.get(f"/v1/jobs/{joining}")
    assert (job["run_at"], job["waits_for"], job["status"]) == (None, 2, "scheduled")
    assert (await api.get(f"/v1/jobs/{joining}/why"))["reason"] == "waits_for_children"
    assert [each["id"] for each in (await api.get("/v1/workflows"))["workflows"]] == [joining]
    child = await connection.fetchval("select min(id) from agent.event where kind = 'part'")
    found = await api.get(f"/v1/workflows/{child}")
    assert ([each["id"] for each in found["path"]], found["tree"]["id"]) == ([joining], child)
    assert len((await api.get(f"/v1/workflows/{joining}"))["tree"]["below"]) == 2
    assert (await api.call("GET", "/v1/workflows/999999999"))[0] == 404
    for method, path, status in (("GET", "/v1/jbs", 404), ("PUT", "/v1/jobs", 405)):
        told = {"error": "there is no such operation: see /v1/openapi.json"}
        assert await api.call(method, path) == (status, told)
    assert await api.get("/v1/questions") == {"questions": [], "next": None}
    cancelled = await api.post(f"/v1/jobs/{joining}/cancel?children=true")
    assert cancelled == (200, {"status": "cancelled"})
    assert await connection.fetchval("select count(*) from agent.event_hist where outcome = 'cancelled'") == 3


async def test_kinds_are_paused_resumed_and_come_in_pages_with_their_workers(
    api: Api, connection: Connection
) -> None:
    await Engine(connection).announce_worker("w1", ["mail"], "1.0.0")
    identity = await Queue(connection).enqueue("mail")
    await Queue(connection).enqueue("note")
    assert (await api.post("/v1/kinds/mail/pause"))[0] == 204
    assert await connection.fetch("select * from agent.claim_events('{mail}', 1)") == []
    kinds = (await api.get("/v1/stats"))["kinds"]
    assert [(kind["kind"], kind["paused"], kind["pending"]) for kind in kinds] == [
        ("mail", True, 1),
        ("note", False, 1),
    ]
    assert (await api.post("/v1/kinds/mail/resume"))[0] == 204
    await connection.execute("select agent.claim_events('{mail}', 1, 3, '10 minutes', 'w1')")
    found = await api.get("/v1/kinds?limit=1")
    assert (found["next"], found["kinds"][0]["kind"], found["kinds"][0]["workers"]) == (
        "mail",
        "mail",
        ["w1"],
    )
    found = await api.get("/v1/kinds?limit=1&after=mail")
    assert [kind["kind"] for kind in found["kinds"]] == ["note"]
    assert (await api.call("GET", "/v1/kinds?kind=mail"))[0] == 400
    (worker,) = (await api.get("/v1/workers"))["workers"]
    assert (worker["running"], [each["id"] for each in worker["runs"]]) == (1, [identity])


async def test_schedules_are_set_run_paused_and_deleted_and_all_of_it_is_kept(
    api: Api, connection: Connection
) -> None:
    body = {"kind": "report", "schedule": "0 3 * * *", "time_zone": "Europe/Berlin", "payload": {"a": 1}}
    at = "/v1/cron/nightly"

    async def put(**more: object) -> int:
        return (await api.call("PUT", at, json=body | more))[0]

    async def listed(*names: str) -> list[object]:
        (schedule,) = (await api.get("/v1/cron"))["schedules"]
        return [schedule[name] for name in names]

    assert await put() == 200
    expected = ["nightly", "0 3 * * *", "one", None, {"a": 1}]
    assert await listed("name", "schedule", "catch_up", "last_run", "payload") == expected
    assert len((await api.get("/v1/cron"))["schedules"][0]["following"]) == 5
    assert await put(catch_up="10", overlap="skip", jitter=90) == 200
    assert await listed("catch_up", "overlap", "jitter") == ["10", "skip", 90]
    for wrong in ({"catch_up": "1001"}, {"overlap": "stop"}, {"jitter": 86401}, {"schedule": "often"}):
        assert await put(**wrong) == 400, wrong
    for priority in (-1, 4, "high", 1.5):
        status, answer = await api.call("PUT", at, json={**body, "priority": priority})
        assert (status, answer["error"].partition(": ")[0]) == (400, "priority")
    assert (await api.call("PATCH", at, json={"paused": True}))[0] == 204
    assert await listed("paused") == [True]
    status, started = await api.post(f"{at}/run")
    assert status == 202
    assert await connection.fetchval("select kind from agent.event where id = $1", started["id"]) == "report"
    assert (await api.call("PATCH", at, json={"paused": False}))[0] == 204
    kept = await api.get("/v1/actions?target=schedule%20nightly&limit=2")
    assert [each["action"] for each in kept["actions"]] == ["resume schedule", "run schedule"]
    rest = await api.get(f"/v1/actions?target=schedule%20nightly&limit=9&cursor={kept['next']}")
    assert [each["action"] for each in rest["actions"]] == ["pause schedule", "set schedule", "set schedule"]
    assert rest["next"] is None
    assert (await api.call("DELETE", at))[0] == 204
    assert (await api.call("DELETE", at))[0] == 404
    assert (await api.call("PATCH", at, json={"paused": True}))[0] == 404
    assert (await api.post(f"{at}/run"))[0] == 404


def cursor(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


UNREADABLE = [
    *["status=done", "limit=0", "limit=x", "cursor=%00", "since=yesterday", "statsu=failed", "key=%00"],
    *("kind=" + "x" * 300, "since=0001-01-01T00:00:00%2B14:00", "until=9999-12-31T23:59:59-14:00"),
    *(f"cursor={cursor('5 0001-01-01T00:00:00' + zone)}" for zone in ("+14:00", "")),
    *(f"cursor={cursor(text)}" for text in ("9" * 30, "5 infinity")),
]
UNSTORABLE = """
{"payload": {"text": "\\u0000"}}
{"payload": {"\\u0000": 1}}
{"payload": {"n": NaN}}
{"payload": {"n": 1e999}}
{"payload": {"n": -Infinity}}
{"time_zone": "Europe"}
{"time_zone": "\\u0000"}
{"kind": "\\u0000"}
"""


async def test_what_cannot_be_read_is_refused_with_its_name(api: Api) -> None:
    for query in UNREADABLE:
        status, answer = await api.call("GET", f"/v1/jobs?{query}")
        assert (status, query.partition("=")[0] in answer["error"]) == (400, True), (query, answer)
    for identity in ("0", "-1", "x", "9" * 30, "1.5", "0" * 19 + "1" + "9" * 30, "0" * 19 + "9" * 4400):
        for method, path in (("GET", ""), ("GET", "/why"), ("POST", "/rerun"), ("POST", "/cancel")):
            assert (await api.call(method, f"/v1/jobs/{identity}{path}"))[0] == 400, identity
    for body in UNSTORABLE.split("\n")[1:-1]:
        whole = json.dumps({"kind": "k", "schedule": "0 3 * * *"})[:-1] + "," + body[1:]
        status, answer = await api.call("PUT", "/v1/cron/odd", data=whole)
        assert (status, bool(answer["error"])) == (400, True), body
    for sent in (b"", b"\xff", b"[" * 5000, b'"\\ud800"', b'{"kind": "k", "schedule": "often"}'):
        status, answer = await api.call("PUT", "/v1/cron/odd", data=sent)
        assert (status, answer["error"].partition(": ")[0]) == (400, "body"), sent
    wrong = {"action": "rerun", "filter": {"status": ["failed", "done"]}}
    status, answer = await api.post("/v1/jobs/bulk", wrong)
    assert (status, answer["error"].partition(": ")[0]) == (400, "filter.status.1")


async def test_all_that_match_are_previewed_and_changed_with_progress(
    api: Api, connection: Connection
) -> None:
    await connection.execute(
        "select agent.enqueue('bulk', jsonb_build_object('team_id', 'T' || n % 100))"
        " from generate_series(1, 1200) as n"
    )
    other = await Queue(connection).enqueue("other")
    every: dict[str, Any] = {"action": "cancel", "filter": {"kind": ["bulk"]}}
    one = {"action": "cancel", "filter": {"kind": ["bulk"], "workspace": "T9"}}  # no index has workspaces
    for wanted, matching, looked in ((every, 1200, None), (one, 12, 1200)):
        _, preview = await api.post("/v1/jobs/bulk/preview", wanted)
        assert (preview["matching"], preview["more"], len(preview["sample"])) == (matching, False, 10)
        assert preview["looked"] == looked
        assert {job["kind"] for job in preview["sample"]} == {"bulk"}
    action = await api.changed({**one, "limit": 5})
    assert (action["result"]["cancelled"], action["detail"]["filter"]["workspace"]) == (5, "T9")
    action = await api.changed({**one, "cursor": action["result"]["next"]})
    assert (action["result"]["cancelled"], "next" in action["result"]) == (7, False)
    for more, matching in (({"error": "no such thing"}, 0), ({"text": " "}, 12)):
        nothing = {"action": "rerun", "filter": {"status": ["cancelled"], **more}}
        _, preview = await api.post("/v1/jobs/bulk/preview", nothing)
        assert preview["matching"] == matching
        assert preview["looked"] in (12, None)
    action = await api.changed({**every, "reason": "a loop"})
    assert action["result"] == {"cancelled": 1188}
    assert (action["who"], action["via"], action["action"]) == ("operator token", "api", "cancel")
    which = {"statuses": ["pending", "scheduled", "running"], "kinds": ["bulk"]}
    assert action["detail"] == {"filter": which, "limit": 100_000, "reason": "a loop"}
    (job,) = (await api.get("/v1/jobs?status=cancelled&limit=1"))["jobs"]
    assert job["reason"] == "cancelled by operator token: a loop"
    action = await api.changed({"action": "rerun", "filter": {"status": ["cancelled"]}, "limit": 700})
    assert action["result"] == {"rerun": 700}
    assert [job["id"] for job in (await api.get("/v1/jobs?status=pending&kind=other"))["jobs"]] == [other]


async def test_selected_events_are_changed_and_the_others_are_told(api: Api, connection: Connection) -> None:
    ids = [await Queue(connection).enqueue("few") for _ in range(3)]
    await connection.execute("select agent.cancel_job($1)", ids[0])
    chosen = {"action": "expire", "ids": ids}
    _, preview = await api.post("/v1/jobs/bulk/preview", chosen)
    assert (preview["matching"], preview["unchanged"], preview["more"]) == (2, 1, False)
    assert [job["id"] for job in preview["sample"]] == [ids[2], ids[1]]
    action = await api.changed(chosen)
    assert (action["result"], action["detail"]) == ({"expired": 2}, {"ids": ids, "count": 3})


UNCLEAR: list[dict[str, Any]] = [
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
]


async def test_an_unclear_change_is_refused(api: Api) -> None:
    for body in UNCLEAR:
        for path in ("/v1/jobs/bulk", "/v1/jobs/bulk/preview"):
            assert (await api.post(path, body))[0] == 400, body


async def test_texts_of_people_are_shown_only_with_a_look_that_is_kept(
    api: Api, connection: Connection
) -> None:
    done, broken = [
        await Queue(connection).enqueue(kind, {"text": "hello"}, max_attempts=1) for kind in ("good", "bad")
    ]
    await connection.execute(
        "select agent.settle(array_agg(id), array_agg(claim), array['complete'], array['\"hello, too\"'::jsonb])"
        " from agent.claim_events(array['good'])"
    )
    error = {"type": "ValueError", "message": "hello", "traceback": "hello", "at": "2026-01-01T00:00:00Z"}
    engine = Engine(connection)
    (claimed,) = await engine.claim_events(["bad"], 1, worker="w")
    tries = json.dumps([error | {"attempt": 1}])
    await engine.store_step(broken, 1, "look", 1, "a-hash", "1", tries, timedelta(0))
    failure = {
        "error": error,
        "retry_in": 1,
        "final": True,
        "reason": "attempts_exhausted",
        "max_attempts": 1,
    }
    await engine.settle([(broken, claimed.claim, "fail", json.dumps(failure))])

    async def kept() -> list[tuple[str, str | None]]:
        found = (await api.get("/v1/actions"))["actions"]
        return [(each["action"], each["target"]) for each in found]

    for path in (
        *(f"/v1/jobs/{identity}?payload=false" for identity in (done, broken)),
        *("/v1/jobs?status=failed&errors=false", "/v1/jobs?status=scheduled", "/v1/jobs/search?text=bad"),
        *(f"/v1/find?text={broken}", "/v1/overview", "/v1/workflows", f"/v1/workflows/{broken}"),
    ):
        assert "hello" not in json.dumps(await api.get(path)), path
    assert await kept() == []
    story = await api.get(f"/v1/jobs/{done}?payload=false")
    assert (story["payload"], story["result"]) == (None, None)
    looks = []
    for path, shown, look in (
        (f"/v1/jobs/{broken}", 5, ("look at payload", f"event {broken}")),
        (f"/v1/jobs/{broken}/payload", 5, ("look at payload", f"event {broken}")),
        (f"/v1/jobs/{done}", 2, ("look at payload", f"event {done}")),
        ("/v1/jobs?status=failed", 1, ("look at errors", None)),
    ):
        assert json.dumps(await api.get(path)).count("hello") >= shown, path
        looks.append(look)
        assert await kept() == looks[::-1], path
    assert await api.get(f"/v1/jobs/{done}/payload") == {"payload": {"text": "hello"}, "errors": []}
    story = await api.get(f"/v1/jobs/{done}")
    assert (story["payload"], story["result"]) == ({"text": "hello"}, "hello, too")
    assert (await api.call("GET", "/v1/jobs/999999/payload"))[0] == 404
