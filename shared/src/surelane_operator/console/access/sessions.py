"""Sessions in signed cookies, and the other small signed values of a sign-in.

All are JWTs under one key. The audience tells them apart, so that none is taken for another.
"""

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import jwt
from aiohttp import web

from surelane_operator.console.access.viewer import Role, Viewer

LASTS = timedelta(hours=12)
"""How long a session lasts."""
_ALGORITHM = "HS256"
_ISSUER = "surelane"
_SESSION = "session"


class Signer:
    """Signs small values that come back from browsers, and reads them."""

    def __init__(self, key: str) -> None:
        """Derive the signing key from ``key``, which may also serve another purpose."""
        self._key = hmac.digest(key.encode(), b"surelane console", hashlib.sha256)

    def sign(self, audience: str, lasts: timedelta, values: Mapping[str, Any]) -> str:
        """Sign ``values`` for an audience; they expire."""
        claims = {**values, "iss": _ISSUER, "aud": audience, "exp": datetime.now(UTC) + lasts}
        return jwt.encode(claims, self._key, _ALGORITHM)

    def read(self, audience: str, text: str) -> dict[str, Any] | None:
        """Return the values; ``None`` where they are forged, expired or for another audience."""
        try:
            claims: dict[str, Any] = jwt.decode(
                text,
                self._key,
                [_ALGORITHM],
                audience=audience,
                issuer=_ISSUER,
                options={"require": ["exp", "aud", "iss"]},
            )
        except jwt.InvalidTokenError:
            return None
        return claims

    def csrf_of(self, name: str) -> str:
        """Return the CSRF token of a person who has no session of ours: a proxy signs them in at each request."""
        return hmac.new(self._key, b"csrf " + name.encode(), hashlib.sha256).hexdigest()


class Sessions:
    """Who is signed in, by their cookie."""

    def __init__(self, signer: Signer, *, https: bool) -> None:
        """``https``: browsers reach the page over HTTPS, so the cookie is for HTTPS alone."""
        self._signer = signer
        self._https = https
        self.cookie = "__Host-surelane" if https else "surelane"
        """The cookie's name. Browsers take ``__Host-`` from this host over HTTPS only."""

    def begin(self, response: web.StreamResponse, name: str, role: Role) -> None:
        """Sign a person in: the answer sets their cookie."""
        values = {"sub": name, "role": role, "csrf": secrets.token_urlsafe(18)}
        self.set(response, self.cookie, self._signer.sign(_SESSION, LASTS, values), LASTS)

    def forget(self, response: web.StreamResponse, name: str) -> None:
        """Delete a cookie."""
        response.del_cookie(name, path="/", secure=self._https, httponly=True, samesite="Lax")

    def viewer(self, request: web.Request) -> Viewer | None:
        """Return who is signed in; ``None`` without a session that holds."""
        claims = self._signer.read(_SESSION, request.cookies.get(self.cookie, ""))
        if claims is None or claims.get("role") not in ("viewer", "operator"):
            return None
        return Viewer(str(claims.get("sub", "")), claims["role"], str(claims.get("csrf", "")))

    def set(self, response: web.StreamResponse, name: str, value: str, lasts: timedelta) -> None:
        """Set a cookie that no script reads.

        ``Lax``, not ``Strict``: a link in Slack to a page of ours shall not ask people to sign in again.
        """
        response.set_cookie(
            name,
            value,
            max_age=int(lasts.total_seconds()),
            path="/",
            secure=self._https,
            httponly=True,
            samesite="Lax",
        )
