"""A person's account at an MCP server, by OAuth: each login, registration and refresh once, and for nobody else."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from yarl import URL

from extensions.agents.tests.system.account_server import account_server
from extensions.agents.tests.system.model_server import calls, model_server, says, settings
from extensions.agents.tests.system.oauth_server import OauthServer, oauth_server
from extensions.agents.tests.system.test_accounts import IDA, SARAH, World, dump
from surelane.calls import Connection
from surelane.errors import SettingsError
from surelane_agents.tools.logins import Logins
from surelane_agents.tools.servers import servers
from surelane_encryption.keys import Keyring
from surelane_ingest import installing
from surelane_ingest.installing import Person, States
from surelane_service.installations import Installations, Owner
from surelane_service.service_settings import DEMO_CLIENT_ID, DEMO_CLIENT_SECRET
from tests.processes import until
from tests.sql.migrations import becomes
from tests.sql.test_erase import erase
from tests.system.test_installing import BAKERY, KEY, Browser, stand
from tests.system.worker import suspended

ACCOUNTS = "select count(*) from agent.installation where owner_id like 'T% %'"


@dataclass
class Office(World):
    """The world of the accounts of Slack, with an authorization server for the MCP server."""

    oauth: OauthServer

    def serve(self, other: str | None = None, **more: Any) -> None:
        """Let the next turns have this server, and another one at an address."""
        found = {"docs": {"url": self.server.url, "account": "oauth", **more}}
        found |= {"other": {"url": other, "account": "oauth"}} if other else {}
        Path(self.given["SURELANE_MODEL_MCP"]).write_text(json.dumps({"mcpServers": found}))

    async def login(self, link: URL, name: str, browser: Browser) -> tuple[int, str, str]:
        """Follow a button's link, signed in to Slack as somebody, up to the authorization server."""
        _, _, page = await browser.get(link)
        form = {"team": BAKERY, "decision": "approve", "user": name}
        async with self.slack.session.post(URL(page), data=form, allow_redirects=False) as response:
            back = URL(response.headers["Location"])
        return await browser.get(back)

    async def approved(self, link: URL, browser: Browser) -> URL:
        """Let Sarah approve. Return where the authorization server sends her."""
        status, text, page = await self.login(link, "sarah", browser)
        assert status == 302, text
        async with self.slack.session.get(page, allow_redirects=False) as response:
            assert response.status == 302, await response.text()
            return URL(response.headers["Location"])

    async def connect(self, link: URL, name: str, browser: Browser | None = None) -> tuple[int, str]:
        assert name == "sarah"
        browser = browser or self.slack.browser()
        status, text, _ = await browser.get(await self.approved(link, browser))
        return status, text

    async def connected(self) -> str:
        """Let Sarah log in. Return her token."""
        turn = await self.turn(SARAH, "flour")
        assert (await self.connect(self.buttons()[-1][2], "sarah"))[0] == 200
        assert await self.answer(turn) == "Found."
        (token,) = self.oauth.granted[-1].tokens
        return token

    async def time_passes(self) -> None:
        """Let the claims of dead workers and the tokens end."""
        await self.slack.database.execute(
            "update agent.installation set refreshing_until = null"
            ", expires_at = case when expires_at > agent.clock() then agent.clock() else expires_at end"
            " where owner_id like '% %'"
        )


@pytest.fixture
async def office(database: str, connection: Connection, tmp_path: Path) -> AsyncIterator[Office]:
    async with AsyncExitStack() as stack:
        slack = await stack.enter_async_context(stand(database, connection))
        model = await stack.enter_async_context(model_server())
        oauth = await stack.enter_async_context(oauth_server())
        server = await stack.enter_async_context(account_server(lambda _: None))
        server.issuer = oauth.url
        server.person_of = lambda token: oauth.person_of(token, server.url)
        await slack.browser().install(BAKERY)
        await connection.execute("delete from agent.installation where user_id <> ''")
        given = {
            "SURELANE_HANDLERS": "extensions.agents.tests.system.account_handlers:handlers",
            "SLACK_API_URL": slack.api,
            "SLACK_CLIENT_ID": DEMO_CLIENT_ID,
            "SLACK_CLIENT_SECRET": DEMO_CLIENT_SECRET,
            "SURELANE_ENCRYPTION_KEYS": KEY,
            "SURELANE_MODEL_MCP": str(tmp_path / "mcp.json"),
            "SURELANE_CONNECT_URL": f"{slack.served.url}/slack/install",
            "SURELANE_BACKOFF_BASE": "200ms",
            "LOG_LEVEL": "debug",
        }
        model.plans["flour"] = [calls(("docs_search", {"words": "flour"})), says("Found.")]
        model.plans["without"] = [says("Without.")]
        made = Office(slack, model, server, database, settings(model, **given), oauth)
        made.serve()
        yield made


async def test_a_login_is_begun_by_one_worker_and_ended_by_another_for_this_person_alone(
    office: Office, connection: Connection
) -> None:
    async with office.worker() as first:
        turn = await office.turn(SARAH, "flour")
        first.child.kill()
        await first.child.wait()
    ((sees, text, link),) = office.buttons()
    assert (sees, "your docs account" in text) == (SARAH, True)
    assert (link.query["team"], link.query["user"], len(link.query["server"])) == (BAKERY, SARAH, 32)
    status, page, _ = await office.login(link, "ida", office.slack.browser())
    assert (status, "other_person" in page) == (403, True)
    browser = office.slack.browser()
    back = await office.approved(link, browser)
    status, page, _ = await browser.get(back)
    assert (status, "Your account is connected in docs" in page) == (200, True)
    assert office.oauth.counts == {"register": 1}, "a worker exchanges the code"
    async with office.worker() as second:
        assert await office.answer(turn) == "Found."
        other = await office.turn(IDA, "flour")
        assert [sees for sees, _, _ in office.buttons()] == [SARAH, IDA]
        assert await office.answer(await office.ask(SARAH, "flour")) == "Found."
        await suspended(connection, other)
    assert office.oauth.counts == {"register": 1, "authorization_code": 1}
    assert office.server.searched == [("sarah@example.com", "flour")] * 2
    (granted,) = office.oauth.granted
    stored, printed = await dump(connection), "\n".join([*first.output, *second.output])
    asked = json.dumps(office.model.asked["flour"])
    for secret in (
        *granted.tokens,
        granted.refresh_token,
        back.query["code"],
        *office.oauth.clients.values(),
    ):
        for place in (stored, printed, asked):
            assert secret not in place
            assert secret.encode().hex() not in place
    assert await connection.fetchval(ACCOUNTS) == 2
    assert (await erase(connection, user=SARAH))["installation"] == 1
    assert await connection.fetchval(ACCOUNTS) == 1
    assert (await erase(connection, team=BAKERY))["installation"] == 2
    assert await connection.fetchval(ACCOUNTS) == 0


async def test_a_state_that_is_forged_used_expired_or_of_another_step_or_browser_is_refused(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with office.worker():
        turn = await office.turn(SARAH, "flour")
    ((_, _, link),) = office.buttons()
    browser, other = office.slack.browser(), office.slack.browser()
    _, _, sign_in = await browser.get(link)
    first = URL(sign_in).query["state"]  # says whom the login is for, and not yet that it is this person
    account = URL(office.slack.served.url).with_path("/slack/account")
    await browser.sees(account.with_query(code="x", state=first), "invalid_state")
    install = States(Keyring([KEY])).issue()
    other.cookie = f"slack-app-oauth-state={install}"
    await other.sees(account.with_query(code="x", state=install), "invalid_state")
    changed = first[:-2] + ("BA" if first[-2] == "A" else "AA")
    await browser.sees(account.with_query(code="x", state=changed), "invalid_state")
    await browser.sees(account.with_query(error="access_denied", state=first), "You cancelled")
    back = await office.approved(link, browser)
    await other.sees(back, "other_browser")
    again = escape(f"/slack/install?{link.raw_query_string}")
    await other.sees(back, "<h1>Not connected</h1>")
    await other.sees(back, f'<a href="{again}">Try again</a>')
    await browser.sees(back.update_query(code=""), "missing_code")
    await browser.sees(back.update_query(iss="https://elsewhere.example.com"), "other_issuer")
    nameless = await office.approved(link, browser)
    await browser.sees(nameless.without_query_params("iss"), "other_issuer")
    late, kept = await office.approved(link, browser), browser.cookie
    with monkeypatch.context() as patched:
        patched.setattr(installing, "STATE_LIVES", -1)
        status, page, _ = await office.login(link, "sarah", other)
        assert (status, "expired_state" in page) == (400, True)
        stale = States(Keyring([KEY])).issue(Person(BAKERY, SARAH, link.query["server"], "1"))
        other.cookie = f"slack-app-oauth-state={stale}"
        await other.sees(account.with_query(code="x", state=stale), "expired_state")
    back = await office.approved(link, browser)
    done = browser.cookie
    assert (await browser.get(back))[0] == 200
    browser.cookie = done
    await browser.sees(back, "used_state")
    browser.cookie = kept
    await browser.sees(late, "used_link")
    status, page, _ = await office.login(link, "sarah", other)
    assert (status, "used_link" in page) == (400, True)
    assert office.oauth.counts == {"register": 1}
    async with office.worker():
        assert await office.answer(turn) == "Found."
    assert (office.oauth.counts["authorization_code"], office.oauth.refusals) == (1, [])


async def test_two_workers_refresh_once_and_what_is_rotated_is_kept(
    office: Office, connection: Connection
) -> None:
    async with office.worker(), office.worker():
        await office.connected()
        await office.time_passes()
        held = office.oauth.held["refresh_token"] = asyncio.Event()
        turns = [await office.ask(SARAH, "flour") for _ in range(2)]
        await becomes(connection, "select count(*) = 2 from agent.event where claimed_by is not null")
        await until(lambda: office.oauth.counts["refresh_token"], what="a refresh")
        held.set()
        assert [await office.answer(each) for each in turns] == ["Found."] * 2
        assert office.oauth.counts == {"register": 1, "authorization_code": 1, "refresh_token": 1}
        await office.time_passes()
        assert await office.answer(await office.ask(SARAH, "flour")) == "Found."
    assert (office.oauth.counts["refresh_token"], office.oauth.refusals) == (2, [])
    assert len(office.buttons()) == 1


async def test_many_processes_that_need_the_token_at_once_refresh_it_once(office: Office) -> None:
    async with office.worker():
        await office.connected()
    await office.time_passes()
    ((_, _, link),) = office.buttons()
    owner = Owner.at(link.query["server"], BAKERY)
    async with asyncpg.create_pool(office.database, min_size=5, max_size=5) as pool:
        logins = [Logins(Installations(pool, Keyring([KEY]))) for _ in range(5)]
        found = await asyncio.gather(*(each.find(owner, SARAH) for each in logins))
    assert {rows[SARAH].token for rows in found} == office.oauth.granted[0].tokens
    assert office.oauth.counts["refresh_token"] == 1


async def test_a_token_that_ends_early_is_refreshed_and_a_lost_account_asked_for_once_a_turn(
    office: Office,
) -> None:
    async with office.worker():
        await office.connected()
        office.oauth.expire()  # the server answers 401, long before the time that it named
        assert await office.answer(await office.ask(SARAH, "flour")) == "Found."
        assert (office.oauth.counts["refresh_token"], len(office.buttons())) == (1, 1)
        office.oauth.granted.clear()
        turn = await office.turn(SARAH, "flour")
        assert "docs no longer accepts" in office.buttons()[-1][1]
        await office.again(2)
        assert await office.answer(turn) == "Found."
        office.oauth.granted.clear()
        office.oauth.clients.clear()  # it has forgotten the app, too
        turn = await office.turn(SARAH, "flour")
        await office.again(3)
        assert await office.answer(turn) == "Found."
    assert office.oauth.counts["register"] == 2
    assert len(office.buttons()) == 3


@pytest.mark.parametrize("step", ["register", "authorization_code", "refresh_token"])
async def test_a_worker_that_dies_while_a_server_answers_costs_one_more_request_or_button(
    office: Office, step: str
) -> None:
    """What the server had granted is lost: it is in no other place. The next worker begins that step anew."""
    held = office.oauth.held[step] = asyncio.Event()
    async with office.worker() as first:
        if step == "register":
            turn = await office.ask(SARAH, "flour")
        else:
            turn = await office.turn(SARAH, "flour")
            await office.again(1)
        if step == "refresh_token":
            assert await office.answer(turn) == "Found."
            await office.time_passes()
            turn = await office.ask(SARAH, "flour")
        await until(lambda: office.oauth.counts[step], what=step)
        first.child.kill()
        await first.child.wait()
    held.set()
    await office.time_passes()
    async with office.worker():
        await office.again(1 if step == "register" else 2)
        assert await office.answer(turn) == "Found."
    counts = {"register": 1, "authorization_code": 1} | {step: 2}
    if step == "refresh_token":
        counts |= {"refresh_token": 1, "authorization_code": 2}
    assert office.oauth.counts == counts
    assert len(office.server.searched) == (2 if step == "refresh_token" else 1)


@pytest.mark.parametrize(
    ("said", "resource", "reason"),
    [
        ({"issuer": "https://elsewhere.example.com"}, None, "issuer mismatch"),
        ({"code_challenge_methods_supported": None}, None, "does not support PKCE"),
        ({"token_endpoint": "http://elsewhere.example.com/token"}, None, "must begin with https"),
        ({"registration_endpoint": None}, None, "give the server a client_id"),
        ({}, "https://elsewhere.example.com/mcp", "names another resource"),
    ],
)
async def test_an_authorization_server_that_cannot_be_trusted_is_not_used(
    office: Office, said: Mapping[str, Any], resource: str | None, reason: str
) -> None:
    office.oauth.said, office.server.resource = dict(said), resource
    async with office.worker() as running:
        assert await office.answer(await office.ask(SARAH, "without")) == "Without."
    (request,) = office.model.asked["without"]
    assert "these tools are missing: docs" in request["messages"][0]["content"]
    assert reason in "\n".join(running.output)
    assert (office.buttons(), office.oauth.counts) == ([], {})


async def test_a_server_that_registers_nobody_takes_the_client_of_the_file(office: Office) -> None:
    office.oauth.said = {"registration_endpoint": None, "scopes_supported": None}
    office.oauth.clients["ours"] = "a secret"
    office.oauth.redirects.add(f"{office.slack.served.url}/slack/account")
    office.serve(client_id="ours", client_secret="a secret", scopes=["write"])
    async with office.worker():
        await office.connected()
    (granted,) = office.oauth.granted
    assert (granted.client, granted.asked["scope"]) == ("ours", "write")
    assert office.oauth.counts == {"authorization_code": 1}


async def test_a_token_goes_to_its_server_alone(office: Office) -> None:
    async with office.worker(), account_server(lambda _: None) as other:
        token = await office.connected()
        office.server.elsewhere = other.url
        turn = await office.ask(SARAH, "flour")
        await until(lambda: office.server.seen.count(token) > 3, what="the redirect")
        office.server.elsewhere = None
        assert await office.answer(turn) == "Found."
        assert other.seen == []
    async with account_server(lambda _: None) as other:
        other.issuer = office.oauth.url
        office.serve(url=other.url)  # the file has another address for the same name
        async with office.worker():
            await office.turn(SARAH, "flour")
        assert set(other.seen) == {""}
        assert len(office.buttons()) == 2


async def test_two_people_at_once_register_the_app_once_and_two_servers_get_tokens_of_their_own(
    office: Office, connection: Connection
) -> None:
    held = office.oauth.held["register"] = asyncio.Event()
    office.model.plans["both"] = [
        calls(("docs_search", {"words": "flour"}), ("other_search", {"words": "salt"})),
        says("Both."),
    ]
    async with office.worker(), office.worker(), account_server(lambda _: None) as other:
        other.issuer = office.oauth.url
        other.person_of = lambda token: office.oauth.person_of(token, other.url)
        office.serve(other.url)
        turn, idas = await office.ask(SARAH, "both"), await office.ask(IDA, "both")
        await becomes(connection, "select count(*) = 2 from agent.event where claimed_by is not null")
        await until(lambda: office.oauth.counts["register"], what="a registration")
        held.set()
        await suspended(connection, turn)
        await suspended(connection, idas)
        assert sorted(sees for sees, _, _ in office.buttons() if sees) == [SARAH, IDA]
        (link,) = [link for sees, _, link in office.buttons() if sees == SARAH]
        assert (await office.connect(link, "sarah"))[0] == 200
        await until(lambda: len(office.buttons()) == 3, within=60, what="the button of the other server")
        assert "your other account" in office.buttons()[2][1]
        assert (await office.connect(office.buttons()[2][2], "sarah"))[0] == 200
        assert await office.answer(turn) == "Both."
        assert (office.server.searched, other.searched) == (
            [("sarah@example.com", "flour")],
            [("sarah@example.com", "salt")],
        )
        assert set(office.server.seen) & set(other.seen) == {""}
    assert office.oauth.counts == {"register": 1, "authorization_code": 2}


@pytest.mark.parametrize("way", ["client_secret_basic", "client_secret_post", "none"])
async def test_a_client_authenticates_as_it_is_registered_also_once_the_server_is_back(
    office: Office, way: str
) -> None:
    office.oauth.way, office.oauth.away = way, 1
    async with office.worker():
        await office.connected()
        office.oauth.away = 1
        office.oauth.expire()
        assert await office.answer(await office.ask(SARAH, "flour")) == "Found."
    assert office.oauth.counts == {"register": 1, "authorization_code": 1, "refresh_token": 1}
    assert (office.oauth.refusals, len(office.buttons())) == ([], 1)


@pytest.mark.parametrize("server", [{"client_id": "a"}, {"account": "slack", "scopes": ["a"]}])
def test_a_client_without_a_login_is_an_error(tmp_path: Path, server: Mapping[str, Any]) -> None:
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"docs": {"url": "https://docs.example.com", **server}}}))
    with pytest.raises(SettingsError, match='need "account": "oauth"'):
        servers(file)
