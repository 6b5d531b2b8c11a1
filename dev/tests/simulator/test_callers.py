"""A foreign page in the same browser gets nothing from the simulator's port."""

import aiohttp
import pytest

from tests.system.slack_app import simulated

JSON = {"Content-Type": "application/json"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


async def test_only_programs_and_its_own_page_are_answered() -> None:
    """DNS rebinding shows in Host. Forms and scripts of other pages show in Origin."""
    async with simulated(hosts=frozenset({"box"})) as slack, aiohttp.ClientSession() as session:
        port = slack.url.rpartition(":")[2]

        async def ask(method: str, path: str, **headers: str) -> int:
            given = {name.replace("_", "-"): value for name, value in headers.items()}
            data = b'{"text": "forged"}' if method == "POST" else None
            async with session.request(method, slack.url + path, headers=given, data=data) as response:
                return response.status

        said = "/control/messages"
        for path in ("/", "/control/state", "/control/feed", "/page/app.js", "/api/api.test", "/livez"):
            for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "", "[::1"):
                assert await ask("GET", path, Host=host) == 403, (path, host)
        for path in (said, "/api/chat.postMessage", "/response/key"):
            assert await ask("POST", path, Host="evil.example", **JSON) == 403
            for origin in ("https://evil.example", "null", "http://127.0.0.1", f"http://127.0.0.1:{port}1"):
                assert await ask("POST", path, Origin=origin, **FORM) == 403, (path, origin)
            for site in ("cross-site", "same-site"):
                assert await ask("POST", path, Sec_Fetch_Site=site, **FORM) == 403
        assert slack.app.received == []

        for host in (f"localhost:{port}", "127.0.0.1", f"[::1]:{port}", "10.1.2.3:80", "box:8090", "BOX"):
            assert await ask("GET", "/control/state", Host=host) == 200, host
        assert await ask("GET", "/", Sec_Fetch_Site="cross-site") == 200
        assert await ask("POST", said, Origin=slack.url, Sec_Fetch_Site="same-origin", **JSON) == 200
        assert await ask("POST", "/api/api.test", **JSON) == 200


@pytest.mark.parametrize("posting", [True, False])
async def test_the_environment_s_secret_is_never_used(monkeypatch: pytest.MonkeyPatch, posting: bool) -> None:
    monkeypatch.setenv("SLACK_SIGNING_SECRET", "real")
    async with simulated(posting=posting) as slack:
        assert (await slack.control.request("GET", "/control/state"))["posting"] is posting
        (event,) = (await slack.control.say("hello", mention=True, wait=True))["events"]
        if posting:
            (received,) = await slack.app.arrive(1)
            assert received.genuine, "it is signed with the demonstration's secret"
        else:
            delivery = await slack.settled(event["id"], "failed")
            assert [attempt["problem"] for attempt in delivery["attempts"]] == ["posting_is_off"]
            assert slack.app.received == []
