"""The person or the program behind a request, and the tokens that programs send and people type."""

import hmac
import json
import time
from collections import OrderedDict
from collections.abc import Mapping

from aiohttp import hdrs, web

from surelane_operator.roles import Role, Viewer
from surelane_service.logs import get_logger

_logger = get_logger(__name__)
EVENT_STREAM = "text/event-stream"
"""What pages and programs accept that follow something."""
CSRF_HEADER = "X-CSRF-Token"
"""The header with which the page proves that a changing request is its own."""
VIEWER = web.RequestKey("viewer", Viewer)
"""The key of a request under which the guard puts its viewer."""


def viewer_of(request: web.Request) -> Viewer:
    return request[VIEWER]


MOST_WRONG = 30
"""Wrong tokens from one address within :data:`WINDOW`; then it is refused."""
WINDOW = 60.0
"""Seconds."""
MOST_ADDRESSES = 1000
"""Most addresses that are remembered. A further one replaces the oldest."""


class ApiTokens:
    """The API's tokens. An address may try few wrong ones."""

    def __init__(self, tokens: Mapping[Role, str]) -> None:
        self._roles = {token.encode(): role for role, token in tokens.items()}
        self._wrong: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def role(self, request: web.Request, token: str) -> Role | None:
        """Return the role of a token that came with a request; ``None``: it is wrong. Too many of these are refused."""
        given = token.strip().encode(errors="surrogateescape")
        found = [role for known, role in self._roles.items() if hmac.compare_digest(given, known)]
        if found:
            return found[0]  # even if somebody else at this address tried many
        self._count_wrong(request.remote or "")
        return None

    async def viewer(self, request: web.Request) -> Viewer | None:
        """Return who sends a bearer token."""
        scheme, _, token = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        role = self.role(request, token)
        return None if role is None else Viewer(f"{role} token", role, "")

    def _count_wrong(self, address: str) -> None:
        now = time.monotonic()
        since, count = self._wrong.get(address, (now, 0))
        if now - since >= WINDOW:
            since, count = now, 0
        if count >= MOST_WRONG:
            if count == MOST_WRONG:
                self._wrong[address] = (since, count + 1)
                _logger.warning("too many wrong tokens: the address is refused for a while", address=address)
            raise web.HTTPTooManyRequests(
                text=json.dumps({"error": "too many wrong tokens came from this address"}),
                content_type="application/json",
                headers={hdrs.RETRY_AFTER: str(int(since + WINDOW - now) + 1)},
            )
        self._wrong[address] = (since, count + 1)
        if len(self._wrong) > MOST_ADDRESSES:
            self._wrong.popitem(last=False)
