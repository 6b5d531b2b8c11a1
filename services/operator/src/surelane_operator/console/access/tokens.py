"""Tokens: programs send one with each request, and people type one to sign in."""

import hmac
import json
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping

from aiohttp import hdrs, web

from surelane_operator.console.access.viewer import Role, Viewer

MOST_WRONG = 30
"""Wrong tokens from one address within :data:`WINDOW`; then it is refused."""
WINDOW = 60.0
"""Seconds."""
MOST_ADDRESSES = 1000
"""Addresses that are remembered, at most. The one that was added first goes."""


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

    def __init__(self, tokens: Mapping[Role, str]) -> None:
        """``tokens`` has the token of each role."""
        self._roles = {token.encode(): role for role, token in tokens.items()}
        self._wrong = WrongTokens()

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

    async def viewer(self, request: web.Request) -> Viewer | None:
        """Return who sends a bearer token."""
        scheme, _, token = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        role = self.role(request, token)
        return None if role is None else Viewer(f"{role} token", role, "")
