"""People install the app by OAuth, against a simulated Slack; nothing else than a full install is stored."""

import json
import string
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from surelane.calls import Connection
from surelane_bolt.installation_store import AsyncInstallations
from surelane_dev.simulator.server import serving_simulator
from surelane_dev.simulator.simulator import Simulator
from surelane_dev.simulator.simulator_settings import SimulatorSettings
from surelane_encryption.keys import Keyring, new_key
from surelane_ingest import installing
from surelane_ingest.installing import States
from surelane_service.installations import Installations
from surelane_service.service_settings import (
    DEMO_CLIENT_ID,
    DEMO_CLIENT_SECRET,
    DEMO_SIGNING_SECRET,
    load_settings,
)
from tests.processes import free_port
from tests.system.ingest_client import Served, envelope, served

KEY = new_key()
LETTERS = string.ascii_uppercase + string.ascii_lowercase + string.digits + "-_"
GRID, EAST, WEST, BAKERY = "E0ACMEGRID", "T0ACMEEAST", "T0ACMEWEST", "T0BAKERY01"


@dataclass
class Browser:
    """A person's browser, at ingest and at the simulated Slack."""

    ingest: str
    session: aiohttp.ClientSession
    cookie: str = ""

    async def get(self, url: str | URL) -> tuple[int, str, str]:
        """Return the status, the text and the ``Location`` of an answer of ingest."""
        target = url if isinstance(url, URL) else URL(self.ingest + url)
        headers = {"Cookie": self.cookie} if self.cookie else {}
        async with self.session.get(target, headers=headers, allow_redirects=False) as response:
            if "Set-Cookie" in response.headers:
                self.cookie = response.headers["Set-Cookie"].partition(";")[0]
            return response.status, await response.text(), response.headers.get("Location", "")

    async def decide(self, authorize: str, team: str, decision: str = "approve") -> URL:
        """Choose at Slack's page; return where Slack sends the browser."""
        form = {"team": team, "decision": decision}
        async with self.session.post(URL(authorize), data=form, allow_redirects=False) as response:
            assert response.status == 302, await response.text()
            return URL(response.headers["Location"])

    async def decided(self, team: str, decision: str = "approve") -> URL:
        """Begin an install and choose at Slack's page; return where Slack sends the browser."""
        _, _, authorize = await self.get("/slack/install")
        return await self.decide(authorize, team, decision)

    async def sees(self, url: str | URL, said: str, status: int = 400) -> None:
        """Fail unless an answer has the status and says so, escaped."""
        found, text, _ = await self.get(url)
        assert (found, said in text, "<script>" in text) == (status, True, False), text

    async def install(self, team: str) -> tuple[int, str, str]:
        return await self.get(await self.decided(team))


@dataclass
class Stand:
    """Ingest and Slack."""

    served: Served
    simulator: Simulator
    database: Connection
    session: aiohttp.ClientSession
    api: str

    def browser(self) -> Browser:
        return Browser(self.served.url, self.session)

    def store(self) -> AsyncInstallations:
        return AsyncInstallations(Installations(self.database, Keyring([KEY])))

    @asynccontextmanager
    async def locked(self, tables: str) -> AsyncIterator[None]:
        async with self.database.transaction():
            await self.database.execute(f"lock table {tables}")
            yield

    async def removed(self) -> list[tuple[str, bool, str | None]]:
        """Return the owners that removed the app, whether each is an organization, and a workspace's organization."""
        rows = await self.database.fetch(
            "select owner_id, enterprise_wide, enterprise_id from agent.uninstall order by 1"
        )
        return [tuple(row) for row in rows]

    async def owners(self) -> list[tuple[str, str]]:
        rows = await self.database.fetch("select owner_id, user_id from agent.installation order by 1, 2")
        return [(row["owner_id"], row["user_id"]) for row in rows]


@asynccontextmanager
async def stand(database: str, connection: Connection, **others: Any) -> AsyncIterator[Stand]:
    ingest_port = free_port()
    slack = load_settings(
        SimulatorSettings, port=0, retry_delays=(), ingest_url=f"http://127.0.0.1:{ingest_port}"
    )
    async with serving_simulator(slack) as (url, simulator), aiohttp.ClientSession() as session:
        settings: dict[str, Any] = {
            "slack_api_url": f"{url}/api/",
            "signing_secret": DEMO_SIGNING_SECRET,
            "client_id": DEMO_CLIENT_ID,
            "client_secret": DEMO_CLIENT_SECRET,
            "encryption_keys": KEY,
            "port": ingest_port,
            "database_budget": "2s",
        }
        async with served(database, **(settings | others)) as ingest:
            ingest.slack.secret = DEMO_SIGNING_SECRET
            yield Stand(ingest, simulator, connection, session, settings["slack_api_url"])


@pytest.fixture
async def slack(database: str, connection: Connection) -> AsyncIterator[Stand]:
    async with stand(database, connection) as running:
        yield running


async def test_a_workspace_installs_the_app(slack: Stand, capfd: pytest.CaptureFixture[str]) -> None:
    browser = slack.browser()
    status, _, authorize = await browser.get("/slack/install?team=T0BAKERY01")
    assert status == 302
    asked = URL(authorize)
    assert (asked.path, asked.query["team"]) == ("/oauth/v2/authorize", BAKERY)
    assert "chat:write" in asked.query["scope"]
    async with slack.session.get(asked) as page:
        assert "Bakery" in await page.text()
    await browser.sees(await browser.decide(authorize, BAKERY), "The app is installed in Bakery", 200)
    found = await slack.store().async_find_installation(enterprise_id=None, team_id=BAKERY)
    assert found is not None
    assert found.bot_token in slack.simulator.installs.grants
    assert (found.app_id, found.bot_user_id, found.bot_id) == ("A0SURELANE", "U1BAKERY01", "B0BAKERY01")
    assert found.user_token is None
    printed = "".join(capfd.readouterr())
    assert "the app was installed" in printed
    for secret in (found.bot_token, DEMO_CLIENT_SECRET, KEY):
        assert str(secret) not in printed


async def test_people_give_their_own_tokens_when_the_scopes_ask_for_them(
    database: str, connection: Connection
) -> None:
    async with stand(database, connection, scopes="", user_scopes="search:read") as slack:
        assert (await slack.browser().install(EAST))[0] == 200
        found = await slack.store().async_find_installation(enterprise_id=GRID, team_id=EAST)
    assert found is not None
    assert (found.bot_token, found.user_scopes) == (None, ["search:read"])
    assert str(found.user_token).startswith("xoxp-")


async def test_a_state_that_is_missing_foreign_used_or_expired_installs_nothing(
    slack: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser, other = slack.browser(), slack.browser()
    back = await browser.decided(BAKERY)
    await browser.sees("/slack/oauth_redirect?code=abc", "invalid_state")
    for state in ("%00%C3%A9", States(Keyring([new_key()])).issue()):
        await browser.sees(f"/slack/oauth_redirect?code=abc&state={state}", "invalid_state")
    await other.sees(back, "other_browser")
    kept = browser.cookie
    assert (await browser.get(back))[0] == 200
    assert browser.cookie == "slack-app-oauth-state=deleted"
    browser.cookie = kept
    again = back.update_query(code="another")
    await browser.sees(again, "used_state")
    given = again.query["state"]
    same = given[:-1] + LETTERS[LETTERS.index(given[-1]) + 1]  # decodes to the same bytes
    browser.cookie = f"slack-app-oauth-state={same}"
    await browser.sees(again.update_query(state=same), "used_state")
    used = "select count(*) from agent.used_id"
    before = await slack.database.fetchval(used)
    monkeypatch.setattr(installing, "STATE_LIVES", -1)
    state = States(Keyring([KEY])).issue()
    browser.cookie = f"slack-app-oauth-state={state}"
    await browser.sees(f"/slack/oauth_redirect?code=abc&state={state}", "expired_state")
    assert await slack.database.fetchval(used) == before


async def test_what_slack_or_a_person_refuses_installs_nothing_and_is_escaped(slack: Stand) -> None:
    browser = slack.browser()
    cancelled, given = await browser.decided(BAKERY, "cancel"), slack.browser()
    wrong = (await given.decided(BAKERY)).update_query(code="wrong")
    await browser.sees(cancelled, "You cancelled.")
    await given.sees(wrong, "invalid_code")
    await browser.sees("/slack/oauth_redirect?error=<script>alert(1)</script>", "refused")
    assert await slack.owners() == []


async def test_a_token_of_another_app_is_not_stored(database: str, connection: Connection) -> None:
    async with stand(database, connection, app_id="A0ANOTHER1") as slack:
        status, text, _ = await slack.browser().install(BAKERY)
        assert (status, "other_app" in text) == (400, True)
        assert await slack.owners() == []


async def test_slack_or_a_database_that_does_not_answer_leaves_nothing(slack: Stand) -> None:
    browser = slack.browser()
    for method in ("oauth.v2.access", "auth.test"):
        back = await browser.decided(BAKERY)
        fault = {"kind": "answer_lost", "methods": [method]}
        async with slack.session.post(URL(slack.api).origin() / "control/faults", json=fault) as added:
            assert added.status == 200, await added.text()
        await browser.sees(back, "Slack does not answer", 502)
    back = await browser.decided(BAKERY)
    async with slack.locked("agent.installation, agent.used_id"):
        await browser.sees(back, "database", 503)
    assert await slack.owners() == []
    assert (await browser.install(BAKERY))[0] == 200


async def test_pages_run_no_script_and_end_their_connection(slack: Stand) -> None:
    async with slack.session.get(f"{slack.served.url}/slack/oauth_redirect") as response:
        assert "default-src 'none'" in response.headers["Content-Security-Policy"]
        assert (response.headers["Connection"], response.headers["Cache-Control"]) == ("close", "no-store")
    async with slack.session.get(f"{slack.served.url}/slack/install", allow_redirects=False) as response:
        cookie = response.headers["Set-Cookie"]
        assert all(part in cookie for part in ("Secure", "HttpOnly", "SameSite=Lax", "Max-Age=600"))


async def test_a_team_brings_its_own_pages_and_its_workspaces_get_data_keys(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    (tmp_path / "success.html").write_text("<h1>Hello $workspace</h1>")
    (tmp_path / "failure.html").write_text("<h1>Sorry: $code</h1>")
    async with stand(database, connection, install_pages=tmp_path, encrypt_events=True) as slack:
        assert (await slack.browser().get("/slack/oauth_redirect"))[1] == "<h1>Sorry: invalid_state</h1>"
        assert (await slack.browser().install(BAKERY))[1] == "<h1>Hello Bakery</h1>"
        # For programs, which make no data keys.
        assert await connection.fetchval("select array_agg(workspace) from agent.data_key") == [BAKERY]


async def removal(slack: Stand, event: dict[str, Any], team: str, **more: Any) -> int:
    given = envelope(event) | {"team_id": team, "authorizations": []} | more
    return (await slack.served.slack.event(given)).status


async def test_tokens_go_when_slack_reports_a_removal_in_either_order(
    database: str, connection: Connection
) -> None:
    async with stand(database, connection, user_scopes="search:read") as slack:
        browser = slack.browser()
        uninstalled: dict[str, Any] = {"type": "app_uninstalled"}
        revoked = {"type": "tokens_revoked", "tokens": {"oauth": ["U0BAKERY01"], "bot": ["U1BAKERY01"]}}
        for order in ([uninstalled, revoked], [revoked, uninstalled]):
            assert (await browser.install(BAKERY))[0] == 200
            assert await slack.owners() == [(BAKERY, ""), (BAKERY, "U0BAKERY01")]
            assert await slack.removed() == []  # an install forgets the removal before
            for event in order:
                assert await removal(slack, event, BAKERY) == 200
                assert await slack.owners() == []
            assert await slack.removed() == [(BAKERY, False, None)]
        assert (await browser.install(BAKERY))[0] == 200
        one = {"type": "tokens_revoked", "tokens": {"oauth": ["U0BAKERY01"]}}
        assert await removal(slack, one, BAKERY) == 200
        assert await slack.owners() == [(BAKERY, "")]


async def test_a_late_report_keeps_a_newer_install_and_others(slack: Stand) -> None:
    assert (await slack.browser().install(BAKERY))[0] == 200
    assert (await slack.browser().install(GRID))[0] == 200
    kept = [(GRID, ""), (GRID, "U0ACMEEAST"), (BAKERY, ""), (BAKERY, "U0BAKERY01")]
    assert await removal(slack, {"type": "app_uninstalled"}, BAKERY, event_time=1_700_000_000) == 200
    assert await removal(slack, {"type": "app_uninstalled"}, EAST) == 200
    assert sorted(await slack.owners()) == sorted(kept)
    assert await slack.removed() == [(EAST, False, None)]
    assert await removal(slack, {"type": "app_uninstalled"}, GRID) == 200
    assert await slack.owners() == kept[2:]


async def test_an_organization_removes_the_app_from_one_workspace_and_keeps_its_own_installation(
    slack: Stand,
) -> None:
    for name in (GRID, EAST, BAKERY):
        assert (await slack.browser().install(name))[0] == 200
    owners = await slack.owners()
    assert {(GRID, ""), (EAST, ""), (BAKERY, "")} < set(owners)
    event = {"type": "app_uninstalled_team", "app_id": "A0OTHER", "team_id": EAST, "user_id": "U1"}
    wide = {"team_id": EAST, "enterprise_id": GRID, "is_enterprise_install": True}

    async def reported(**more: Any) -> None:
        given = {"authorizations": [wide], "enterprise_id": GRID, "api_app_id": "A0OURS"}
        assert await removal(slack, event | more, EAST, **given) == 200

    await reported()  # another app
    await reported(app_id="A0OURS", team_id=GRID)  # app_uninstalled and tokens_revoked come, too
    await reported(app_id="A0OURS", team_id=None)
    assert await slack.owners() == owners
    await reported(app_id="A0OURS")
    assert await slack.owners() == [each for each in owners if each[0] != EAST]
    assert await slack.removed() == []  # the organization still has the app, so nothing is erased


async def test_who_else_reports_a_message_is_noted_and_a_report_that_cannot_be_kept_is_refused(
    slack: Stand,
) -> None:
    def report(team: str, event_id: str) -> dict[str, Any]:
        event = {"type": "app_mention", "channel": "C0SHARED", "ts": "1.1", "user": "U1", "text": "bread"}
        authorizations = [{"team_id": team, "enterprise_id": None, "is_enterprise_install": False}]
        given = {"event_id": event_id, "authorizations": authorizations, "is_ext_shared_channel": True}
        return envelope(event) | given

    noted = "select owner_id, event_id = (select id from agent.event) as same from agent.other_report"
    assert (await slack.served.slack.event(report(EAST, "Ev1"))).status == 200
    assert await slack.database.fetch(noted) == []
    assert (await slack.served.slack.event(report(BAKERY, "Ev2"))).status == 200
    assert [tuple(row) for row in await slack.database.fetch(noted)] == [(BAKERY, True)]
    async with slack.locked("agent.installation"):  # Slack repeats what cannot be kept
        assert await removal(slack, {"type": "app_uninstalled"}, BAKERY) == 503
    assert await removal(slack, {"type": "app_uninstalled"}, BAKERY) == 200


async def test_an_organization_installs_the_app_for_all_its_workspaces_and_removes_it(slack: Stand) -> None:
    assert (await slack.browser().install(GRID))[0] == 200
    find = slack.store().async_find_bot
    bot = await find(enterprise_id=GRID, team_id=WEST, is_enterprise_install=True)
    assert bot is not None
    assert bot.is_enterprise_install
    assert await find(enterprise_id=GRID, team_id=WEST) is None
    simulator = slack.simulator
    workspace = simulator.installs.workspaces[EAST]
    assert simulator.installs.uninstall(workspace, wide=True) == 1
    for delivery in list(simulator.sender.deliveries.values()):
        await delivery.answered.wait()
    assert await slack.owners() == []
    assert await slack.removed() == [(GRID, True, None)]


async def test_without_a_client_id_there_is_no_install(database: str) -> None:
    async with served(database) as ingest, aiohttp.ClientSession() as session:
        async with session.get(f"{ingest.url}/slack/install") as response:
            assert (response.status, json.loads(await response.text())) == (404, {"error": "no such path"})
        assert (await ingest.slack.event(envelope({"type": "app_uninstalled"}))).status == 200


async def test_a_link_that_names_a_person_asks_for_that_persons_token_alone(
    database: str, connection: Connection
) -> None:
    async with stand(database, connection, user_scopes="search:read") as slack:
        browser = slack.browser()
        status, _, authorize = await browser.get(f"/slack/install?team={BAKERY}&user=U0BAKERY01")
        asked = URL(authorize).query
        found = status, asked["scope"], asked["user_scope"], asked["team"]
        assert found == (302, "", "search:read", BAKERY)
        for team, user in ((BAKERY, "U1:U2"), (BAKERY, ""), ("T1:U3", "U1"), ("", "U1")):
            await browser.sees(str(URL("/slack/install").with_query(team=team, user=user)), "invalid_link")
        _, _, authorize = await browser.get(f"/slack/install?team={WEST}&user=U0BAKERY01")
        # It is the right person in another workspace.
        await browser.sees(await browser.decide(authorize, BAKERY), "other_person", 403)
        assert await slack.owners() == []
    async with stand(database, connection) as slack:
        # No scopes of people are set.
        await slack.browser().sees(f"/slack/install?team={BAKERY}&user=U0BAKERY01", "invalid_link")
