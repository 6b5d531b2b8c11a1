"""The simulator's other workspaces: each token reaches its own one, and removed or used tokens are refused."""

import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import aiohttp
import pytest

from surelane_dev.simulator.installs import AuthorizeRequest
from surelane_dev.simulator.posting.payloads import Payloads
from surelane_dev.simulator.server import serving_simulator
from surelane_dev.simulator.simulator import Simulator
from surelane_dev.simulator.simulator_settings import SimulatorSettings
from surelane_dev.simulator.webapi.view_content import checked, placed
from surelane_dev.simulator.workspace.demo import GRID, SHARED
from surelane_service.service_settings import DEMO_CLIENT_ID, DEMO_CLIENT_SECRET, load_settings
from tests.processes import free_port

EAST, WEST, BAKERY = "T0ACMEEAST", "T0ACMEWEST", "T0BAKERY01"
APP = {"client_id": DEMO_CLIENT_ID, "client_secret": DEMO_CLIENT_SECRET}


@dataclass
class Slack:
    """A running simulator, and a client."""

    simulator: Simulator
    url: str
    session: aiohttp.ClientSession

    async def call(self, method: str, token: str | None = None, **fields: str) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with self.session.post(f"{self.url}/api/{method}", data=fields, headers=headers) as response:
            answer: dict[str, Any] = await response.json()
            return answer

    async def control(self, method: str, path: str, **body: str) -> dict[str, Any]:
        async with self.session.request(method, f"{self.url}/control/{path}", json=body) as response:
            answer: dict[str, Any] = await response.json()
            return answer

    async def install(self, team: str, *, wide: bool = False, scopes: str = "chat:write") -> dict[str, Any]:
        installs = self.simulator.installs
        code = installs.approve(
            AuthorizeRequest("http://127.0.0.1/", scopes), installs.workspaces[team], wide=wide
        )
        return await self.call("oauth.v2.access", code=code, **APP)

    async def post(self, token: str, team: str) -> str:
        """Post a message in a workspace; return Slack's error, or nothing."""
        channel = self.simulator.installs.workspaces[team].channel("general")
        assert channel is not None
        answer = await self.call("chat.postMessage", token, channel=channel.id, text="hello")
        return str(answer.get("error", ""))


@pytest.fixture
async def slack() -> AsyncIterator[Slack]:
    settings = load_settings(SimulatorSettings, port=0, posting=False, retry_delays=(), token_lives="12h")
    async with serving_simulator(settings) as (url, simulator), aiohttp.ClientSession() as session:
        yield Slack(simulator, url, session)


async def test_a_token_reaches_its_own_workspace_or_each_of_its_organization_alone(slack: Slack) -> None:
    bakery = (await slack.install(BAKERY))["access_token"]
    grid = (await slack.install(EAST, wide=True))["access_token"]
    assert [await slack.post(bakery, team) for team in (BAKERY, EAST)] == ["", "channel_not_found"]
    assert [await slack.post(grid, team) for team in (EAST, WEST, BAKERY)] == ["", "", "channel_not_found"]
    assert await slack.post("xoxb-demo", BAKERY) == "channel_not_found"
    tested = await slack.call("auth.test", bakery)
    told = {"team_id": BAKERY, "user_id": "U1BAKERY01", "is_enterprise_install": False}
    assert told.items() <= tested.items()
    assert (await slack.call("auth.test", grid))["is_enterprise_install"]
    grid = (await slack.install(EAST, wide=True, scopes="chat:write,users:read"))["access_token"]
    west = slack.simulator.installs.workspaces[WEST]
    person, channel = west.people()[0], west.channels["C0ACMEWEST"]
    asked = west.post(channel, person.id, "hello")
    thread = {"channel_id": channel.id, "thread_ts": asked.ts}
    assert (await slack.call("assistant.threads.setStatus", grid, status="is thinking", **thread))["ok"]
    assert (await slack.call("users.info", grid, user=person.id))["user"]["team_id"] == WEST
    view = json.dumps({"type": "home", "blocks": []})
    published = await slack.call("views.publish", grid, user_id=person.id, view=view)
    assert published["view"]["team_id"] == WEST
    modal = json.dumps({"type": "modal", "title": {"type": "plain_text", "text": "West"}, "blocks": []})
    trigger = slack.simulator.interactions.new_trigger(person.id)
    assert (await slack.call("views.open", grid, trigger_id=trigger, view=modal))["view"]["team_id"] == WEST
    trigger = slack.simulator.interactions.new_trigger(person.id)
    refused = await slack.call("views.open", bakery, trigger_id=trigger, view=modal)
    assert refused["error"] == "invalid_trigger_id"


async def test_codes_and_refresh_tokens_work_once_and_removed_ones_are_refused(slack: Slack) -> None:
    assert (await slack.call("oauth.v2.access", code="x", client_id="1.1"))["error"] == "invalid_client_id"
    wrong = APP | {"client_secret": "wrong"}
    assert (await slack.call("oauth.v2.access", code="x", **wrong))["error"] == "bad_client_secret"
    assert (await slack.call("oauth.v2.access", code="x", **APP))["error"] == "invalid_code"
    given = await slack.install(BAKERY)
    assert given["expires_in"] == 43200
    refresh = {"grant_type": "refresh_token", "refresh_token": given["refresh_token"], **APP}
    fresh = await slack.call("oauth.v2.access", **refresh)
    assert fresh["access_token"] != given["access_token"]
    assert await slack.post(fresh["access_token"], BAKERY) == ""
    assert (await slack.call("oauth.v2.access", **refresh))["error"] == "invalid_refresh_token"
    first, second = [(await slack.install(BAKERY)) for _ in range(2)]
    assert (await slack.call("auth.revoke", first["access_token"]))["revoked"]
    assert await slack.post(first["access_token"], BAKERY) == "token_revoked"
    assert (await slack.call("apps.uninstall", second["access_token"], **APP))["ok"]
    assert await slack.post(second["access_token"], BAKERY) == "account_inactive"
    again = {"grant_type": "refresh_token", "refresh_token": second["refresh_token"], **APP}
    assert (await slack.call("oauth.v2.access", **again))["error"] == "invalid_refresh_token"
    kinds = [delivery.kind for delivery in slack.simulator.sender.deliveries.values()]
    assert kinds == ["tokens_revoked", "app_uninstalled", "tokens_revoked"]


async def test_people_write_in_a_workspace_and_remove_the_app(slack: Slack) -> None:
    messages = f"workspaces/{BAKERY}/messages"
    said = await slack.control("POST", messages, text="hello")
    assert said["events"] == []  # the workspace does not have the app
    await slack.install(BAKERY)
    said = await slack.control("POST", messages, text="hello")
    assert [event["kind"] for event in said["events"]] == ["app_mention"]
    assert len((await slack.control("GET", messages))["messages"]) == 2
    found = (await slack.control("GET", "workspaces"))["workspaces"]
    assert {each["id"] for each in found if each["installed"]} == {"T0SURELANE", BAKERY}
    assert (await slack.control("DELETE", f"workspaces/{BAKERY}"))["tokens"] == 1
    assert "error" in await slack.control("GET", "workspaces/T0NOTHERE1/messages")


async def test_the_control_api_lets_people_use_each_workspace(slack: Slack) -> None:
    said = await slack.control("POST", f"messages?team={WEST}", text="hello", user="emma")
    assert (said["message"]["user"], said["message"]["team_id"]) == ("U2ACMEWEST", WEST)
    refused = await slack.control("POST", f"commands?team={WEST}", command="/deploy")
    assert refused["error"] == "Acme West has not installed the app"
    await slack.install(EAST, wide=True)
    await slack.control("POST", f"commands?team={WEST}", command="/deploy")
    await slack.control("POST", f"shortcuts?team={WEST}", callback_id="ask")
    await slack.control("POST", f"home?team={WEST}", tab="home")
    command, shortcut, home = slack.simulator.sender.deliveries.values()
    assert {each.team_id for each in (command, shortcut, home)} == {WEST}
    form = dict(parse_qsl(command.body.decode()))
    assert (form["team_id"], form["enterprise_id"], form["is_enterprise_install"]) == (WEST, GRID, "true")
    payload = json.loads(dict(parse_qsl(shortcut.body.decode()))["payload"])
    assert (payload["team"]["id"], payload["enterprise"]["id"]) == (WEST, GRID)
    assert payload["is_enterprise_install"]
    opened = json.loads(home.body)
    assert (opened["event"]["user"], opened["event"]["channel"]) == ("U0ACMEWEST", "D0ACMEWEST")
    assert opened["authorizations"][0]["is_enterprise_install"]
    nowhere = await slack.control("POST", "messages?team=T0NOTHERE1", text="hello")
    assert nowhere["error"] == "there is no workspace T0NOTHERE1"


async def test_with_a_client_id_the_demo_workspace_installs_the_app_and_it_is_ready_only_then() -> None:
    settings = load_settings(SimulatorSettings, port=0, posting=False, client_id=DEMO_CLIENT_ID)
    async with serving_simulator(settings) as (url, simulator), aiohttp.ClientSession() as session:
        slack, demo = Slack(simulator, url, session), simulator.workspace
        demo.post(demo.channels["C0GENERAL1"], "U0ADA00001", f"<@{demo.bot.id}> hello")
        assert not simulator.sender.deliveries
        await slack.install(demo.team_id)
        demo.post(demo.channels["C0GENERAL1"], "U0ADA00001", f"<@{demo.bot.id}> hello")
        assert [each.kind for each in simulator.sender.deliveries.values()] == ["app_mention"]
    nobody = f"http://127.0.0.1:{free_port()}"
    waits = load_settings(SimulatorSettings, port=0, ingest_url=nobody, client_id=DEMO_CLIENT_ID)
    async with serving_simulator(waits) as (url, _), aiohttp.ClientSession() as session:
        async with session.get(f"{url}/readyz") as waiting:
            assert waiting.status == 503
        async with session.get(f"{url}/livez") as alive:
            assert alive.status == 200


async def test_the_bot_has_the_manifests_name_in_each_workspace_and_an_install_shows_its_scopes(
    tmp_path: Path,
) -> None:
    bot = "features: {bot_user: {display_name: clerk}}"
    (tmp_path / "m.yaml").write_text(f"display_information: {{name: The Clerk}}\n{bot}")
    settings = load_settings(SimulatorSettings, port=0, posting=False, manifest=tmp_path / "m.yaml")
    async with serving_simulator(settings) as (url, simulator), aiohttp.ClientSession() as session:
        for workspace in simulator.installs.workspaces.values():
            assert (workspace.bot.real_name, workspace.bot.name) == ("The Clerk", "clerk")
            assert workspace.users[workspace.bot.id] is workspace.bot
        asks = {"client_id": DEMO_CLIENT_ID, "scope": "chat:write,im:history", "user_scope": "search:read"}
        async with session.get(f"{url}/oauth/v2/authorize", params=asks) as page:
            shown = await page.text()
    assert "Install The Clerk?" in shown
    assert re.findall("<code>(.*?)</code>", shown) == ["chat:write", "im:history", "search:read"]


async def test_a_message_of_a_shared_channel_is_sent_for_each_workspace_with_the_app(slack: Slack) -> None:
    east, bakery = (slack.simulator.installs.workspaces[team] for team in (EAST, BAKERY))
    channel, edith = east.channels[SHARED], next(iter(east.users))
    text = f"<@{east.bot.id}> <@{bakery.bot.id}> bread"
    east.post(channel, edith, text)
    assert not slack.simulator.sender.deliveries  # neither has the app
    tokens = [(await slack.install(team))["access_token"] for team in (EAST, BAKERY)]
    message = east.post(channel, edith, text)
    sent = [json.loads(each.body) for each in slack.simulator.sender.deliveries.values()]
    assert [each["team_id"] for each in sent] == [EAST, EAST]  # the author's
    assert [each["context_team_id"] for each in sent] == [EAST, BAKERY]
    assert [each["authorizations"][0]["team_id"] for each in sent] == [EAST, BAKERY]
    assert all(each["is_ext_shared_channel"] for each in sent)
    reply = {"channel": SHARED, "thread_ts": message.ts, "text": "hello"}
    said = [(await slack.call("chat.postMessage", token, **reply))["message"] for token in tokens]
    assert [(each["team"], each["bot_id"]) for each in said] == [(EAST, "B0ACMEEAST"), (BAKERY, "B0BAKERY01")]
    assert len(channel.replies(message.ts)) == 2
    # A person of another organization acts with the team of that organization, in messages and in views.
    sarah = next(iter(bakery.users.values()))
    payloads = Payloads(east, slack.simulator.interactions, sarah)
    modal = {"type": "modal", "title": {"type": "plain_text", "text": "x"}, "blocks": []}
    opened = placed(east, checked(modal, "modal"))
    acted = [
        payloads.action(channel.replies(message.ts)[0], {}, {}),
        payloads.view("view_submission", opened),
    ]
    assert [(each["team"]["id"], each["user"]["team_id"]) for each in acted] == [(BAKERY, BAKERY)] * 2
    assert acted[0]["message"]["bot_profile"]["team_id"] == acted[1]["view"]["app_installed_team_id"] == EAST
