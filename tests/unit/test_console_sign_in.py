"""A sign-in leads to the page alone, and its settings must leave assistants a way in."""

from unittest.mock import AsyncMock, MagicMock, Mock

import pytest
from aiohttp import web

from surelane_operator.console.access.access_settings import AccessSettings
from surelane_operator.console.access.sessions import SignInSessions
from surelane_operator.console.access.sign_in import local_path
from surelane_operator.console.access.signing import Signer


def test_a_sign_in_leads_to_the_page_alone() -> None:
    for own in ("/console/events/7?state=failed", "/console", "/console/"):
        assert local_path(own) == own
    for other in (
        *("https://evil.test/console/", "//evil.test/console/", "/\\evil.test", "javascript:alert(1)"),
        *("/console/\\evil.test", "/console/\n/evil.test", "/v1/jobs", "/consoleevil", ""),
        *("/console/sign-in?next=/console/sign-in", "/console/" + "x" * 3000),
    ):
        assert local_path(other) == "/console/", other


def test_sign_in_without_a_token_that_assistants_can_send_is_refused() -> None:
    proxy = {
        "DATABASE_URL": "postgresql://",
        "SURELANE_CONSOLE_SIGN_IN": "proxy",
        "SURELANE_CONSOLE_KEY": "a-key-of-the-page-0123456789",
        "SURELANE_CONSOLE_VIEWER_GROUPS": "*",
        "SURELANE_CONSOLE_PROXY_USER_HEADER": "X-User",
        "SURELANE_CONSOLE_PROXY_ADDRESSES": "10.0.0.7",
    }
    AccessSettings.model_validate(proxy)
    with pytest.raises(ValueError, match="needs SURELANE_API_TOKEN or SURELANE_API_VIEWER_TOKEN for"):
        AccessSettings.model_validate({**proxy, "SURELANE_MCP": "read"})


@pytest.mark.parametrize("limit", ["59s", "12h1s", "0", "soon"])
def test_an_idle_limit_that_is_none_is_refused(limit: str) -> None:
    given = {"DATABASE_URL": "postgresql://", "SURELANE_CONSOLE_IDLE_LIMIT": limit}
    with pytest.raises(ValueError, match=r"between 1m and 12h|is not a duration"):
        AccessSettings.model_validate(given)


def test_with_a_provider_no_shared_token_signs_in_with_slack_itself() -> None:
    token = {
        "DATABASE_URL": "postgresql://",
        "SURELANE_CONSOLE_SIGN_IN": "token",
        "SURELANE_API_TOKEN": "a-token-of-the-operators",
    }
    provider = {"SURELANE_CONSOLE_OIDC_ISSUER": "https://id.example.com"}
    AccessSettings.model_validate(token)
    AccessSettings.model_validate({**token, **provider, "SLACK_API_URL": "http://127.0.0.1:8090/api/"})
    with pytest.raises(ValueError, match="SURELANE_CONSOLE_SIGN_IN=token beside a provider: write oidc"):
        AccessSettings.model_validate({**token, **provider})


async def test_a_session_that_was_signed_out_counts_no_more() -> None:
    used, response = AsyncMock(), web.Response()
    sessions = SignInSessions(Signer("a key"), used, {"viewer": "a token"}, https=False)
    await sessions.begin(Mock(cookies={}), response, "ann", "viewer")
    request = MagicMock(cookies={sessions.cookie: response.cookies[sessions.cookie].value})
    for used.is_unused.return_value in (True, False):
        viewer = await sessions.viewer(request)
        assert (viewer is not None) is used.is_unused.return_value


async def test_the_cookie_is_for_this_host_and_for_https_where_the_page_is() -> None:
    response = web.Response()
    sessions = SignInSessions(Signer("a key"), AsyncMock(), {"viewer": "a token"}, https=True)
    await sessions.begin(Mock(cookies={}), response, "ann", "viewer")
    (cookie,) = response.cookies.values()
    assert cookie.key.startswith("__Host-")
    found = cookie["httponly"], cookie["secure"], cookie["samesite"], cookie["path"]
    assert found == (True, True, "Lax", "/")
