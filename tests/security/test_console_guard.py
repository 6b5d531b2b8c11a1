"""The guard in front of the operator's page and ``/v1`` lets in who is known, and refuses every forgery."""

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from unittest.mock import AsyncMock

import aiohttp
import pytest
from aiohttp import web

from surelane_operator.audit import current_actor
from surelane_operator.console.access.guard import SIGN_IN, Guard
from surelane_operator.console.access.sessions import LASTS, NotKnown, Sessions, Signer, Used
from surelane_operator.console.access.sign_in import LARGEST_FORM, SignIn
from surelane_operator.console.access.viewer import Role, Tokens, Viewer, viewer_of
from surelane_service.probes import private_app, serving

KEY = "a-key-of-the-page-0123456789"
WAYS: dict[Role, str] = {"viewer": "reads", "operator": "operates"}


class NoneUsed(Used):
    """A database in which no session was signed out, or one that does not answer."""

    answers = True

    def __init__(self) -> None:
        """Need no database."""

    async def is_unused(self, _: object) -> bool:
        if not self.answers:
            raise NotKnown
        return True


class Bearer:
    """One token."""

    async def viewer(self, request: web.Request) -> Viewer | None:
        right = request.headers.get("Authorization") == "Bearer right"
        return Viewer("script", "operator", "") if right else None


class Browser:
    """A browser with a session."""

    def __init__(self, url: str, sessions: Sessions, name: str) -> None:
        response = web.Response()
        sessions.begin(response, name, "operator")
        self.url = url
        self.cookie = response.cookies[sessions.cookie].value
        self.name = sessions.cookie

    async def send(
        self, method: str, path: str, headers: dict[str, str] | None = None, cookie: str | None = None
    ) -> tuple[int, Any]:
        sent = {"Cookie": f"{self.name}={self.cookie if cookie is None else cookie}", **(headers or {})}
        async with (
            aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
            session.request(method, self.url + path, headers=sent, allow_redirects=False) as response,
        ):
            text = await response.text()
            return response.status, response.headers.get("Location") or (json.loads(text) if text else None)

    async def csrf(self) -> str:
        status, who = await self.send("GET", "/v1/who")
        assert status == 200
        return str(who["csrf"])


@pytest.fixture(scope="module")
def used() -> NoneUsed:
    return NoneUsed()


@pytest.fixture(scope="module")
def sessions(used: NoneUsed) -> Sessions:
    return Sessions(Signer(KEY), used, WAYS, https=False)


@pytest.fixture(scope="module")
async def url(sessions: Sessions) -> AsyncIterator[str]:
    async def who(request: web.Request) -> web.Response:
        viewer, actor = viewer_of(request), current_actor()
        told = {"name": viewer.name, "csrf": viewer.csrf, "actor": actor.name, "via": actor.via}
        return web.json_response(told)

    async def way_in(_: web.Request) -> web.Response:
        return web.json_response("open")

    routes = [web.route("*", path, who) for path in ("/v1/who", "/mcp", "/console/")]
    routes.append(web.route("*", "/console/sign-in", way_in))
    guard = Guard(Bearer(), sessions)
    app = private_app(AsyncMock(return_value=None), routes, middlewares=[guard.middleware])
    async with serving(app, 0, setting="none", host="127.0.0.1") as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def browser(url: str, sessions: Sessions) -> Browser:
    return Browser(url, sessions, "ada")


async def test_a_session_reads_and_is_named_and_a_token_changes_too(browser: Browser) -> None:
    status, who = await browser.send("GET", "/console/")
    assert status == 200
    assert (who["name"], who["actor"], who["via"]) == ("ada", "ada", "page")
    status, who = await browser.send("POST", "/v1/who", {"Authorization": "Bearer right"}, cookie="")
    assert status == 200
    assert (who["name"], who["via"]) == ("script", "api")


async def test_without_a_session_the_page_leads_to_the_sign_in(browser: Browser) -> None:
    there = "/console/sign-in?next=/console/?a%3D1%26b%3D2"
    assert await browser.send("GET", "/console/?a=1&b=2", cookie="") == (303, there)
    assert (await browser.send("GET", "/v1/who", cookie=""))[0] == 401
    assert (await browser.send("POST", "/console/", cookie=""))[0] == 401
    assert await browser.send("GET", "/console/sign-in", cookie="") == (200, "open")


async def test_the_page_changes_with_its_csrf_token_alone(browser: Browser, sessions: Sessions) -> None:
    other = await Browser(browser.url, sessions, "eve").csrf()
    own, origin = await browser.csrf(), {"Origin": browser.url}
    assert own != other
    assert (await browser.send("POST", "/v1/who", {"X-CSRF-Token": own, **origin}))[0] == 200
    for headers in ({}, origin, {"X-CSRF-Token": own}, {"X-CSRF-Token": other, **origin}):
        assert (await browser.send("POST", "/v1/who", headers))[0] == 403
    foreign = {"X-CSRF-Token": own, "Origin": "http://evil.example"}
    assert (await browser.send("POST", "/v1/who", foreign))[0] == 403


async def test_assistants_are_known_by_a_token_and_never_by_a_session(browser: Browser) -> None:
    own = {"X-CSRF-Token": await browser.csrf(), "Origin": browser.url}
    for path in ("/mcp", "/mcp/below", "/%6dcp"):
        assert (await browser.send("POST", path, own))[0] == 401, path
    assert (await browser.send("GET", "/mcp"))[0] == 401
    assert (await browser.send("POST", "/mcp", {"Authorization": "Bearer right"}))[0] == 200


async def test_without_an_answer_of_the_database_a_session_is_refused_and_a_token_is_not(
    browser: Browser, used: NoneUsed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(used, "answers", False)
    for method, path in (("GET", "/console/"), ("GET", "/v1/who"), ("POST", "/v1/who")):
        assert (await browser.send(method, path))[0] == 503
    assert (await browser.send("GET", "/v1/who", {"Authorization": "Bearer right"}))[0] == 200
    assert (await browser.send("GET", "/v1/who", cookie="forged"))[0] == 401


async def test_forged_and_expired_cookies_are_no_sessions(browser: Browser) -> None:
    head, body, signature = browser.cookie.split(".")
    reads, operates = (Signer(KEY).digest("way", f"{role} {way}") for role, way in WAYS.items())
    values = {"sub": "eve", "role": "operator", "csrf": "x", "way": operates}
    sent = Signer(KEY).sign("session", LASTS, values)
    assert (await browser.send("GET", "/v1/who", cookie=sent))[0] == 200
    for cookie in (
        f"{head}.{body}.{signature[:-2]}AA",
        f"{head}.{body}.",
        "eyJhbGciOiJub25lIn0." + body + ".",
        Signer("another key of sixteen").sign("session", LASTS, values),
        Signer(KEY).sign("session", timedelta(seconds=-1), values),
        Signer(KEY).sign("state", LASTS, values),
        Signer(KEY).sign("session", LASTS, {**values, "role": "root"}),
        Signer(KEY).sign("session", LASTS, {**values, "role": "viewer"}),
        Signer(KEY).sign("session", LASTS, {**values, "way": reads}),
        "x" * 3000,
    ):
        assert (await browser.send("GET", "/v1/who", cookie=cookie))[0] == 401


def test_the_cookie_is_for_this_host_and_for_https_where_the_page_is() -> None:
    response = web.Response()
    Sessions(Signer(KEY), NoneUsed(), WAYS, https=True).begin(response, "ada", "viewer")
    (cookie,) = response.cookies.values()
    assert cookie.key.startswith("__Host-")
    found = cookie["httponly"], cookie["secure"], cookie["samesite"], cookie["path"]
    assert found == (True, True, "Lax", "/")


async def test_a_strangers_form_is_read_up_to_its_bound(sessions: Sessions) -> None:
    way_in = SignIn(sessions, lambda values: str(values["error"]), {}, tokens=Tokens({"operator": "right"}))
    app = private_app(AsyncMock(return_value=None), way_in.routes())
    async with serving(app, 0, setting="none", host="127.0.0.1") as port, aiohttp.ClientSession() as session:
        for size, status in ((LARGEST_FORM // 2, 403), (2 * LARGEST_FORM, 413)):
            form = {"token": "x" * size}
            async with session.post(f"http://127.0.0.1:{port}{SIGN_IN}", data=form) as response:
                assert response.status == status
