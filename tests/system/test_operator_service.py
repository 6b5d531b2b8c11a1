"""The operator's service is a process of its own: it is ready, leads to the page, and stops. Others work without it."""

import asyncio

import pytest

from tests.databases import as_role
from tests.processes import service
from tests.sql.migrations import becomes, connected
from tests.system.ingest_client import settings
from tests.system.operators import page, person

TOKEN = "an-operators-token-0123456789"
ON = {"SURELANE_API_TOKEN": TOKEN, "SURELANE_CONSOLE_SIGN_IN": "token"}
BEARER = {"Authorization": f"Bearer {TOKEN}"}


async def test_the_private_port_leads_to_the_page_and_says_whether_the_schema_serves_it(
    empty_database: str, shared_database: str
) -> None:
    async with page(as_role(shared_database, "surelane_operator"), **ON) as url, person(url) as somebody:
        assert await somebody.get("/") == (302, "/console/")
        assert await somebody.get("/console/") == (303, "/console/sign-in?next=/console/")
        assert (await somebody.get("/v1/jobs", headers=BEARER))[0] == 200
        assert (await somebody.get("/readyz"))[0] == 200
    async with page(empty_database, **ON) as url, person(url) as somebody:
        status, text = await somebody.get("/readyz")
        assert (status, "the schema cannot be used" in text) == (503, True)
        assert (await somebody.get("/livez"))[0] == 200


@pytest.mark.parametrize(
    ("settings", "off"),
    [
        ({}, ("/console", "/v1", "/mcp")),
        ({"SURELANE_API_TOKEN": TOKEN}, ("/console", "/mcp")),
        ({"SURELANE_MCP": "read"}, ("/console", "/v1", "/mcp")),
    ],
    ids=str,
)
async def test_what_is_off_says_at_every_address_how_to_switch_it_on(
    shared_database: str, settings: dict[str, str], off: tuple[str, ...]
) -> None:
    names = {"/console": "SURELANE_CONSOLE_SIGN_IN", "/v1": "SURELANE_API_TOKEN", "/mcp": "SURELANE_MCP"}
    async with (
        page(as_role(shared_database, "surelane_operator"), **settings) as url,
        person(url) as somebody,
    ):
        assert await somebody.get("/") == (302, "/console/")
        for path in off:
            for address in (path, f"{path}/", f"{path}/events", f"{path}/openapi.json"):
                status, text = await somebody.get(address, headers=BEARER)
                assert (status, names[path] in text) == (404, True), address


async def test_slow_requests_of_people_leave_it_ready(shared_database: str) -> None:
    """All connections for people's requests wait for a lock, and the probe has one of its own."""
    locked = (
        "select count(*) >= 4 from pg_stat_activity where application_name = $1 and wait_event_type = 'Lock'"
    )
    async with (
        connected(shared_database) as owner,
        connected(shared_database) as watching,
        page(as_role(shared_database, "surelane_operator"), **ON) as url,
        person(url) as somebody,
    ):
        somebody.headers = BEARER
        async with owner.transaction():
            await owner.execute("lock table agent.kind")
            waiting = [asyncio.create_task(somebody.get("/v1/kinds")) for _ in range(6)]
            await becomes(watching, locked, "surelane-operator")
            assert (await somebody.get("/readyz"))[0] == 200
        assert {status for status, _ in await asyncio.gather(*waiting)} == {200}


async def test_the_process_serves_and_ends(shared_database: str) -> None:
    own = {"SURELANE_OPERATOR_DATABASE_URL": as_role(shared_database, "surelane_operator")}
    env = {"DATABASE_URL": "postgresql://nowhere/", **own, **ON}
    async with service("surelane_operator", env) as running, person(running.private_url) as somebody:
        assert "process_resident_memory_bytes" in (await somebody.get("/metrics"))[1]
        assert any("serving operators" in line for line in running.output)


async def test_ingest_has_no_route_of_operators(shared_database: str) -> None:
    env = {**settings(as_role(shared_database, "surelane_ingest")), **ON}
    async with service("surelane_ingest", env) as running, person(running.private_url) as somebody:
        for path in ("/", "/console/", "/v1/jobs", "/mcp"):
            assert (await somebody.get(path, headers=BEARER))[0] == 404, path
