"""Install the app by OAuth: ``/slack/install`` sends a person to Slack, ``/slack/oauth_redirect`` takes them back.

With ``?team=…&user=…`` the person connects an account: Slack is asked for that person's token alone, and the state
names the person. If Slack then names somebody else, nothing is stored. With ``&server=…`` the account is one at an MCP
server, where a worker has begun a login. Slack is asked who the person is, and then the person is sent to that server's
authorization server, which leads back to ``/slack/account``. The worker exchanges the code.

Everybody may ask for these URLs. So ``/slack/install`` costs no database call, a redirect costs one only if it brings a
state that this service signed for the same browser, and few redirects are handled at once. The use of a state is
stored, so that it counts once, on whichever replica.
"""

import asyncio
import base64
import binascii
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlencode, urljoin

import aiohttp
from aiohttp import web
from slack_sdk.errors import SlackApiError
from slack_sdk.oauth import AuthorizeUrlGenerator, OAuthStateUtils, OpenIDConnectAuthorizeUrlGenerator
from slack_sdk.oauth.installation_store import Installation
from slack_sdk.web.async_client import AsyncWebClient
from yarl import URL

from surelane.codec import Codec, SealedError, SecretKeys
from surelane.errors import SurelaneError, described
from surelane.slack import Payload, object_in, reporter_of
from surelane_ingest.app import RETRY_AFTER, Answering, RequestRefused
from surelane_ingest.envelope import Removed
from surelane_ingest.ingest_settings import IngestSettings
from surelane_ingest.install_pages import HEADERS, INSTALL, SLACK_CLIENT, InstallFailedError, Pages
from surelane_ingest.metrics import IngestMetrics
from surelane_service.installations import Installations, Owner, Stored
from surelane_service.logs import get_logger
from surelane_service.service_settings import is_slack

REDIRECT = "/slack/oauth_redirect"
ACCOUNT = "/slack/account"
"""Where a server's authorization server sends people back: beside ``/slack/install``."""
STATE_LIVES = 600
"""Seconds."""
AT_ONCE = 4
"""Redirects that are handled at once."""
SLACK_WITHIN = aiohttp.ClientTimeout(total=10)
_PURPOSE = "oauth state"
_NONCE, _TIME, _SIGNATURE = 16, 8, 32
_WEBHOOK = ("url", "channel", "channel_id", "configuration_url")
_SERVER = re.compile(r"[0-9a-f]{32}", re.ASCII)
_TEAM = re.compile(r"[TE][A-Z0-9]{1,30}", re.ASCII)
_USER = re.compile(r"[UW][A-Z0-9]{1,30}", re.ASCII)
_WORD = re.compile(r"[a-z0-9_]{1,60}", re.ASCII)

Answer = TypeVar("Answer")

_logger = get_logger(__name__)


class Person(NamedTuple):
    """Who is to connect an account: the workspace or organization, and the person's id.

    ``server``: the server whose account it is; empty: Slack. ``version``: of the login there, once Slack has said that
    it is this person.
    """

    owner: str
    user: str
    server: str = ""
    version: str = ""

    @property
    def link(self) -> str:
        """Where the person begins."""
        query = {"team": self.owner, "user": self.user, "server": self.server}
        return f"{INSTALL}?{urlencode({name: value for name, value in query.items() if value})}"

    def check(self, given: Installation) -> None:
        """Raise :class:`InstallFailedError` unless Slack gave this person's token."""
        if given.user_id != self.user or self.owner not in (given.team_id, given.enterprise_id):
            raise _other_person()
        if not given.user_token or given.bot_token:
            raise InstallFailedError("no_user_token", "Slack gave no token for you.", title="Not connected")


class States:
    """The states of installs: issued without a trace, valid for ten minutes."""

    def __init__(self, keys: SecretKeys) -> None:
        self._keys = keys

    def issue(self, person: Person | None = None) -> str:
        ends = int(time.time()) + STATE_LIVES
        body = secrets.token_bytes(_NONCE) + ends.to_bytes(_TIME, "big") + ":".join(person or ()).encode()
        return base64.urlsafe_b64encode(body + self._keys.sign(body, _PURPOSE)).decode().rstrip("=")

    def read(self, state: str) -> tuple[bytes, datetime, Person | None] | None:
        """Return what names a state, when it expires, and for whom it is; ``None`` if this app did not issue it.

        Several texts decode to the same state, so its use is stored under its bytes.
        """
        try:
            raw = base64.urlsafe_b64decode(state + "=" * (-len(state) % 4))
        except (binascii.Error, ValueError):
            return None
        body, signature = raw[:-_SIGNATURE], raw[-_SIGNATURE:]
        name, person = body[: _NONCE + _TIME], body[_NONCE + _TIME :].decode(errors="replace")
        if len(name) != _NONCE + _TIME or not self._keys.signed(body, signature, _PURPOSE):
            return None
        ends = datetime.fromtimestamp(int.from_bytes(name[_NONCE:], "big"), UTC)
        return name, ends, Person(*person.split(":")) if person else None


class Installer:
    """Serves the two URLs of an install. :class:`SettingsError`: the team's own pages cannot be read."""

    def __init__(
        self,
        settings: IngestSettings,
        keys: SecretKeys,
        installations: Installations,
        codec: Codec,
        session: aiohttp.ClientSession,
        drain: asyncio.Event,
        metrics: IngestMetrics,
    ) -> None:
        self._client_id = settings.client_id or ""
        self._client_secret = settings.client_secret.get_secret_value() if settings.client_secret else ""
        self._redirect_uri = settings.redirect_uri
        self._app_id = settings.app_id
        api = settings.slack_api_url
        authorize = settings.authorize_url or urljoin(api, "/oauth/v2/authorize")
        asking = partial(
            AuthorizeUrlGenerator,
            client_id=self._client_id,
            redirect_uri=settings.redirect_uri,
            user_scopes=settings.user_scopes,
            authorization_url=authorize,
        )
        self._authorize, self._connect = asking(scopes=settings.scopes), asking(scopes=())
        self._connects = bool(settings.user_scopes)
        self._sign_in = partial(
            OpenIDConnectAuthorizeUrlGenerator,
            client_id=self._client_id,
            scopes=["openid"],
            authorization_url=urljoin(authorize, "/openid/connect/authorize"),
        )
        self._scheme = "https" if is_slack(authorize) else "http"
        # slack-sdk's retries are off: a code counts once.
        self._client = AsyncWebClient(None, api, session=session, retry_handlers=[])
        self._states, self._cookies = States(keys), OAuthStateUtils(expiration_seconds=STATE_LIVES)
        # A simulator's page takes the id of a workspace as a fragment.
        client = SLACK_CLIENT if is_slack(authorize) else f"{urljoin(authorize, '/')}#"
        self._pages = Pages(settings.install_pages, client)
        self._stored, self._codec = installations, codec
        self._within = settings.database_budget.total_seconds()
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._drain = drain
        self._metrics = metrics

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get(INSTALL, self._answering(self._install), allow_head=False),
            web.get(REDIRECT, self._answering(self._redirect), allow_head=False),
            web.get(ACCOUNT, self._answering(self._account), allow_head=False),
        ]

    def _answering(self, answer: Answering) -> Answering:
        async def answering(request: web.Request) -> web.Response:
            stopping = InstallFailedError("stopping", "This server is stopping. Try again.", status=503)
            try:
                response = self._failed(stopping, None) if self._drain.is_set() else await answer(request)
            except InstallFailedError as error:
                response = self._failed(error, self._states.read(request.query.get("state", "")))
            self._metrics.answers[request.path, response.status] += 1
            response.force_close()
            return response

        return answering

    async def _install(self, request: web.Request) -> web.Response:
        team, person = request.query.get("team", ""), None
        if "user" in request.query:
            person = Person(team, request.query["user"], request.query.get("server", ""))
            known = _SERVER.fullmatch(person.server) if person.server else self._connects
            if not (known and _TEAM.fullmatch(team) and _USER.fullmatch(person.user)):
                raise InstallFailedError("invalid_link", "This link cannot be used.", title="Not connected")
        state = self._states.issue(person)
        if person is not None and person.server:
            location = self._sign_in(redirect_uri=self._back(request)).generate(state, team=team)
        else:
            authorize = self._authorize if person is None else self._connect
            location = authorize.generate(state, team if _TEAM.fullmatch(team) else None)
        return self._sent(location, state)

    def _back(self, request: web.Request) -> str:
        """Return the public address of the redirect, which Slack compares with the app's."""
        return self._redirect_uri or f"{self._scheme}://{request.host}{REDIRECT}"

    def _sent(self, location: str, state: str) -> web.Response:
        """Send a person elsewhere with a state, for this browser alone."""
        response = web.Response(status=302, headers={**HEADERS, "Location": location})
        cookie = self._cookies.build_set_cookie_for_new_state(state)
        response.headers["Set-Cookie"] = f"{cookie}; SameSite=Lax"
        return response

    def _issued(self, request: web.Request) -> tuple[bytes, datetime, Person | None, str]:
        """Return what names the state of a person who comes back, when it expires, for whom it is, and the code."""
        query = request.query
        if "error" in query:
            raise _refused_by("Slack" if request.path == REDIRECT else "The server", query["error"])
        state = query.get("state", "")
        issued = self._states.read(state)
        if issued is None:
            raise _unusable()
        headers: dict[str, str | Sequence[str]] = {"cookie": request.headers.getall("Cookie", [])}
        if not self._cookies.is_valid_browser(state, headers):
            raise InstallFailedError("other_browser", "This was started in another browser.")
        if datetime.now(UTC) > issued[1]:
            raise InstallFailedError("expired_state", "This took longer than ten minutes.")
        code = query.get("code", "")
        if not code:
            raise InstallFailedError("missing_code", "The link has no code.")
        return *issued, code

    @asynccontextmanager
    async def _turn(self, state: bytes, ends: datetime) -> AsyncIterator[None]:
        """Use up a state, and let few redirects be handled at once."""
        if self._turns.locked():
            raise InstallFailedError("busy", "Too many installs run at this moment. Try again.", status=503)
        async with self._turns:
            if not await self._bounded(self._stored.use_oauth_state(state, ends), _away()):
                raise InstallFailedError("used_state", "This link has been used. Begin anew.")
            yield

    async def _redirect(self, request: web.Request) -> web.Response:
        name, ends, person, code = self._issued(request)
        async with self._turn(name, ends):
            if person is not None and person.server:
                return await self._signed_in(person, code, self._back(request))
            installation = await self._exchanged(code)
            if person is not None:
                person.check(installation)
            await self._bounded(self._stored.save(installation), _away())
            await self._after(installation)
        owner = installation.enterprise_id if installation.is_enterprise_install else installation.team_id
        what = "the app was installed" if person is None else "an account was connected"
        _logger.info(what, owner=owner, enterprise_wide=installation.is_enterprise_install)
        return self._ended(self._pages.success(installation, owner or "", connected=person is not None))

    async def _signed_in(self, person: Person, code: str, back: str) -> web.Response:
        """Send a person, who has signed in to Slack, to a server's authorization server."""
        fields = {"client_id": self._client_id, "client_secret": self._client_secret, "code": code}
        async with _asking_slack():
            fields |= {"grant_type": "authorization_code", "redirect_uri": back}
            given = object_in((await self._client.api_call("openid.connect.token", data=fields)).data)
            token = given.get("access_token")
            info = object_in((await self._client.openid_connect_userInfo(token=token)).data)
        named = info.get("https://slack.com/team_id"), info.get("https://slack.com/user_id")
        if named != (person.owner, person.user):
            raise _other_person()
        row, login = await self._login(person)
        state = self._states.issue(person._replace(version=str(row.version)))
        return self._sent(str(URL(login["url"]).update_query(state=state)), state)

    async def _login(self, person: Person) -> tuple[Stored, dict[str, Any]]:
        """Return what is stored of a person's login at a server, if that waits for the person."""
        owner = Owner.at(person.server, person.owner)
        row = (await self._bounded(self._stored.find(owner, person.user), _away())).get(person.user)
        login = {} if row is None else row.values.get("login", {})
        waits = row is not None and "url" in login and "code" not in row.values
        if row is None or not waits or (person.version or str(row.version)) != str(row.version):
            reason = "This link has been used, or a newer one has replaced it. Ask the bot again."
            raise InstallFailedError("used_link", reason, title="Not connected")
        return row, login

    async def _account(self, request: web.Request) -> web.Response:
        """Take the code of a server's authorization server, and wake the turns that wait for it."""
        name, ends, person, code = self._issued(request)
        if person is None or not person.version:
            raise _unusable()
        async with self._turn(name, ends):
            row, login = await self._login(person)
            # RFC 9207: else a server could get the code of another one.
            if request.query.get("iss", "" if login["names_issuer"] else login["issuer"]) != login["issuer"]:
                raise InstallFailedError("other_issuer", "Another server than the one asked has answered.")
            values, now = {**row.values, "code": code}, datetime.now(UTC)
            if not await self._bounded(self._stored.end_refresh(row, row.version, values, now), _away()):
                raise InstallFailedError(
                    "used_link", "A newer link has replaced this one. Ask the bot again."
                )
            with suppress(SurelaneError, TimeoutError):
                await self._bounded(self._stored.wake_connected(person.user), TimeoutError())
        _logger.info("an account at a server was approved", owner=person.owner, server=login["name"])
        page = self._pages.ended("Your account is connected", login["name"], person.owner, self._app_id)
        return self._ended(page)

    def _ended(self, response: web.Response) -> web.Response:
        response.headers["Set-Cookie"] = self._cookies.build_set_cookie_for_deletion()
        return response

    async def _bounded(self, call: Awaitable[Answer], refusal: Exception) -> Answer:
        """Return what a call about installations does. Raise ``refusal`` if the database fails, or takes too long."""
        try:
            async with asyncio.timeout(self._within):
                return await call
        except (SurelaneError, SealedError, TimeoutError) as error:
            _logger.warning("an installation cannot be read or stored", **described(error))
            raise refusal from None

    async def _after(self, stored: Installation) -> None:
        """Wake who waits for the person, and make the workspace's data key for programs, which make none.

        If that fails, the turns look again by themselves, and the workspace's first event makes the key.
        """
        with suppress(SurelaneError, SealedError, TimeoutError):
            async with asyncio.timeout(self._within):
                if stored.user_token:
                    await self._stored.wake_connected(stored.user_id)
                await self._codec.ready(stored.team_id or "")

    async def remove(self, removed: Removed) -> None:
        """Delete the tokens that Slack says are gone. Those of a later install stay. ``RequestRefused``: try again."""
        owner = Owner.of(removed.enterprise_id, removed.team_id, removed.is_enterprise_install)
        if owner is None:
            return
        until = None if removed.at is None else datetime.fromtimestamp(removed.at + 1, UTC)
        if removed.users is None and not removed.from_team:
            call = self._stored.uninstall(owner, removed.enterprise_id, until)
        else:
            call = self._stored.delete(owner, removed.users, until)
        deleted = await self._bounded(call, RequestRefused(503, "tokens are not known to be deleted"))
        _logger.info("tokens of an installation were deleted", owner=owner.identity, rows=deleted)

    async def note_report(self, event_id: int, envelope: Payload) -> None:
        """Note that another installation reported a stored event of a shared channel. ``RequestRefused``: try again."""
        owner = Owner.of(*reporter_of(envelope))
        if owner is not None:
            refusal = RequestRefused(503, "a report is not known to be noted")
            await self._bounded(self._stored.note_report(event_id, owner), refusal)

    async def _exchanged(self, code: str) -> Installation:
        async with _asking_slack():
            # oauth_v2_access() uses a class that aiohttp has deprecated.
            fields = {"client_id": self._client_id, "client_secret": self._client_secret, "code": code}
            if self._redirect_uri is not None:
                fields["redirect_uri"] = self._redirect_uri
            given = await self._client.api_call("oauth.v2.access", data=fields)
            answer = _checked(given.data, self._app_id)
            token = answer.get("access_token")
            tested = object_in((await self._client.auth_test(token=token)).data) if token else {}
        installation = installation_of(answer, tested)
        of_workspace = bool(token) and not installation.is_enterprise_install
        if of_workspace and tested.get("team_id") != installation.team_id:
            raise InstallFailedError("other_workspace", "Slack gave a token of another workspace.")
        return installation

    def _failed(
        self, error: InstallFailedError, issued: tuple[bytes, datetime, Person | None] | None
    ) -> web.Response:
        level = _logger.info if error.code == "access_denied" else _logger.warning
        person = None if issued is None else issued[2]
        level(
            "the app was not installed" if person is None else "no account was connected", reason=error.code
        )
        again = INSTALL if person is None else person.link
        response = self._pages.failure(error, again, "Not installed" if person is None else "Not connected")
        if error.status == 503:
            response.headers["Retry-After"] = RETRY_AFTER
        return response


@asynccontextmanager
async def _asking_slack() -> AsyncIterator[None]:
    """Raise :class:`InstallFailedError` where Slack refuses a call, or does not answer."""
    try:
        async with asyncio.timeout(SLACK_WITHIN.total):
            yield
    except SlackApiError as error:
        refused = error.response.get("error") if hasattr(error.response, "get") else None
        raise _refused_by("Slack", refused) from None
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        _logger.warning("Slack does not answer an install", error=type(error).__name__)
        raise InstallFailedError(
            "slack_unreachable", "Slack does not answer. Try again soon.", status=502
        ) from None


def _away() -> InstallFailedError:
    return InstallFailedError("database", "Our database does not answer. Try again soon.", status=503)


def _unusable() -> InstallFailedError:
    return InstallFailedError("invalid_state", "The link is incomplete, or not from this app.")


def _other_person() -> InstallFailedError:
    reason = "You are signed in to Slack as somebody else. Ask the bot for a button of your own."
    return InstallFailedError("other_person", reason, status=403, title="Not connected")


def _refused_by(who: object, error: object) -> InstallFailedError:
    if error == "access_denied":
        return InstallFailedError("access_denied", "You cancelled.", title="Cancelled")
    word = error if isinstance(error, str) and _WORD.fullmatch(error) else "refused"
    return InstallFailedError(word, f"{who} refused this.")


def _checked(answer: object, app_id: str | None) -> Mapping[str, Any]:
    """Return Slack's answer if it is of this app, and names an owner and a token."""
    if not isinstance(answer, dict):
        raise InstallFailedError("garbled", "Slack's answer cannot be read.", status=502)
    if app_id is not None and answer.get("app_id") != app_id:
        raise InstallFailedError("other_app", "Slack gave a token of another app.")
    owner = answer.get("enterprise") if answer.get("is_enterprise_install") else answer.get("team")
    person = answer.get("authed_user") or {}
    if not (owner or {}).get("id") or not (answer.get("access_token") or person.get("access_token")):
        raise InstallFailedError("garbled", "Slack's answer names no workspace or no token.", status=502)
    return answer


def installation_of(answer: Mapping[str, Any], tested: Mapping[str, Any]) -> Installation:
    """Return an installation from the answers of ``oauth.v2.access`` and, where there is a bot, ``auth.test``."""
    team, enterprise = answer.get("team") or {}, answer.get("enterprise") or {}
    person, webhook = answer.get("authed_user") or {}, answer.get("incoming_webhook") or {}
    wide = bool(answer.get("is_enterprise_install"))
    return Installation(
        app_id=answer.get("app_id"),
        enterprise_id=enterprise.get("id"),
        enterprise_name=enterprise.get("name"),
        enterprise_url=tested.get("url") if wide else None,
        team_id=team.get("id"),
        team_name=team.get("name"),
        bot_token=answer.get("access_token"),
        bot_id=tested.get("bot_id"),
        bot_user_id=answer.get("bot_user_id"),
        bot_scopes=answer.get("scope") or "",
        bot_refresh_token=answer.get("refresh_token"),
        bot_token_expires_in=answer.get("expires_in"),
        user_id=person.get("id") or "",
        user_token=person.get("access_token"),
        user_scopes=person.get("scope") or "",
        user_refresh_token=person.get("refresh_token"),
        user_token_expires_in=person.get("expires_in"),
        **{f"incoming_webhook_{name}": webhook.get(name) for name in _WEBHOOK},
        is_enterprise_install=wide,
        token_type=answer.get("token_type"),
    )
