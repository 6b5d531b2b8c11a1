"""People sign in to the operator's page by a token, a link, a provider or a proxy; forgeries are refused."""

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import aiohttp
import jwt
import pytest
from structlog.testing import capture_logs

from surelane_operator.console.access.sessions import IDLE, LASTS
from surelane_operator.console.access.sign_in import LARGEST_FORM
from surelane_operator.console.access.signing import Signer, sign_in_link
from tests.system.oidc_provider import CLIENT, SECRET, Answers, provider_at
from tests.system.operators import Person, page, person
from tests.system.restartable import restartable

TOKEN, READING = "a-token-of-the-operators", "a-token-that-only-reads"
KEY = "a-key-that-signs-sessions-01"


BY_TOKEN = {
    "SURELANE_CONSOLE_SIGN_IN": "token",
    "SURELANE_API_TOKEN": TOKEN,
    "SURELANE_API_VIEWER_TOKEN": READING,
    "SURELANE_CONSOLE_KEY": KEY,
}


@pytest.fixture(scope="module")
async def by_token(shared_database: str) -> AsyncIterator[str]:
    async with page(shared_database, **BY_TOKEN, SURELANE_MCP="read") as url:
        yield url


async def sign_in(
    someone: Person, token: str = TOKEN, following: str = "", name: str = ""
) -> tuple[int, str]:
    form = {"token": token, "next": following, "name": name}
    return await someone.send("POST", "/console/sign-in", data=form, headers={"Origin": someone.url})


async def test_a_token_signs_in_acts_under_the_persons_name_and_signs_out(by_token: str) -> None:
    async with person(by_token) as ada:
        assert (await ada.send("POST", "/console/"))[0] == 401
        status, where = await ada.get("/console/?a=1&b=2")
        assert (status, where) == (303, "/console/sign-in?next=/console/?a%3D1%26b%3D2")
        status, text = await ada.get(where)
        assert (status, 'value="/console/?a=1&amp;b=2"' in text) == (200, True)
        assert await sign_in(ada, following="/console/?a=1", name="Ada\n Lovelace") == (303, "/console/?a=1")
        assert (await ada.change("POST", "/v1/kinds/sign-in-test/pause"))[0] == 204
        status, text = await ada.get("/v1/actions?target=kind%20sign-in-test&limit=1")
        assert '"who":"Ada Lovelace (operator token)","via":"page"' in text
        assert (await ada.change("POST", "/console/sign-out"))[0] == 200
        assert (await ada.get("/console/"))[0] == 303
        assert (await ada.get("/v1/stats"))[0] == 401
        elsewhere = {"Origin": "http://evil.example"}
        assert (await ada.send("POST", "/console/sign-in", data={"token": TOKEN}, headers=elsewhere))[
            0
        ] == 403


@asynccontextmanager
async def replicas(database: str, *of: dict[str, str]) -> AsyncIterator[list[str]]:
    """Serve the page by two replicas over one database, or by one per settings; yield their addresses."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(page(database, **settings)) for settings in of]


def cookies_of(someone: Person) -> dict[str, str]:
    """Return the header with which a copy of someone's cookies is sent."""
    return {"Cookie": "; ".join(f"{cookie.key}={cookie.value}" for cookie in someone.session.cookie_jar)}


async def test_a_link_signs_in_once_and_signing_out_ends_every_copy_of_the_cookie_on_every_replica(
    shared_database: str,
) -> None:
    async with (
        replicas(shared_database, BY_TOKEN, BY_TOKEN) as (one, other),
        person(one) as ada,
        person(one) as eve,
        person(other) as elsewhere,
    ):
        link, another = sign_in_link(one, TOKEN), sign_in_link(one, "another-key-0123456789")
        assert await ada.get(link) == (303, "/console/")
        for someone, address in ((eve, link), (elsewhere, other + link.removeprefix(one)), (eve, another)):
            assert (await someone.get(address))[0] == 403
            assert (await someone.get("/console/"))[0] == 303
        copied = cookies_of(ada)
        for someone in (eve, elsewhere):
            assert (await someone.get("/console/", headers=copied))[0] == 200
        await sign_in(eve)  # another session of the same token
        assert (await ada.change("POST", "/console/sign-out"))[0] == 200
        for someone in (ada, elsewhere):
            assert (await someone.get("/console/", headers=copied))[0] == 303
            assert (await someone.get("/v1/stats", headers=copied))[0] == 401
            assert (await someone.send("POST", "/console/sign-out", headers=copied))[0] == 401
        assert (await eve.get("/console/"))[0] == 200
    async with page(shared_database, **BY_TOKEN) as restarted, person(restarted) as eve:
        assert (await eve.get("/console/", headers=copied))[0] == 303


async def test_a_session_ends_with_the_token_that_began_it(shared_database: str) -> None:
    other_viewer = {**BY_TOKEN, "SURELANE_API_VIEWER_TOKEN": "another-token-that-reads"}
    no_viewer = {name: value for name, value in BY_TOKEN.items() if name != "SURELANE_API_VIEWER_TOKEN"}
    other_token = {**BY_TOKEN, "SURELANE_API_TOKEN": "another-token-of-operators"}
    demoted = {**other_token, "SURELANE_API_VIEWER_TOKEN": TOKEN}
    async with (
        page(shared_database, **BY_TOKEN) as url,
        person(url) as viewer,
        person(url) as operator,
        person(url) as linked,
    ):
        await sign_in(viewer, READING)
        await sign_in(operator)
        assert (await linked.get(sign_in_link(url, TOKEN)))[0] == 303
        for settings, reads, operates in (
            (BY_TOKEN, True, True),
            (other_viewer, False, True),
            (no_viewer, False, True),
            (other_token, True, False),
            (demoted, False, False),
        ):
            async with page(shared_database, **settings) as later, person(later) as someone:
                for who, holds in ((viewer, reads), (operator, operates), (linked, operates)):
                    status, _ = await someone.get("/v1/stats", headers=cookies_of(who))
                    assert status == (200 if holds else 401), settings
                if not operates:
                    assert (await someone.get(sign_in_link(later, TOKEN)))[0] == 403


async def test_without_the_database_sessions_and_links_are_refused_and_count_again_with_it() -> None:
    async with restartable() as server, page(server.uri(), **BY_TOKEN) as url, person(url) as ada:
        await sign_in(ada)
        csrf = await ada.csrf()
        link = sign_in_link(url, TOKEN)
        await server.stop()
        async with person(url) as eve:
            status, text = await eve.get(link)
            assert (status, "does not answer" in text) == (503, True)
        status, text = await ada.get("/console/events?a=1")
        assert (status, "does not answer" in text) == (503, True)
        assert (await ada.get("/v1/stats"))[0] == 503
        assert (await ada.change("POST", "/console/sign-out", csrf=csrf))[0] == 503
        async with person(url) as script:  # what needs no database is answered, or refused
            for headers, expected in (
                ({"Authorization": f"Bearer {TOKEN}"}, 200),
                ({"Cookie": "surelane=forged"}, 401),
                (cookies_of(ada), 503),
            ):
                assert (await script.get("/v1/openapi.json", headers=headers))[0] == expected
        await server.start()
        async with person(url) as eve:
            assert (await eve.get(link))[0] == 303
        assert (await ada.change("POST", "/console/sign-out"))[0] == 200
        assert (await ada.get("/console/"))[0] == 303


async def test_the_viewers_token_reads_and_changes_nothing(by_token: str) -> None:
    async with person(by_token) as viewer:
        await sign_in(viewer, READING)
        assert (await viewer.get("/v1/stats"))[0] == 200
        for method, path in (
            ("POST", "/v1/kinds/a/pause"),
            ("DELETE", "/v1/cron/a"),
            ("POST", "/v1/jobs/bulk"),
        ):
            assert (await viewer.change(method, path, json={}))[0] == 403
    async with person(by_token) as script:
        bearer = {"Authorization": f"Bearer {READING}"}
        assert (await script.get("/v1/stats", headers=bearer))[0] == 200
        assert (await script.send("POST", "/v1/kinds/a/pause", headers=bearer))[0] == 403


async def test_the_page_changes_with_its_own_csrf_token_alone(by_token: str) -> None:
    async with person(by_token) as ada, person(by_token) as eve:
        await sign_in(ada)
        await sign_in(eve)
        own, others, origin = await ada.csrf(), await eve.csrf(), {"Origin": ada.url}
        link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
        for path, status in (("/console/actions", 200), ("/v1/stats", 403)):
            assert (await ada.get(path, headers=link))[0] == status, path
        assert own != others
        for headers, status in (
            ({"X-CSRF-Token": own, **origin}, 204),
            ({"X-CSRF-Token": others, **origin}, 403),
            ({"X-CSRF-Token": own, "Origin": "http://evil.example"}, 403),
            *((headers, 403) for headers in ({}, origin, {"X-CSRF-Token": own})),
        ):
            assert (await ada.send("POST", "/v1/kinds/a/pause", headers=headers))[0] == status, headers


async def test_assistants_are_known_by_a_token_and_never_by_a_session(by_token: str) -> None:
    async with person(by_token) as ada:
        await sign_in(ada)
        for path in ("/mcp", "/mcp/below", "/%6dcp"):
            assert (await ada.change("POST", path))[0] == 401, path
        assert (await ada.get("/mcp"))[0] == 401
        assert (await ada.send("POST", "/mcp", headers={"Authorization": f"Bearer {TOKEN}"}))[0] == 400


async def test_forged_and_expired_cookies_are_no_sessions(by_token: str) -> None:
    sessions = []
    for token in (TOKEN, READING):
        async with person(by_token) as someone:
            await sign_in(someone, token)
            sessions.append(cookies_of(someone)["Cookie"].removeprefix("surelane="))
    head, body, signature = sessions[0].split(".")
    own, viewers = [jwt.decode(each, options={"verify_signature": False}) for each in sessions]
    values = {name: own[name] for name in ("role", "csrf", "way", "idle")} | {"sub": "eve"}
    ours = Signer(KEY)
    async with person(by_token) as eve:
        for cookie, status in (
            (ours.sign("session", LASTS, values), 200),
            (f"{head}.{body}.{signature[::-1]}", 401),
            (f"{head}.{body}.", 401),
            ("eyJhbGciOiJub25lIn0." + body + ".", 401),
            (Signer("another key of sixteen").sign("session", LASTS, values), 401),
            (ours.sign("session", timedelta(seconds=-1), values), 401),
            (ours.sign("state", LASTS, values), 401),
            *((ours.sign("session", LASTS, {**values, "role": role}), 401) for role in ("root", "viewer")),
            (ours.sign("session", LASTS, {**values, "way": viewers["way"]}), 401),
            (ours.sign("session", LASTS, {**values, "idle": time.time() - 1}), 401),
            (ours.sign("session", LASTS, {name: values[name] for name in values if name != "idle"}), 401),
            ("x" * 3000, 401),
        ):
            found, _ = await eve.get("/v1/stats", headers={"Cookie": f"surelane={cookie}"})
            assert found == status, cookie


async def test_a_request_of_a_person_puts_idleness_off_and_neither_a_stream_nor_a_sign_out_does(
    by_token: str,
) -> None:
    async with person(by_token) as ada:
        await sign_in(ada)
        claims = jwt.decode(
            cookies_of(ada)["Cookie"].removeprefix("surelane="), options={"verify_signature": False}
        )
        assert IDLE.total_seconds() - 5 < claims["idle"] - time.time() <= IDLE.total_seconds()
        csrf = await ada.csrf()
        nearly = Signer(KEY).sign_again({**claims, "idle": time.time() + 60})
        own = {"Cookie": f"surelane={nearly}", "X-CSRF-Token": csrf, "Origin": ada.url}
        for method, path, accept, kept in (
            ("GET", "/console/", "text/html", True),
            ("GET", "/v1/stats", "*/*", True),
            ("GET", "/console/", "text/event-stream", False),
            ("GET", "/console/static/page.js", "*/*", False),
            ("POST", "/console/sign-out", "*/*", False),
        ):
            headers = {**own, "Accept": accept}
            async with aiohttp.request(
                method, ada.url + path, headers=headers, allow_redirects=False
            ) as response:
                cookie = response.cookies.get("surelane")
                assert bool(cookie and cookie.value) is kept, path
                if kept and cookie:
                    later = jwt.decode(cookie.value, options={"verify_signature": False})
                    assert later["idle"] > claims["idle"] - 1
                    assert {**later, "idle": claims["idle"]} == claims, "the absolute end and the id stay"


async def test_a_new_sign_in_has_another_id_and_ends_the_browsers_former_session(by_token: str) -> None:
    async with person(by_token) as ada, person(by_token) as eve:
        await sign_in(ada)
        former = cookies_of(ada)
        await sign_in(ada)
        assert cookies_of(ada) != former
        assert (await ada.get("/v1/stats"))[0] == 200
        assert (await eve.get("/v1/stats", headers=former))[0] == 401


@pytest.mark.parametrize(
    ("url", "addresses", "forwarded", "told"),
    [
        ("https://surelane.example.com", "", None, True),
        (None, "", "https", False),
        (None, "127.0.0.0/8", "https", True),
        (None, "127.0.0.0/8", "http", False),
        (None, "10.0.0.7", "https", False),
    ],
)
async def test_browsers_are_told_to_use_https_where_the_page_is_served_by_it(
    shared_database: str, url: str | None, addresses: str, forwarded: str | None, told: bool
) -> None:
    settings = {**BY_TOKEN, "SURELANE_CONSOLE_URL": url, "SURELANE_CONSOLE_PROXY_ADDRESSES": addresses}
    headers = {"X-Forwarded-Proto": forwarded} if forwarded else {}
    async with page(shared_database, **settings) as at, aiohttp.ClientSession(headers=headers) as session:
        for path in ("/", "/console/sign-in", "/console/static/page.js", "/v1/stats", "/nowhere"):
            async with session.get(at + path, allow_redirects=False) as response:
                found = response.headers.get("Strict-Transport-Security")
                assert found == ("max-age=31536000; includeSubDomains" if told else None), path
                kept = "no-cache" if "static" in path else "no-store"
                assert response.headers["Cache-Control"] == kept, path
                assert response.headers["X-Content-Type-Options"] == "nosniff"


async def test_what_was_refused_to_whom_and_who_came_in_is_logged(
    by_token: str,
) -> None:
    async with person(by_token) as eve:
        with capture_logs() as lines:
            await sign_in(eve, "wrong")
            await eve.get("/v1/stats", headers={"Authorization": "Bearer wrong"})
            await eve.get("/v1/stats")  # without a token, which is no try
            await sign_in(eve, READING, name="Eve")
            await eve.change("POST", "/v1/kinds/logged/pause")
            await eve.change("POST", "/console/sign-out")
    found = [(line["event"], line.get("status"), line.get("who"), line["address"]) for line in lines]
    assert found == [
        ("request refused", 403, None, "127.0.0.1"),
        ("request refused", 401, None, "127.0.0.1"),
        ("signed in", None, "Eve (viewer token)", "127.0.0.1"),
        ("request refused", 403, "Eve (viewer token)", "127.0.0.1"),
        ("signed out", None, "Eve (viewer token)", "127.0.0.1"),
    ]
    assert "wrong" not in str(lines)
    assert READING not in str(lines)


async def test_a_strangers_form_is_read_up_to_its_bound(by_token: str) -> None:
    async with person(by_token) as eve:
        for size, status in ((LARGEST_FORM // 2, 403), (2 * LARGEST_FORM, 413)):
            assert (await sign_in(eve, "x" * size))[0] == status


async def test_a_wrong_token_is_refused_and_too_many_lock_out_no_right_one(shared_database: str) -> None:
    settings = {"SURELANE_CONSOLE_SIGN_IN": "token", "SURELANE_API_TOKEN": TOKEN}
    async with page(shared_database, **settings) as url, person(url) as eve:
        assert (await sign_in(eve, "wrong"))[0] == 403
        for _ in range(29):
            assert (await eve.get("/v1/stats", headers={"Authorization": "Bearer wrong"}))[0] == 401
        assert (await sign_in(eve, "wrong"))[0] == 429
        assert (await eve.get("/v1/stats", headers={"Authorization": "Bearer wrong"}))[0] == 429
        assert (await eve.get("/v1/stats", headers={"Authorization": f"Bearer {TOKEN}"}))[0] == 200
        assert (await sign_in(eve))[0] == 303
        assert (await eve.get("/livez"))[0] == 200


@pytest.fixture(scope="module")
async def answers() -> AsyncIterator[Answers]:
    async with provider_at() as provider:
        yield provider


def by_provider_at(answers: Answers) -> dict[str, str]:
    return {
        "SURELANE_CONSOLE_SIGN_IN": "oidc",
        "SURELANE_CONSOLE_KEY": KEY,
        "SURELANE_CONSOLE_URL": "http://localhost:1",
        "SURELANE_CONSOLE_OIDC_ISSUER": answers.issuer,
        "SURELANE_CONSOLE_OIDC_CLIENT_ID": CLIENT,
        "SURELANE_CONSOLE_OIDC_CLIENT_SECRET": SECRET,
        "SURELANE_CONSOLE_OPERATOR_GROUPS": "on-call,admins",
        "SURELANE_CONSOLE_VIEWER_GROUPS": "staff",
    }


@pytest.fixture(scope="module")
async def by_provider(shared_database: str, answers: Answers) -> AsyncIterator[str]:
    async with page(shared_database, **by_provider_at(answers)) as url:
        yield url


async def at_provider(someone: Person, following: str = "/console/") -> str:
    """Sign in at the provider; return the address that it sends the browser back to."""
    status, where = await someone.get("/console/sign-in/oidc?" + urlencode({"next": following}))
    assert status == 303, where
    status, back = await someone.get(where)
    assert status == 302, back
    assert back.startswith("http://localhost:1/console/sign-in/oidc/callback?")
    return someone.url + back.removeprefix("http://localhost:1")


async def come_in(someone: Person, following: str = "/console/") -> tuple[int, str]:
    return await someone.get(await at_provider(someone, following))


async def test_a_provider_signs_in_by_groups(by_provider: str, answers: Answers) -> None:
    async with person(by_provider) as ada:
        assert "Sign in with 127.0.0.1" in (await ada.get("/console/sign-in"))[1]
        with answers.saying(
            sub="u-7", email="ada@example.com", email_verified=True, groups=["staff", "on-call"]
        ):
            assert await come_in(ada, "/console/?b=2") == (303, "/console/?b=2")
        assert (await ada.change("POST", "/v1/kinds/oidc-test/pause"))[0] == 204
        _, text = await ada.get("/v1/actions?target=kind%20oidc-test&limit=1")
        assert f'"who":"ada@example.com (u-7 at {answers.issuer})"' in text
    async with person(by_provider) as viewer:
        with answers.saying(groups="staff"):
            assert (await come_in(viewer))[0] == 303
        assert (await viewer.change("POST", "/v1/kinds/oidc-test/resume"))[0] == 403
    async with person(by_provider) as stranger:
        for groups in ({"groups": ["others"]}, {}, {"groups": [["on-call"]]}, {"groups": {"on-call": 1}}):
            with answers.saying(**groups):
                status, text = await come_in(stranger)
            assert status == 403
            assert "in no group" in text
        assert (await stranger.get("/console/"))[0] == 303


SPOILT: list[tuple[str, dict[str, Any]]] = [
    *(
        ("right", claims)
        for claims in (
            {"iss": "https://evil.example"},
            {"aud": "another-client"},
            {"aud": [CLIENT, "another"]},
            {"azp": "another-client"},
            {"sub": "x" * 256},
            {"nonce": "of-another-sign-in"},
            {"nonce": None},
            {"exp": 1},
            {"exp": None},
            {"sub": None},
        )
    ),
    *((signed, {}) for signed in ("none", "HS256 by the secret", "HS256 by the public key", "a foreign key")),
]


@pytest.mark.parametrize(("signed", "claims"), SPOILT, ids=str)
async def test_an_answer_for_somebody_else_or_another_time_or_that_the_provider_did_not_sign_is_refused(
    by_provider: str, answers: Answers, signed: str, claims: dict[str, Any]
) -> None:
    async with person(by_provider) as eve:
        with answers.saying(signed, groups=["admins"], **claims):
            assert (await come_in(eve))[0] == 403
        assert (await eve.get("/console/"))[0] == 303


@pytest.mark.parametrize(
    ("setting", "claims", "comes_in"),
    [
        ("ACR", {"acr": "urn:two"}, True),
        ("ACR", {"acr": "urn:one"}, False),
        ("ACR", {"acr": ["urn:two"]}, False),
        ("ACR", {}, False),
        ("AMR", {"amr": ["pwd", "mfa"]}, True),
        ("AMR", {"amr": ["pwd"]}, False),
        ("AMR", {"amr": "mfa"}, False),
        ("AMR", {}, False),
    ],
    ids=str,
)
async def test_the_provider_must_say_how_the_person_signed_in_where_that_is_asked_for(
    shared_database: str, answers: Answers, setting: str, claims: dict[str, Any], comes_in: bool
) -> None:
    asked = {"ACR": "urn:three,urn:two", "AMR": "mfa,hwk"}[setting]
    settings = {**by_provider_at(answers), f"SURELANE_CONSOLE_OIDC_{setting}": asked}
    async with page(shared_database, **settings) as url, person(url) as ada:
        _, where = await ada.get("/console/sign-in/oidc")
        assert ("acr_values=urn%3Athree+urn%3Atwo" in where) is (setting == "ACR")
        with answers.saying(groups=["admins"], **claims):
            assert (await come_in(ada))[0] == (303 if comes_in else 403)


async def test_a_sign_in_belongs_to_the_browser_that_began_it(by_provider: str, answers: Answers) -> None:
    with answers.saying(groups=["admins"]):
        async with person(by_provider) as eve, person(by_provider) as ada:
            theirs = await at_provider(eve)
            assert (await ada.get(theirs))[0] == 403  # without a sign-in of hers
            mine = await at_provider(ada)
            assert (await ada.get(theirs))[0] == 403  # with the state of another
            codes = [parse_qs(urlsplit(each).query)["code"][0] for each in (mine, theirs)]
            mine = await at_provider(ada)
            state = parse_qs(urlsplit(mine).query)["state"][0]
            for code in (codes[1], "made-up"):  # the code of another: the verifier does not fit
                path = "/console/sign-in/oidc/callback?" + urlencode({"code": code, "state": state})
                assert (await ada.get(path))[0] == 403
            assert (await ada.get("/console/"))[0] == 303


async def test_a_callback_counts_once_on_all_replicas_and_its_session_ends_with_other_settings_or_a_sign_out(
    shared_database: str, answers: Answers
) -> None:
    settings = by_provider_at(answers)
    swapped = {
        "SURELANE_CONSOLE_OPERATOR_GROUPS": "staff",
        "SURELANE_CONSOLE_VIEWER_GROUPS": "on-call,admins",
    }
    with answers.saying(groups=["admins"]):
        async with replicas(shared_database, settings, settings) as (one, other), person(one) as ada:
            for made_up in (False, True):
                back = await at_provider(ada)
                copied = cookies_of(ada)
                state = parse_qs(urlsplit(back).query)["state"][0]
                path = "/console/sign-in/oidc/callback?" + urlencode({"code": "made-up", "state": state})
                assert (await ada.get(path if made_up else back))[0] == (403 if made_up else 303)
                assert (await ada.get(back))[0] == 403
                for url in (one, other):
                    async with person(url) as eve:
                        status, text = await eve.get(url + back.removeprefix(one), headers=copied)
                        assert (status, "used before" in text) == (403, True)
            session = cookies_of(ada)
            for different in (settings | swapped, BY_TOKEN):
                async with page(shared_database, **different) as later, person(later) as eve:
                    assert (await eve.get("/v1/stats", headers=session))[0] == 401
            async with person(other) as eve:
                assert (await eve.get("/v1/stats", headers=session))[0] == 200
                assert (await ada.change("POST", "/console/sign-out"))[0] == 200
                assert (await eve.get("/v1/stats", headers=session))[0] == 401


@pytest.mark.parametrize("verified", [{}, {"email_verified": False}, {"email_verified": "true"}], ids=str)
async def test_a_claim_that_people_choose_does_not_name_them(
    by_provider: str, answers: Answers, verified: dict[str, Any]
) -> None:
    claims = {"email": "boss@example.com", "preferred_username": "boss", "name": "The Boss"}
    async with person(by_provider) as eve:
        with answers.saying(sub="u-8", **claims, **verified):
            status, text = await come_in(eve)
        assert status == 403
        assert f"u-8 at {answers.issuer} is in no group" in text
        assert "boss" not in text


async def test_a_new_key_of_the_provider_is_read_when_it_appears(shared_database: str) -> None:
    async with provider_at() as answers, page(shared_database, **by_provider_at(answers)) as before:
        with answers.saying(groups=["admins"]):
            async with person(before) as ada:
                assert (await come_in(ada))[0] == 303
        read = answers.keys_read
        answers.rotate()
        with answers.saying(groups=["admins"]):
            async with person(before) as ada:
                # The keys were read a moment ago: unknown ones do not make us read them at each request.
                assert (await come_in(ada))[0] == 403
                assert answers.keys_read == read
            anybody = {**by_provider_at(answers), "SURELANE_CONSOLE_OPERATOR_GROUPS": "*"}
            async with page(shared_database, **anybody) as url, person(url) as ada:
                assert (await come_in(ada))[0] == 303


async def test_a_proxy_signs_in_by_its_headers(shared_database: str) -> None:
    settings = {
        "SURELANE_CONSOLE_SIGN_IN": "proxy",
        "SURELANE_CONSOLE_KEY": KEY,
        "SURELANE_CONSOLE_PROXY_USER_HEADER": "X-Forwarded-Email",
        "SURELANE_CONSOLE_PROXY_GROUPS_HEADER": "X-Forwarded-Groups",
        "SURELANE_CONSOLE_PROXY_ADDRESSES": "127.0.0.0/8",
        "SURELANE_CONSOLE_OPERATOR_GROUPS": "on-call",
        "SURELANE_CONSOLE_VIEWER_GROUPS": "staff",
    }
    ada = {"X-Forwarded-Email": "ada@example.com", "X-Forwarded-Groups": "staff, on-call"}
    eve = {"X-Forwarded-Email": "eve@example.com", "X-Forwarded-Groups": "staff"}
    async with page(shared_database, **settings) as url, person(url) as someone:
        assert (await someone.get("/console/"))[0] == 303
        assert "proxy" in (await someone.get("/console/sign-in"))[1]
        someone.headers = ada
        csrf = await someone.csrf()
        assert (await someone.change("POST", "/v1/kinds/proxied/pause", csrf=csrf))[0] == 204
        assert (await someone.change("POST", "/v1/kinds/proxied/pause", csrf="x" * 64))[0] == 403
        someone.headers = eve
        assert (await someone.get("/v1/stats"))[0] == 200
        assert (await someone.change("POST", "/v1/kinds/proxied/pause", csrf=csrf))[0] == 403
        someone.headers = {**ada, "X-Forwarded-Groups": "others"}
        assert (await someone.get("/v1/stats"))[0] == 403
    elsewhere = {**settings, "SURELANE_CONSOLE_PROXY_ADDRESSES": "10.1.2.3"}
    async with page(shared_database, **elsewhere) as url, person(url) as someone:
        someone.headers = ada
        for path in ("/console/", "/v1/stats"):
            assert (await someone.get(path))[0] == 403
