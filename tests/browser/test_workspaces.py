"""The page shows how the app is connected, disconnects it, and shows the other workspaces and who has the app."""

from typing import TYPE_CHECKING

import aiohttp
import pytest
from yarl import URL

from surelane_service.settings import DEMO_CLIENT_ID, DEMO_CLIENT_SECRET
from tests.browser.console_page import accessible

if TYPE_CHECKING:
    from tests.browser.slack_page import SlackPage
    from tests.system.slack_app import Pair

pytestmark = pytest.mark.browser


async def installed(pair: "Pair", team: str) -> None:
    """Install the app in a workspace, as a person and ingest do."""
    asked = {
        "client_id": DEMO_CLIENT_ID,
        "scope": "chat:write",
        "redirect_uri": "http://127.0.0.1/",
        "state": "s",
    }
    page = URL(f"{pair.url}/oauth/v2/authorize").with_query(asked)
    async with aiohttp.ClientSession() as session:
        form = {"team": team, "decision": "approve"}
        async with session.post(page, data=form, allow_redirects=False) as response:
            code = URL(response.headers["Location"]).query["code"]
        fields = {"client_id": DEMO_CLIENT_ID, "client_secret": DEMO_CLIENT_SECRET, "code": code}
        async with session.post(f"{pair.url}/api/oauth.v2.access", data=fields) as response:
            assert (await response.json())["ok"]


async def ingest_of(pair: "Pair") -> str:
    """Return where the simulator posts."""
    address: str = (await pair.control.request("GET", "/control/state"))["ingest_url"]
    return address


async def test_a_person_writes_in_another_workspace_and_removes_the_app(
    slack: "SlackPage", pair: "Pair"
) -> None:
    await slack.open_tools("Workspaces")
    tools, expect = slack.tools, slack.expect
    state = tools.locator("#workspace-state")
    await expect(state).to_have_text(
        "T0ACMEEAST of E0ACMEGRID. You are Edith Clarke. It does not have the app."
    )
    install = tools.get_by_role("link", name="Install the app")
    await expect(install).to_have_attribute("href", f"{await ingest_of(pair)}/slack/install?team=T0ACMEEAST")
    await tools.get_by_role("combobox", name="Workspace").select_option("Bakery")
    await installed(pair, "T0BAKERY01")
    await expect(state).to_have_text("T0BAKERY01. You are Edith Clarke. It has the app.")
    await tools.get_by_role("combobox", name="Channel").select_option("orders, shared")
    await tools.get_by_role("textbox", name="Message").fill("two loaves")
    await tools.get_by_role("button", name="Mention the app").click()
    messages = tools.get_by_role("list", name="Messages of the workspace")
    await expect(messages).to_contain_text("# orders · Edith Clarke, Bakery")
    await expect(messages).to_contain_text("@surelane two loaves")
    await tools.get_by_role("combobox", name="Workspace").select_option("Acme East")
    await expect(messages).to_contain_text("@surelane two loaves")  # they share the channel
    await tools.get_by_role("combobox", name="Workspace").select_option("Bakery")
    await tools.get_by_role("button", name="Remove the app").click()
    await expect(state).to_contain_text("It does not have the app.")
    assert await slack.unnamed() == []
    assert await accessible(slack.page, "#tools") == []


async def test_a_phone_shows_the_connection_and_disconnects_socket_mode(
    phone: "SlackPage", pair: "Pair"
) -> None:
    await phone.open_tools("Workspaces")
    connection = phone.tools.locator("#app-connection")
    button = phone.tools.get_by_role("button", name="Disconnect")
    await phone.expect(connection).to_have_text(f"HTTP: events go to {await ingest_of(pair)}")
    await phone.expect(button).to_be_hidden()
    assert not await phone.scrolls_sideways()
    async with aiohttp.ClientSession() as session:
        headers = {"Authorization": "Bearer xapp-1-A0SURELANE-1-demo"}
        async with session.post(f"{pair.url}/api/apps.connections.open", headers=headers) as response:
            opened = await response.json()
        async with session.ws_connect(opened["url"]) as socket:
            assert (await socket.receive_json())["type"] == "hello"
            await phone.expect(connection).to_have_text("Socket Mode: 1 connection")
            await button.tap()
            assert (await socket.receive_json())["reason"] == "refresh_requested"
        await phone.expect(connection).to_have_text("Socket Mode: 0 connections")
    await phone.expect(button).to_be_disabled()
    assert not await phone.scrolls_sideways()
