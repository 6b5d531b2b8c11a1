"""HTTP requests to addresses that come from outside: guarded, without redirects, and with a bounded answer.

The guard checks the very addresses that the connection uses, so a name cannot change between check and use.
"""

import ipaddress
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from surelane.errors import SurelaneError

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

LARGEST = 1_000_000
"""The most bytes of an answer that are read."""
LONGEST_PAUSE = 3600.0
"""The most seconds that a ``Retry-After`` counts for."""
TIMEOUT = aiohttp.ClientTimeout(total=30, connect=10)


class PrivateAddressError(SurelaneError):
    """A request would go to an address that is not public."""

    def __init__(self) -> None:
        super().__init__("its address is private")


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer as it came: not decompressed, not parsed."""

    status: int
    encoding: str
    """Its ``Content-Encoding``; ``identity`` where it names none."""
    retry_after: float
    """See :func:`seconds_asked`."""
    body: bytes | bytearray | None
    """``None``: it is larger than :data:`LARGEST`, and the rest was not read."""


class PublicResolver(AbstractResolver):
    """Resolve names, and refuse names that lead to a private address."""

    def __init__(self, allowed: Sequence[Network] = (), trusted: Collection[str] = ()) -> None:
        """Let addresses in ``allowed`` pass, and every address of the hosts in ``trusted``."""
        self._allowed = allowed
        self._trusted = trusted
        self._resolver = aiohttp.ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Resolve a name. :class:`PrivateAddressError`: one of its addresses is not allowed."""
        found = await self._resolver.resolve(host, port, family)
        if host not in self._trusted:
            for result in found:
                check(result["host"], self._allowed)
        return found

    async def close(self) -> None:
        await self._resolver.close()


def guarded_session(
    guard: PublicResolver, *, traces: Sequence[aiohttp.TraceConfig] = (), keep_alive: bool = True
) -> aiohttp.ClientSession:
    """Make a session whose names ``guard`` resolves. It keeps no cookies and decompresses nothing."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(resolver=guard, force_close=not keep_alive),
        timeout=TIMEOUT,
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        trace_configs=list(traces),
    )


async def post(
    session: aiohttp.ClientSession,
    url: str,
    body: bytes,
    headers: dict[str, str],
    *,
    proxy: str | None = None,
) -> Reply:
    """Post JSON and read the answer up to its bound. A redirect is returned, not followed.

    Raises:
        PrivateAddressError: the name leads to an address that the session's guard refuses.
        aiohttp.ClientError, TimeoutError, OSError: there is no answer.
    """
    sent = {"Content-Type": "application/json", "Accept-Encoding": "identity", **headers}
    async with session.post(url, data=body, headers=sent, allow_redirects=False, proxy=proxy) as response:
        return Reply(
            response.status,
            response.headers.get("Content-Encoding", "identity").lower(),
            seconds_asked(response.headers),
            await received(response),
        )


def seconds_asked(headers: Mapping[str, str]) -> float:
    """Return the seconds that a ``Retry-After`` names, or are left until its date; 1 where it names neither."""
    asked = headers.get("Retry-After", "").strip()
    try:
        if asked.replace(".", "", 1).isdecimal():
            seconds = float(asked)
        else:
            seconds = parsedate_to_datetime(asked).timestamp() - time.time()
    except (ValueError, OverflowError):
        return 1.0
    return min(max(seconds, 0.0), LONGEST_PAUSE)


async def received(response: aiohttp.ClientResponse, most: int = LARGEST) -> bytearray | None:
    """Return the body of an answer; ``None``: it has more than ``most`` bytes, and the rest was not read."""
    read = bytearray()
    async for chunk in response.content.iter_chunked(65536):
        read += chunk
        if len(read) > most:
            return None
    return read


def check(address: str, allowed: Sequence[Network]) -> None:
    """Check that an address is public, or in one of the networks ``allowed``. ``ValueError``: it is no address."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv6Address):
        parsed = parsed.ipv4_mapped or parsed.sixtofour or parsed
    if any(parsed.version == network.version and parsed in network for network in allowed):
        return
    local = isinstance(parsed, ipaddress.IPv6Address) and parsed.is_site_local
    if not parsed.is_global or parsed.is_multicast or parsed.is_reserved or local:
        raise PrivateAddressError


def check_literal(url: str, allowed: Sequence[Network]) -> None:
    """Check a URL whose host is an address: it is not resolved, so the guard does not see it."""
    host = URL(url).host or ""
    try:
        check(host, allowed)
    except ValueError:
        return  # a name: the guard checks its addresses
