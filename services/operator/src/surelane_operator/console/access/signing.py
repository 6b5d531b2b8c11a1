"""Sign the small values of a sign-in, and make the link that signs in. `surelane dev` imports this without a server."""

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import jwt

SIGN_IN = "/console/sign-in"
LINK = SIGN_IN + "/link"
LINK_LASTS = timedelta(minutes=15)
LINKED = "link"
"""The audience of a link's code."""
_ALGORITHM = "HS256"
_ISSUER = "surelane"
_REQUIRED: Any = {"require": ["exp", "aud", "iss", "jti"]}


class Signer:
    """Signs small values that come back from browsers, and reads them."""

    def __init__(self, key: str) -> None:
        """Derive the signing key from ``key``, which may also serve another purpose."""
        self._key = hmac.digest(key.encode(), b"surelane console", hashlib.sha256)

    def sign(self, audience: str, lasts: timedelta, values: Mapping[str, Any]) -> str:
        """Sign ``values`` for an audience; they expire."""
        given = {"jti": secrets.token_urlsafe(18), "iss": _ISSUER, "aud": audience}
        claims = {**values, **given, "exp": datetime.now(UTC) + lasts}
        return self.sign_again(claims)

    def sign_again(self, claims: Mapping[str, Any]) -> str:
        """Sign values that were read, or some of them changed. They expire when the first ones do."""
        return jwt.encode(dict(claims), self._key, _ALGORITHM)

    def read(self, audience: str, text: str) -> dict[str, Any] | None:
        """Return the values; ``None`` where they are forged, expired or for another audience."""
        try:
            claims: dict[str, Any] = jwt.decode(
                text, self._key, [_ALGORITHM], _REQUIRED, audience=audience, issuer=_ISSUER
            )
        except jwt.InvalidTokenError:
            return None
        return claims

    def digest(self, purpose: str, text: str) -> str:
        """Return a keyed digest of ``text``, which shows nothing of it. It is another one for each purpose."""
        return hmac.new(self._key, f"{purpose} {text}".encode(), hashlib.sha256).hexdigest()


def sign_in_link(base: str, token: str) -> str:
    """Return a link that signs in an operator once, within :data:`LINK_LASTS`, while ``token`` is the API's."""
    return f"{base}{LINK}?code={Signer(token.strip()).sign(LINKED, LINK_LASTS, {})}"
