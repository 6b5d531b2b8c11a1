"""Choose the services' ports: from the settings, else the defaults, else free ones. Keep one while processes change."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from surelane.errors import SettingsError


@dataclass(frozen=True)
class Wanted:
    """A port that a service needs."""

    setting: str
    """The variable that sets it."""
    given: int | None
    """Its value: 0 means any free port, ``None`` means that it is not set."""
    default: int


@contextmanager
def opened(host: str, wanted: Mapping[str, Wanted]) -> Iterator[dict[str, socket.socket]]:
    """Listen at a free port for each name, for the block. Ports that are set come first and do not change.

    Raises:
        SettingsError: a port that is set is in use; the message names its variable.
    """
    with ExitStack() as held:
        yield {
            name: held.enter_context(_listener(host, port))
            for name, port in sorted(wanted.items(), key=lambda item: item[1].given is None)
        }


def choose(host: str, wanted: Mapping[str, Wanted]) -> dict[str, int]:
    """Return a free port for each name, as :func:`opened` finds them."""
    with opened(host, wanted) as sockets:
        return ports_of(sockets)


def ports_of(sockets: Mapping[str, socket.socket]) -> dict[str, int]:
    return {name: listener.getsockname()[1] for name, listener in sockets.items()}


def _listener(host: str, port: Wanted) -> socket.socket:
    if port.given is not None:
        try:
            return _listen(host, port.given)
        except OSError as error:
            reason = error.strerror or error
            message = f"{port.setting}: cannot listen on {host}:{port.given}: {reason}; set it to a free port"
            raise SettingsError(message) from None
    try:
        return _listen(host, port.default)
    except OSError:
        return _listen(host, 0)


def _listen(host: str, port: int) -> socket.socket:
    return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)


class Front:
    """A port that stays: it passes connections on to the port of the current process."""

    def __init__(self) -> None:
        self.behind: str | None = None
        """A URL of the current process; ``None``: there is none, so connections are closed."""

    @asynccontextmanager
    async def serving(self, listener: socket.socket) -> AsyncIterator[None]:
        """Pass on for the length of the block."""
        server = await asyncio.start_server(self._pass_on, sock=listener)
        try:
            yield
        finally:
            server.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            behind = urlsplit(self.behind or "")
            there, answer = await asyncio.open_connection(behind.hostname, behind.port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_copy(reader, answer), _copy(there, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(2**16):
            writer.write(data)
            await writer.drain()
    with suppress(OSError):
        writer.close()
