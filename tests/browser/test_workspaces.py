"""The page shows each workspace, who has the app, and how the app is connected."""

import re

import aiohttp
import pytest
from slack_sdk.web.async_client import AsyncWebClient
from yarl import URL

from surelane_service.service_settings import DEMO_CLIENT_ID, DEMO_CLIENT_SECRET
from tests.browser.looks import ugly
from tests.browser.slack_page import SlackPage, go
from tests.system.slack_app import Pair

pytestmark = pytest.mark.browser

BAKERY, EAST = "T0BAKERY01", "T0ACMEEAST"


async def installed(pair: Pair, team: str) -> str:
    """Install the app in a workspace, as a person and ingest do; return its token."""
    asked = {
        "client_id": DEMO_CLIENT_ID,
        "scope": "chat:write,commands",
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
            token: str = (await response.json())["access_token"]
            return token


async def ingest_of(pair: Pair) -> str:
    """Return where the simulator posts."""
    address: str = (await pair.control.request("GET", "/control/state"))["ingest_url"]
    return address


async def test_each_workspace_has_its_channels_people_and_answers(slack: SlackPage, pair: Pair) -> None:
    expect = slack.expect
    await slack.say("quiet at home")
    await expect(slack.message("quiet at home").locator(".delivery")).to_contain_text("200 in")
    await expect(slack.rail).to_be_hidden()  # there is one workspace to choose
    tokens = {team: await installed(pair, team) for team in (BAKERY, EAST)}
    await slack.open_workspace("Bakery")
    await expect(slack.page.get_by_label("You are")).to_have_value("U0BAKERY01")
    await expect(slack.channel).not_to_contain_text("quiet at home")
    await slack.open_channel("orders")
    await slack.say("quiet: two loaves")
    await expect(slack.thread).to_contain_text("two loaves")
    await expect(slack.message("two loaves").locator(".delivery")).to_contain_text("200 in")
    event = next(each for each in pair.app.acknowledged if "two loaves" in each["event"]["text"])
    assert (event["team_id"], event["authorizations"][0]["team_id"]) == (BAKERY, BAKERY)
    assert event["is_ext_shared_channel"]
    web = AsyncWebClient(token=tokens[BAKERY], base_url=f"{pair.url}/api/")
    where = {"channel": event["event"]["channel"], "thread_ts": event["event"]["ts"]}
    await web.chat_postMessage(text="they are in the oven", **where)
    await expect(slack.thread).to_contain_text("they are in the oven")
    await go(slack.page)
    await expect(slack.thread).to_contain_text("they are in the oven")
    await expect(slack.rail.get_by_role("link", name="Bakery")).to_have_attribute("aria-current", "page")
    await slack.open_workspace("Acme East")
    await slack.open_channel("orders")  # they share it
    loaves = slack.message("two loaves")
    await expect(loaves.locator(".from")).to_have_text("Bakery")
    await expect(loaves.get_by_role("button", name="1 reply")).to_be_visible()
    await pair.control.request("POST", "/control/messages", {"text": "quiet: news", "channel": "support"})
    home = slack.rail.get_by_role("link", name="Surelane")
    await expect(home).to_have_accessible_name(re.compile("Surelane +unread"))
    await home.press("Enter")
    await expect(slack.message("quiet at home")).to_be_visible()
    await expect(slack.channel).not_to_contain_text("two loaves")


async def test_a_workspace_without_the_app_offers_the_install(slack: SlackPage, pair: Pair) -> None:
    page, expect = slack.page, slack.expect
    await slack.open_tools("Workspaces")
    bakery = slack.tools.get_by_role("listitem").filter(has_text="Bakery")
    await expect(bakery).to_contain_text("T0BAKERY01. It does not have the app.")
    await bakery.get_by_role("link", name="Bakery", exact=True).click()
    await expect(slack.rail.get_by_role("link", name="Bakery")).to_have_attribute("aria-current", "page")
    install = page.get_by_role("note").get_by_role("link", name="Install the app")
    await expect(install).to_have_attribute("href", f"{await ingest_of(pair)}/slack/install?team={BAKERY}")
    await expect(page.get_by_role("heading", name="Direct messages")).to_be_hidden()
    await slack.say("quiet: is it here?")
    await expect(slack.message("is it here?")).to_be_visible()
    await slack.say("/ticket nothing")
    await expect(slack.composer).to_have_value("/ticket nothing")  # it was refused, and comes back
    assert pair.app.received == []
    await slack.composer.fill("")
    await installed(pair, BAKERY)
    await expect(install).to_be_hidden()
    await slack.use_shortcut("Ask")
    (shortcut,) = await pair.app.arrive(1)
    assert shortcut.payload["team"]["id"] == BAKERY
    await bakery.get_by_role("button", name="Remove the app").click()
    await expect(install).to_be_visible()
    assert await ugly(slack.page, axe=False) == []


async def test_a_phone_shows_and_ends_a_socket_mode_connection(phone: SlackPage, pair: Pair) -> None:
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
