"""Choose the services' ports: from the settings, else the defaults, else free ones."""

import socket
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from surelane.errors import SettingsError


@dataclass(frozen=True)
class Wanted:
    """A port that a service needs."""

    setting: str
    """The variable that sets it."""

    given: int | None
    """Its value: 0 means any free port, ``None`` means that it is not set."""

    default: int


def choose(host: str, wanted: Mapping[str, Wanted]) -> dict[str, int]:
    """Find a free port for each name. Ports that are set come first and do not change.

    Raises:
        SettingsError: a port that is set is in use; the message names its variable.
    """
    chosen: dict[str, int] = {}
    with ExitStack() as held:  # all at once, so that no two get the same
        for name, port in sorted(wanted.items(), key=lambda item: item[1].given is None):
            listener = held.enter_context(_listener(host, port))
            chosen[name] = listener.getsockname()[1]
    return chosen


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
