"""Install the app by OAuth: ``/slack/install`` sends a person to Slack, ``/slack/oauth_redirect`` takes them back.

With ``?team=…&user=…`` the person connects an account: Slack is asked for that person's token alone, and the state
names the person. If Slack then names somebody else, nothing is stored.

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
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urljoin

import aiohttp
from aiohttp import web
from slack_sdk.errors import SlackApiError
from slack_sdk.oauth import AuthorizeUrlGenerator, OAuthStateUtils
from slack_sdk.oauth.installation_store import Installation
from slack_sdk.web.async_client import AsyncWebClient

from surelane.codec import Codec, SealedError, SecretKeys
from surelane.errors import SurelaneError, described
from surelane.slack import Payload, object_in, reporter_of
from surelane_ingest.app import RETRY_AFTER, Answering, RequestRefused
from surelane_ingest.envelope import Removed
from surelane_ingest.ingest_settings import IngestSettings
from surelane_ingest.install_pages import HEADERS, INSTALL, SLACK_CLIENT, InstallFailedError, Pages
from surelane_ingest.metrics import IngestMetrics
from surelane_service.installations import Installations, Owner
from surelane_service.logs import get_logger
from surelane_service.service_settings import is_slack

REDIRECT = "/slack/oauth_redirect"
STATE_LIVES = 600
"""Seconds."""
AT_ONCE = 4
"""Redirects that are handled at once."""
SLACK_WITHIN = aiohttp.ClientTimeout(total=10)
_PURPOSE = "oauth state"
_NONCE, _TIME, _SIGNATURE = 16, 8, 32
_WEBHOOK = ("url", "channel", "channel_id", "configuration_url")
_TEAM = re.compile(r"[TE][A-Z0-9]{1,30}", re.ASCII)
_USER = re.compile(r"[UW][A-Z0-9]{1,30}", re.ASCII)
_WORD = re.compile(r"[a-z0-9_]{1,60}", re.ASCII)

Answer = TypeVar("Answer")

_logger = get_logger(__name__)


class Person(NamedTuple):
    """Who is to connect an account: the workspace or organization, and the person's id."""

    owner: str
    user: str

    def check(self, given: Installation) -> None:
        """Raise :class:`InstallFailedError` unless Slack gave this person's token."""
        if given.user_id != self.user or self.owner not in (given.team_id, given.enterprise_id):
            reason = "You are signed in to Slack as somebody else. Ask the bot for a button of your own."
            raise InstallFailedError("other_person", reason, status=403, title="Not connected")
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
        ]

    def _answering(self, answer: Answering) -> Answering:
        async def answering(request: web.Request) -> web.Response:
            try:
                stopping = InstallFailedError("stopping", "This server is stopping. Try again.", status=503)
                response = self._failed(stopping) if self._drain.is_set() else await answer(request)
            except InstallFailedError as error:
                response = self._failed(error)
            self._metrics.answers[request.path, response.status] += 1
            response.force_close()
            return response

        return answering

    async def _install(self, request: web.Request) -> web.Response:
        team, person = request.query.get("team", ""), None
        if "user" in request.query:
            person = Person(team, request.query["user"])
            if not (self._connects and _TEAM.fullmatch(team) and _USER.fullmatch(person.user)):
                raise InstallFailedError("invalid_link", "This link cannot be used.", title="Not connected")
        state = self._states.issue(person)
        authorize = self._authorize if person is None else self._connect
        location = authorize.generate(state, team if _TEAM.fullmatch(team) else None)
        response = web.Response(status=302, headers={**HEADERS, "Location": location})
        cookie = self._cookies.build_set_cookie_for_new_state(state)
        response.headers["Set-Cookie"] = f"{cookie}; SameSite=Lax"
        return response

    async def _redirect(self, request: web.Request) -> web.Response:
        query = request.query
        if "error" in query:
            raise _refused_by_slack(query["error"])
        state = query.get("state", "")
        issued = self._states.read(state)
        if issued is None:
            raise InstallFailedError("invalid_state", "The link is incomplete, or not from this app.")
        headers: dict[str, str | Sequence[str]] = {"cookie": request.headers.getall("Cookie", [])}
        if not self._cookies.is_valid_browser(state, headers):
            raise InstallFailedError("other_browser", "The install was started in another browser.")
        name, ends, person = issued
        if datetime.now(UTC) > ends:
            raise InstallFailedError("expired_state", "The install took longer than ten minutes.")
        code = query.get("code", "")
        if not code:
            raise InstallFailedError("missing_code", "Slack sent no code.")
        if self._turns.locked():
            raise InstallFailedError("busy", "Too many installs run at this moment. Try again.", status=503)
        async with self._turns:
            away = InstallFailedError("database", "Our database does not answer. Try again soon.", status=503)
            if not await self._bounded(self._stored.use_oauth_state(name, ends), away):
                raise InstallFailedError("used_state", "This link has been used. An install needs a new one.")
            installation = await self._exchanged(code)
            if person is not None:
                person.check(installation)
            await self._bounded(self._stored.save(installation), away)
            await self._after(installation)
        owner = installation.enterprise_id if installation.is_enterprise_install else installation.team_id
        what = "the app was installed" if person is None else "an account was connected"
        _logger.info(what, owner=owner, enterprise_wide=installation.is_enterprise_install)
        response = self._pages.success(installation, owner or "", connected=person is not None)
        response.headers["Set-Cookie"] = self._cookies.build_set_cookie_for_deletion()
        return response

    async def _bounded(self, call: Awaitable[Answer], refusal: Exception) -> Answer:
        """Return what a call about installations does. Raise ``refusal`` if the database fails, or takes too long."""
        try:
            async with asyncio.timeout(self._within):
                return await call
        except (SurelaneError, TimeoutError) as error:
            _logger.warning("an installation could not be stored", **described(error))
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
        try:
            async with asyncio.timeout(SLACK_WITHIN.total):
                # oauth_v2_access() uses a class that aiohttp has deprecated.
                fields = {"client_id": self._client_id, "client_secret": self._client_secret, "code": code}
                if self._redirect_uri is not None:
                    fields["redirect_uri"] = self._redirect_uri
                given = await self._client.api_call("oauth.v2.access", data=fields)
                answer = _checked(given.data, self._app_id)
                token = answer.get("access_token")
                tested = object_in((await self._client.auth_test(token=token)).data) if token else {}
        except SlackApiError as error:
            refused = error.response.get("error") if hasattr(error.response, "get") else None
            raise _refused_by_slack(refused) from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            _logger.warning("Slack does not answer an install", error=type(error).__name__)
            raise InstallFailedError(
                "slack_unreachable", "Slack does not answer. Try again soon.", status=502
            ) from None
        installation = installation_of(answer, tested)
        of_workspace = bool(token) and not installation.is_enterprise_install
        if of_workspace and tested.get("team_id") != installation.team_id:
            raise InstallFailedError("other_workspace", "Slack gave a token of another workspace.")
        return installation

    def _failed(self, error: InstallFailedError) -> web.Response:
        level = _logger.info if error.code == "access_denied" else _logger.warning
        level("the app was not installed", reason=error.code)
        response = self._pages.failure(error)
        if error.status == 503:
            response.headers["Retry-After"] = RETRY_AFTER
        return response


def _refused_by_slack(error: object) -> InstallFailedError:
    if error == "access_denied":
        return InstallFailedError("access_denied", "You cancelled the install.", title="Cancelled")
    word = error if isinstance(error, str) and _WORD.fullmatch(error) else "refused"
    return InstallFailedError(word, "Slack refused the install.")


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
