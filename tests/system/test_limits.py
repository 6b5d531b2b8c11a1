"""Operators see and change the limits of handlers."""

from collections.abc import AsyncIterator

import aiohttp
import asyncpg
import pytest

from surelane import Queue
from surelane.calls import Connection
from surelane_operator.audit import this_user
from surelane_service.engine import Engine
from tests.databases import as_role
from tests.processes import service
from tests.system.test_cli import Command
from tests.system.test_operator_api import TOKEN, Api


@pytest.fixture
async def limited(shared_database: str) -> AsyncIterator[Connection]:
    """Connect to a queue with a declared limit."""
    connected = await asyncpg.connect(shared_database)
    await connected.execute("truncate agent.event, agent.kind_limit, agent.limit_note, agent.limit_state")
    await Engine(connected).announce_worker("w", ["mail"], "1")
    await Engine(connected).declare_limits(
        "w", ["mail"], {"mail": {"per": "user", "concurrency": 2, "rate": 90, "period": 90}}
    )
    yield connected
    await connected.close()


async def test_an_operator_lists_changes_and_resets_limits(shared_database: str, limited: Connection) -> None:
    surelane = Command(as_role(shared_database, "surelane_operator"))
    wrong = ("concurrency 0", "concurrency many", "concurrency 10001", "rate 60", "rate 60/2d", "per team")
    refused = await surelane.each(*(f"limits set mail --{each}" for each in wrong))
    assert {done.code for done in refused} <= {1, 2}
    assert all(each.split()[0] in done.err for each, done in zip(wrong, refused, strict=True))
    assert await limited.fetchval("select set_at from agent.kind_limit") is None
    changed, table, listed = await surelane.each(
        "limits set mail --concurrency none --rate 60/1m", "limits list", "limits list --json"
    )
    assert (changed.code, changed.err) == (0, "")
    assert "60/1m" in table.out
    (limit,) = listed.json
    assert limit["set_by"] == this_user()
    assert {name: limit[name] for name in ("kind", "per", "concurrency", "rate")} == {
        "kind": "mail",
        "per": "user",
        "concurrency": None,
        "rate": "60/1m",
    }
    assert (limit["declared_concurrency"], limit["declared_rate"]) == (2, "90/90s")
    await surelane("limits", "set", "mail", "--rate", "1/1d")
    for _ in range(2):
        await Queue(limited).enqueue("mail", item_key=None)
    identity = await Queue(limited).enqueue("mail")
    await Engine(limited).claim_events(["mail"], 10, worker="w")
    why = await surelane("events", "why", str(identity))
    assert why.out.startswith("limited: 1 events per ")
    reset, again, empty = await surelane.each("limits reset mail", "limits reset mail", "limits set mail")
    assert (reset.code, again.code, empty.code) == (0, 3, 2)


async def test_the_api_lists_changes_and_resets_limits(shared_database: str, limited: Connection) -> None:
    env = {"DATABASE_URL": as_role(shared_database, "surelane_operator"), "SURELANE_API_TOKEN": TOKEN}
    async with service("surelane_operator", env) as operator, aiohttp.ClientSession() as session:
        api = Api(session, operator.private_url)
        body = {"concurrency": 0, "rate": "5/10s", "per": "workspace"}
        assert (await api.call("PUT", "/v1/limits/mail", json=body))[0] == 204
        _, listed = await api.call("GET", "/v1/limits")
        (limit,) = listed["limits"]
        assert [limit[name] for name in ("kind", "concurrency", "rate", "per", "declared_rate")] == [
            "mail",
            None,
            "5/10s",
            "workspace",
            "90/90s",
        ]
        assert (await api.call("PUT", "/v1/limits/mail", json={"rate": "none"}))[0] == 204
        for bad, field in (
            ({"concurrency": -1}, "concurrency"),
            ({"concurrency": 1.5}, "concurrency"),
            ({"rate": "fast"}, "rate"),
            ({"rate": "5/2d"}, "rate"),
            ({"per": "team"}, "per"),
            ({"speed": 1}, "speed"),
            ({}, "body"),
        ):
            status, answer = await api.call("PUT", "/v1/limits/mail", json=bad)
            assert (status, answer["error"].partition(":")[0].removeprefix("body.")) == (400, field)
        assert (await api.call("DELETE", "/v1/limits/mail"))[0] == 204
        assert (await api.call("DELETE", "/v1/limits/mail"))[0] == 404
    assert await limited.fetchval("select set_at from agent.kind_limit") is None
