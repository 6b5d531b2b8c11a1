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
from tests.system.operators import page
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


WRONG = {
    "concurrency": (-1, 1.5, 10_001, "0", "many"),
    "rate": ("60", "60/2d", "fast"),
    "per": ("team",),
    "speed": (1,),
}


async def test_wrong_limits_are_refused_by_the_command_and_the_api_with_the_field_s_name(
    shared_database: str, limited: Connection
) -> None:
    operator = as_role(shared_database, "surelane_operator")
    surelane = Command(operator)
    async with (
        page(operator, SURELANE_API_TOKEN=TOKEN) as url,
        aiohttp.ClientSession() as session,
    ):
        api = Api(session, url)
        for field, values in WRONG.items():
            for value in values:
                done = await surelane("limits", "set", "mail", f"--{field}", str(value))
                assert (done.code, field in done.err) == (2, True), done
                status, answer = await api.call("PUT", "/v1/limits/mail", json={field: value})
                assert (status, answer["error"].partition(":")[0].removeprefix("body.")) == (400, field)
        assert (await api.call("PUT", "/v1/limits/mail", json={}))[0] == 400
        assert (await surelane("limits", "set", "mail")).code == 2
        assert await limited.fetchval("select set_at from agent.kind_limit") is None
        for body, bound in (({"concurrency": 5}, 5), ({"rate": "none"}, 5), ({"concurrency": 0}, None)):
            assert (await api.call("PUT", "/v1/limits/mail", json=body))[0] == 204
            (limit,) = (await api.get("/v1/limits"))["limits"]
            assert (limit["concurrency"], limit["declared_concurrency"]) == (bound, 2), body


async def test_an_operator_lists_changes_and_resets_limits(shared_database: str, limited: Connection) -> None:
    surelane = Command(as_role(shared_database, "surelane_operator"))
    changed, table, listed = await surelane.each(
        "limits set mail --concurrency none --rate 60/1m", "limits list", "limits list --json"
    )
    assert (changed.code, changed.err, "60/1m" in table.out) == (0, "", True)
    (limit,) = listed.json
    expected: dict[str, object] = {"kind": "mail", "per": "user", "concurrency": None, "rate": "60/1m"}
    expected |= {"declared_concurrency": 2, "declared_rate": "90/90s", "set_by": this_user()}
    assert {name: limit[name] for name in expected} == expected
    await surelane("limits", "set", "mail", "--rate", "1/1d")
    for _ in range(2):
        await Queue(limited).enqueue("mail", item_key=None)
    identity = await Queue(limited).enqueue("mail")
    await Engine(limited).claim_events(["mail"], 10, worker="w")
    why = await surelane("events", "why", str(identity))
    assert why.out.startswith("limited: 1 events per ")
    reset, again = await surelane.each("limits reset mail", "limits reset mail")
    assert (reset.code, again.code) == (0, 3)
    assert await limited.fetchval("select set_at from agent.kind_limit") is None
