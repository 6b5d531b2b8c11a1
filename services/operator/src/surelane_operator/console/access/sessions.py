"""Sessions in signed cookies, the other small signed values of a sign-in, and people whom a trusted proxy names.

All are JWTs; the audience tells them apart. The database keeps the ids that were used, for all replicas.
"""

import ipaddress
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from aiohttp import hdrs, web

from surelane.calls import Calls
from surelane.errors import SurelaneError, described
from surelane_operator.console.access.signing import Signer
from surelane_operator.console.access.viewer import EVENT_STREAM
from surelane_operator.roles import Groups, Role, Viewer
from surelane_service.logs import get_logger

LASTS = timedelta(hours=12)
"""How long a session lasts, at most."""
IDLE = timedelta(minutes=30)
"""How long a session lasts without a request of the person."""
KEPT = web.RequestKey("session", dict[str, Any])
"""The key of a request under which its session is, once it is known to hold."""
_SESSION = "session"
_logger = get_logger(__name__)


class NotKnown(Exception):  # noqa: N818 - named for what happened
    """The database does not say whether a signed value was used, so the value does not count."""


class UsedIds:
    """The signed values that were used, in the database. It raises :class:`NotKnown` where that does not answer."""

    def __init__(self, database: Calls) -> None:
        self._database = database

    async def use(self, claims: Mapping[str, Any]) -> bool:
        """Use a value until it expires. Return whether it was unused."""
        return await self._ask(claims, datetime.fromtimestamp(claims["exp"], UTC))

    async def is_unused(self, claims: Mapping[str, Any]) -> bool:
        """Return whether a value was never used. One indexed read, so nothing is cached, and no use is missed."""
        return await self._ask(claims, None)

    async def _ask(self, claims: Mapping[str, Any], until: datetime | None) -> bool:
        try:
            unused: bool = await self._database.call("use_id", claims["jti"], until)
        except SurelaneError as error:
            _logger.warning("the database does not say who is signed in", **described(error))
            raise NotKnown from error
        return unused


class SignInSessions:
    """Who is signed in, by their cookie."""

    def __init__(
        self, signer: Signer, used: UsedIds, ways: Mapping[Role, str], *, https: bool, idle: timedelta = IDLE
    ) -> None:
        """Read the sessions that ``signer`` has signed, unless a sign-out ``used`` them up.

        ``ways`` says by role what lets people in: a session ends when that is another, or after ``idle`` without
        a request. ``https``: the cookie needs it.
        """
        self.signer, self.used, self._idle = signer, used, idle
        self._ways = {role: signer.digest("way", f"{role} {way}") for role, way in ways.items()}
        # ``Lax``, not ``Strict``: a link in Slack to a page of ours shall not ask people to sign in again.
        self._sort: dict[str, Any] = {"path": "/", "secure": https, "httponly": True, "samesite": "Lax"}
        self.cookie = "__Host-surelane" if https else "surelane"
        """The cookie's name. Browsers take ``__Host-`` from this host over HTTPS only."""

    async def begin(self, request: web.Request, response: web.StreamResponse, name: str, role: Role) -> None:
        """Sign a person in: the answer sets their cookie. The session that the browser had before ends."""
        if (former := self._read(request)) is not None:
            await self.used.use(former)
        values: dict[str, Any] = {"sub": name, "role": role, "way": self._ways[role]}
        values |= {"csrf": secrets.token_urlsafe(18), "idle": self._idles_at()}
        self.set(response, self.cookie, self.signer.sign(_SESSION, LASTS, values), LASTS)

    def forget(self, response: web.StreamResponse, name: str) -> None:
        response.del_cookie(name, **self._sort)

    async def end(self, request: web.Request, response: web.StreamResponse) -> None:
        """Sign a person out: from now on no copy of their cookie counts, on any replica."""
        if (claims := self._read(request)) is not None:
            await self.used.use(claims)
        self.forget(response, self.cookie)

    async def viewer(self, request: web.Request) -> Viewer | None:
        """Return who is signed in; ``None`` without a session that holds."""
        claims = self._read(request)
        if claims is None or not await self.used.is_unused(claims):
            return None
        request[KEPT] = claims
        return Viewer(claims["sub"], claims["role"], claims["csrf"])

    async def keep(self, request: web.Request, response: web.StreamResponse) -> None:
        """Put the end of idleness off, now and then, for ``Application.on_response_prepare``.

        An open page reads a stream by itself, so a stream does not count as the person's.
        """
        claims, by_itself = request.get(KEPT), EVENT_STREAM in request.headers.get(hdrs.ACCEPT, "")
        if claims is None or by_itself or self.cookie in response.cookies:
            return
        later = self._idles_at()
        if later - claims["idle"] >= self._idle.total_seconds() / 10:
            left = datetime.fromtimestamp(claims["exp"], UTC) - datetime.now(UTC)
            kept = web.Response()  # the cookies of ``response`` are among its headers already
            self.set(kept, self.cookie, self.signer.sign_again({**claims, "idle": later}), left)
            response.headers.add(hdrs.SET_COOKIE, kept.cookies[self.cookie].OutputString())

    def _idles_at(self) -> float:
        return (datetime.now(UTC) + self._idle).timestamp()

    def _read(self, request: web.Request) -> dict[str, Any] | None:
        claims = self.signer.read(_SESSION, request.cookies.get(self.cookie, ""))
        if claims is None or claims.get("idle", 0) <= datetime.now(UTC).timestamp():
            return None
        way = self._ways.get(claims["role"])
        return claims if way and claims.get("way") == way else None

    def set(self, response: web.StreamResponse, name: str, value: str, lasts: timedelta) -> None:
        """Set a cookie that no script reads."""
        response.set_cookie(name, value, max_age=int(lasts.total_seconds()), **self._sort)


Network = ipaddress.IPv4Network | ipaddress.IPv6Network
LONGEST_NAME = 200


@dataclass(frozen=True, slots=True)
class ProxyHeaders:
    """People by a proxy's headers, from its ``addresses`` alone: their names, and groups separated by commas."""

    user: str
    groups_header: str | None
    addresses: Sequence[Network]
    groups: Groups
    signer: Signer

    async def viewer(self, request: web.Request) -> Viewer | None:
        """Return whom the proxy names; ``None``: no header came. What does not come from the proxy is forbidden."""
        names = request.headers.getall(self.user, [])
        if not names:
            return None
        if not is_within(request.remote or "", self.addresses):
            raise _forbidden(f"{self.user} is taken from the trusted proxy alone")
        if len(names) > 1 or not names[0].strip() or len(names[0]) > LONGEST_NAME:
            raise _forbidden(f"{self.user} does not name one person")
        name = names[0].strip()
        listed = request.headers.getall(self.groups_header, []) if self.groups_header else []
        groups = {group.strip() for line in listed for group in line.split(",")}
        role = self.groups.role(groups)
        if role is None:
            raise _forbidden(f"{name} is in no group that may see this page")
        return Viewer(name, role, self.signer.digest("csrf", name))


def is_within(address: str, networks: Sequence[Network]) -> bool:
    """Return whether an address is in one of the networks."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped:
        parsed = parsed.ipv4_mapped
    return any(parsed.version == network.version and parsed in network for network in networks)


def _forbidden(error: str) -> web.HTTPForbidden:
    return web.HTTPForbidden(text=json.dumps({"error": error}), content_type="application/json")
