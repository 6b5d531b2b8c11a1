"""Tokens: programs send one with each request, people type one to sign in, and a link carries a code for one use."""

import hmac
import json
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import timedelta

from aiohttp import hdrs, web

from surelane_operator.console.access.sessions import Signer
from surelane_operator.console.access.viewer import Role, Viewer

MOST_WRONG = 30
"""Wrong tokens from one address within :data:`WINDOW`; then it is refused."""
WINDOW = 60.0
"""Seconds."""
MOST_ADDRESSES = 1000
"""Addresses that are remembered, at most. The one that was added first goes."""
LINK_LASTS = timedelta(minutes=15)
_LINK = "link"


class WrongTokens:
    """Bounds how often an address may try wrong tokens."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._wrong: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def check(self, address: str) -> None:
        """Refuse an address that has tried too many.

        Raises:
            web.HTTPTooManyRequests: it has.
        """
        since, count = self._counted(address)
        if count >= MOST_WRONG:
            raise web.HTTPTooManyRequests(
                text=json.dumps({"error": "too many wrong tokens came from this address"}),
                content_type="application/json",
                headers={hdrs.RETRY_AFTER: str(int(since + WINDOW - self._clock()) + 1)},
            )

    def add(self, address: str) -> None:
        """Count a wrong token."""
        since, count = self._counted(address)
        self._wrong[address] = (since, count + 1)
        if len(self._wrong) > MOST_ADDRESSES:
            self._wrong.popitem(last=False)

    def _counted(self, address: str) -> tuple[float, int]:
        now = self._clock()
        since, count = self._wrong.get(address, (now, 0))
        return (since, count) if now - since < WINDOW else (now, 0)


class Tokens:
    """The API's tokens."""

    def __init__(self, roles: Mapping[str, Role], wrong: WrongTokens | None = None) -> None:
        """``roles`` has the role of each token."""
        self._roles = {token.encode(): role for token, role in roles.items()}
        self._wrong = wrong or WrongTokens()

    def role(self, request: web.Request, token: str) -> Role | None:
        """Return the role of a token that came with a request; ``None`` where it is wrong.

        Raises:
            web.HTTPTooManyRequests: it is wrong, and too many wrong ones came from its address.
        """
        given = token.strip().encode(errors="surrogateescape")
        found = [role for known, role in self._roles.items() if hmac.compare_digest(given, known)]
        if found:
            return found[0]  # even if somebody else at this address tried many
        address = request.remote or ""
        self._wrong.check(address)
        self._wrong.add(address)
        return None

    def viewer(self, request: web.Request) -> Viewer | None:
        """Return who sends a bearer token."""
        scheme, _, token = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        role = self.role(request, token)
        return None if role is None else Viewer(f"{role} token", role, "")


class Once:
    """Remembers, in this process, which values were used until they expire."""

    def __init__(self) -> None:
        self._used: dict[str, float] = {}

    def use(self, value: str, expires: float) -> bool:
        """Return whether a value, which expires at this time of the epoch, is used for the first time."""
        now = time.time()
        self._used = {used: until for used, until in self._used.items() if until > now}
        if value in self._used:
            return False
        self._used[value] = expires
        return True


class Codes:
    """Codes that sign in an operator once, within :data:`LINK_LASTS`, by a link."""

    def __init__(self, signer: Signer) -> None:
        self._signer = signer
        self._once = Once()

    def make(self) -> str:
        """Return a new code."""
        return self._signer.sign(_LINK, LINK_LASTS, {"jti": secrets.token_urlsafe(12)})

    def use(self, code: str) -> bool:
        """Return whether a code holds, the first time only."""
        claims = self._signer.read(_LINK, code)
        if claims is None or not isinstance(claims.get("jti"), str):
            return False
        return self._once.use(claims["jti"], float(claims["exp"]))
