"""Who acts: the name under which the operations of a task are kept."""

import getpass
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal

Via = Literal["page", "api", "command", "mcp", "program"]
"""How an action came: by the operator's page, ``/v1``, the command, an assistant, or another program."""


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts, and how. A program that does not say who acts is named by its database role: its name is empty."""

    name: str
    via: Via


_actor: ContextVar[Actor | None] = ContextVar("surelane_actor", default=None)


@contextmanager
def acting_as(name: str, via: Via) -> Iterator[None]:
    """Keep the operations of this block under a name; tasks that start in it inherit that."""
    token = _actor.set(Actor(name, via))
    try:
        yield
    finally:
        _actor.reset(token)


def current_actor() -> Actor:
    """Return who acts, as :func:`acting_as` says."""
    return _actor.get() or Actor("", "program")


def this_user() -> str:
    """Return ``user@host`` of this process."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container's numeric user has no name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
