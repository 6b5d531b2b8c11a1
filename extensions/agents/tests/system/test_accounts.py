"""People connect accounts: a private button, a turn that waits for it, and a token that no other turn gets."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from yarl import URL

from extensions.agents.tests.system.account_server import AccountServer, account_server
from extensions.agents.tests.system.model_server import (
    ModelServer,
    Reply,
    calls,
    model_server,
    says,
    settings,
)
from surelane.calls import Connection
from surelane_agents.tools.servers import LARGEST, McpServer
from surelane_dev.simulator.workspace.model import Message
from surelane_service.service_settings import DEMO_CLIENT_ID, DEMO_CLIENT_SECRET
from tests.processes import Service, service, until
from tests.scenario import eventually
from tests.sql.migrations import becomes
from tests.system.test_installing import BAKERY, KEY, Browser, stand
from tests.system.test_installing import Stand as Slack
from tests.system.worker import ended, environment, result_of, suspended

SARAH, IDA = "U0BAKERY01", "U2BAKERY01"
SCOPES = "search:read.public,search:read.private"
SEARCHES = [calls(("slack_search", {"words": "flour"})), says("Found.")]


@dataclass
class World:
    """Slack, ingest, a model, an MCP server that takes people's tokens, and the settings of a worker."""

    slack: Slack
    model: ModelServer
    server: AccountServer
    database: str
    given: dict[str, str]

    def worker(self, **others: str) -> AbstractAsyncContextManager[Service]:
        return service("surelane_worker", environment(self.database, **(self.given | others)))

    @property
    def grants(self) -> dict[str, Any]:
        """The valid tokens of people, by token."""
        found = self.slack.simulator.installs.grants
        return {token: each for token, each in found.items() if each.sort == "user" and not each.refused}

    def demand_approval(self, tool: str) -> None:
        """Let the next turns ask before they call this tool of the server."""
        file = Path(self.given["SURELANE_MODEL_MCP"])
        server = json.loads(file.read_text())["mcpServers"]["slack"]
        file.write_text(json.dumps({"mcpServers": {"slack": server | {"approval": [tool]}}}))

    async def ask(self, user: str, plan: str) -> int:
        """Let somebody mention the bot. Return the event's id."""
        workspace = self.slack.simulator.installs.workspaces[BAKERY]
        (general,) = (room for room in workspace.channels.values() if room.name == "general")
        message = workspace.post(general, user, f"<@{workspace.bot.id}> plan:{plan}")
        stored = "select id from agent.{} where event::text like $1"
        look = " union all ".join(map(stored.format, ("event", "event_hist")))
        await becomes(self.slack.database, f"select exists ({look})", f"%{message.ts}%")
        return int(await self.slack.database.fetchval(look, f"%{message.ts}%"))

    def messages(self) -> list[Message]:
        channels = self.slack.simulator.installs.workspaces[BAKERY].channels.values()
        return [message for channel in channels for message in channel.messages.values() if message.by_app]

    def buttons(self) -> list[tuple[str | None, str, URL]]:
        """Return who sees each button, the text above it, and where it leads."""
        return [
            (message.visible_to, message.text, URL(element["url"]))
            for message in self.messages()
            for block in message.blocks
            for element in block.get("elements", [])
            if "url" in element
        ]

    async def connect(self, link: URL, name: str, browser: Browser | None = None) -> tuple[int, str]:
        """Follow a button's link, signed in to Slack as somebody. Return the page's status and text."""
        browser = browser or self.slack.browser()
        _, _, authorize = await browser.get(link)
        form = {"team": BAKERY, "decision": "approve", "user": name}
        async with self.slack.session.post(URL(authorize), data=form, allow_redirects=False) as response:
            back = URL(response.headers["Location"])
        status, text, _ = await browser.get(back)
        return status, text

    async def turn(self, user: str, plan: str, *answers: Reply) -> int:
        """Let somebody ask, and wait until the turn does."""
        if answers:
            self.model.plans[plan] = list(answers)
        turn = await self.ask(user, plan)
        await suspended(self.slack.database, turn)
        return turn

    async def answer(self, turn: int) -> Any:
        return (await result_of(self.slack.database, turn))["answer"]

    async def again(self, buttons: int) -> None:
        """Wait for so many buttons, and let Sarah use the last one."""
        await until(lambda: len(self.buttons()) >= buttons, within=60, what="the button")
        assert (await self.connect(self.buttons()[-1][2], "sarah"))[0] == 200

    async def connected(self) -> str:
        """Let Sarah connect her account. Return the token."""
        turn, before = await self.turn(SARAH, "flour"), set(self.grants)
        assert (await self.connect(self.buttons()[-1][2], "sarah"))[0] == 200
        await ended(self.slack.database, turn)
        (token,) = set(self.grants) - before
        return token

    async def people(self) -> list[str]:
        return [user for _, user in await self.slack.owners() if user and user in {SARAH, IDA}]


@pytest.fixture
async def world(database: str, connection: Connection, tmp_path: Path) -> AsyncIterator[World]:
    async with stand(database, connection, user_scopes=SCOPES) as slack, model_server() as model:
        grants = slack.simulator.installs.grants

        def person_of(token: str) -> str | None:
            grant = grants.get(token)
            return grant.user_id if grant is not None and grant.sort == "user" and not grant.refused else None

        async with account_server(person_of) as server:
            await slack.browser().install(BAKERY)
            await connection.execute("delete from agent.installation where user_id <> ''")
            file = tmp_path / "mcp.json"
            file.write_text(json.dumps({"mcpServers": {"slack": {"url": server.url, "account": "slack"}}}))
            given = {
                "SURELANE_HANDLERS": "extensions.agents.tests.system.account_handlers:handlers",
                "SLACK_API_URL": slack.api,
                "SLACK_CLIENT_ID": DEMO_CLIENT_ID,
                "SLACK_CLIENT_SECRET": DEMO_CLIENT_SECRET,
                "SURELANE_ENCRYPTION_KEYS": KEY,
                "SURELANE_MODEL_MCP": str(file),
                "SURELANE_CONNECT_URL": f"{slack.served.url}/slack/install",
                "SURELANE_BACKOFF_BASE": "200ms",
                "LOG_LEVEL": "debug",
            }
            model.plans["flour"] = [*SEARCHES]
            yield World(slack, model, server, database, settings(model, **given))


async def dump(connection: Connection) -> str:
    """Return all rows of the schema as text, byte strings also as text."""
    tables = await connection.fetch(
        "select c.oid::regclass::text as name from pg_class as c"
        " where relnamespace = 'agent'::regnamespace and relkind in ('r', 'p')"
    )
    found = [
        await connection.fetchval(f"select string_agg(t::text, E'\\n') from {table['name']} as t")
        for table in tables
    ]
    return "\n".join(filter(None, found))


async def test_a_turn_waits_for_the_person_and_gets_that_persons_token(
    world: World, connection: Connection
) -> None:
    async with world.worker() as first:
        turn = await world.turn(SARAH, "flour")
        first.child.kill()
        await first.child.wait()
    ((sees, text, link),) = world.buttons()
    assert (sees, "Only you see this" in text) == (SARAH, True)
    assert link.query == {"team": BAKERY, "user": SARAH}
    async with world.worker() as running:
        other = await world.turn(IDA, "flour")
        assert [sees for sees, _, _ in world.buttons()] == [SARAH, IDA], "no button is repeated"
        status, page = await world.connect(link, "ida")
        assert (status, "other_person" in page) == (403, True)
        assert (await world.people(), world.server.seen) == ([], [])
        browser = world.slack.browser()
        status, page = await world.connect(link, "sarah", browser)
        assert (status, "Your account is connected in Bakery" in page) == (200, True)
        assert await world.answer(turn) == "Found."
        assert world.server.searched == [(SARAH, "flour")]
        await suspended(connection, other)
        assert await world.people() == [SARAH]
        (told,) = [each for each in world.model.asked["flour"][-1]["messages"] if each["role"] == "tool"]
        assert "flour of U0BAKERY01" in told["content"]
        assert await world.answer(await world.ask(SARAH, "flour")) == "Found."
        assert len(world.buttons()) == 2, "the second turn has the token at once"
    tokens = set(world.server.seen)
    assert {world.grants[token].user_id for token in tokens} == {SARAH}
    stored, printed = await dump(connection), "\n".join([*first.output, *running.output])
    assert "U0BAKERY01" in stored
    for token in tokens:
        for place in (stored, printed, json.dumps(world.model.asked["flour"])):
            assert token not in place
            assert token.encode().hex() not in place


async def test_a_call_with_a_persons_account_is_approved_by_that_person_alone(
    world: World, connection: Connection
) -> None:
    async with world.worker():
        await world.connected()
        world.demand_approval("search")
        turn = await world.turn(SARAH, "flour")
        (asked,) = await connection.fetch(
            "select result ->> 'by' as by, result ->> 'text' as text from agent.step"
            " where event_id = $1 and name like 'approve%' and result ->> 'by' is not null",
            turn,
        )
        assert (json.loads(asked["by"]), "slack_search" in asked["text"]) == ([SARAH], True)


async def test_a_token_that_slack_or_the_server_refuses_leads_to_the_button_once_a_turn(world: World) -> None:
    async with world.worker():
        token = await world.connected()
        installs = world.slack.simulator.installs
        installs.revoke(installs.grants[token])
        await eventually(world.people, list[str](), within=30)  # ingest deletes it
        another = await world.connected()
        assert another != token
        assert [sees for sees, _, _ in world.buttons()] == [SARAH, SARAH]
        world.server.refused.add(another)
        world.server.searched.clear()
        turn = await world.turn(SARAH, "flour")
        assert "no longer accepts" in world.buttons()[-1][1]
        assert len(world.buttons()) == 3
        await world.again(3)
        assert await world.answer(turn) == "Found."
        assert len(world.server.searched) == 1
        world.server.person_of = lambda _: None
        turn = await world.turn(SARAH, "flour", says("Without."))
        await world.again(4)
        assert await world.answer(turn) == "Without."
        assert len(world.buttons()) == 4


async def test_a_token_that_is_refused_on_the_way_is_asked_for_and_no_call_is_repeated(world: World) -> None:
    several = [calls(("slack_search", {"words": words})) for words in ("flour", "salt")]
    async with world.worker() as running:
        await world.connected()
        world.server.searched.clear()
        world.server.refuse_after = "flour"
        turn = await world.turn(SARAH, "two", *several, says("Both."))
        running.child.kill()
        await running.child.wait()
    async with world.worker():
        await world.again(2)
        assert await world.answer(turn) == "Both."
        assert world.server.searched == [(SARAH, "flour"), (SARAH, "salt")]
        assert len(world.model.asked["two"]) == 3
        assert len(world.buttons()) == 2
        world.server.searched.clear()
        world.server.refuse_after = "flour"
        turn = await world.turn(SARAH, "flour fails")  # it is refused once later steps are stored
        await world.again(3)
        assert await world.answer(turn) == "Found."
    assert len(world.model.asked["flour"]) == 4
    assert len(world.server.searched) == 1


async def test_a_turn_waits_no_longer_than_its_patience_nor_does_a_job_get_the_token_of_whom_it_names(
    world: World, connection: Connection
) -> None:
    world.model.plans["early"] = [says("Without.")]
    async with world.worker(PATIENCE="50ms"):
        assert await world.answer(await world.ask(SARAH, "early")) == "Without."
        (request,) = world.model.asked["early"]
        assert "these tools are missing: slack" in request["messages"][0]["content"]
        assert "tools" not in request
        assert len(world.buttons()) == 1
    assert world.server.seen == []
    async with world.worker():
        await world.connected()
        world.server.seen.clear()
        world.model.plans["forged"] = [says("Without.")]
        payload = {"text": "plan:forged", "user": SARAH, "team_id": BAKERY, "channel": "C0BAKERY01"}
        turn = await connection.fetchval("select agent.enqueue('agent-turn', $1)", json.dumps(payload))
        assert await world.answer(turn) == "Without."
    assert world.server.seen == []
    again = calls(("slack_search", {"words": "x"}))
    world.model.plans["two"] = [again, again, says("Both.")]
    world.server.refuse_after = "x"
    async with world.worker(PATIENCE="50ms"):
        turn = await world.ask(SARAH, "two")
        assert "no longer connected" in (await result_of(connection, turn))["stopped"]
    assert len(world.model.asked["two"]) == 2


async def test_an_answer_of_a_server_is_bounded() -> None:
    """A server could otherwise use up the worker's memory. After the refusal, it is asked as before."""
    async with account_server(lambda _: "U0ADA00001") as server:
        toolset: Any = McpServer(url=server.url).toolset("docs")
        async with toolset:
            assert "small of" in str(await toolset.wrapped.direct_call_tool("search", {"words": "small"}))
            async with asyncio.timeout(60):
                with pytest.raises(Exception, match="more than 4,194,304 bytes"):
                    await toolset.wrapped.direct_call_tool("search", {"words": "x" * (LARGEST + 1)})
            assert "small of" in str(await toolset.wrapped.direct_call_tool("search", {"words": "small"}))
