"""Keep the conversations and installs in a file, so that they survive a restart of the simulator."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ValidationError

from surelane_dev.simulator.installs import Grant, Installs
from surelane_dev.simulator.sessions import AgentSession, AgentSessions
from surelane_dev.simulator.workspace.model import Channel, Message
from surelane_service.logs import get_logger

PAUSE = 0.2  # seconds between a change and its write, at least
SHARE = 10  # a write may take a tenth of the time
KEPT = 500  # messages of a channel
GRANTS_KEPT = 200

_log = get_logger("simulator.saved")


class _Room(BaseModel):
    members: set[str]
    messages: list[Message]


class _Grant(BaseModel):
    """A token. After a restart the app still has it, and a removed one must stay refused."""

    token: str
    sort: Literal["bot", "user"]
    team_id: str
    user_id: str
    wide: bool
    scopes: str
    expires_at: float | None
    refresh_token: str | None
    refused: str | None


class _Saved(BaseModel):
    rooms: dict[str, _Room]
    sessions: list[AgentSession] = []
    grants: list[_Grant] = []


class SavedConversations:
    """The conversations of all workspaces and their installs, and the file that keeps them."""

    def __init__(self, path: Path, installs: Installs, sessions: AgentSessions) -> None:
        self._path = path
        self._installs = installs
        self._sessions = sessions
        self._changed = asyncio.Event()
        for workspace in installs.workspaces.values():
            workspace.listeners.append(lambda _: self._changed.set())
        installs.listeners.append(self._changed.set)

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Read the file, and write it after each change for the length of the block."""
        self._read()
        writing = asyncio.create_task(self._write_always())
        try:
            yield
        finally:
            writing.cancel()
            with suppress(asyncio.CancelledError):
                await writing
            if self._changed.is_set():
                self._write()

    def _read(self) -> None:
        try:
            saved = _Saved.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return
        except (OSError, ValidationError) as error:
            told = "the conversations cannot be read; they begin anew"
            _log.warning(told, file=str(self._path), reason=type(error).__name__)
            return
        workspaces = self._installs.workspaces
        for channel in self._channels():
            if (room := saved.rooms.get(channel.id)) is not None:
                channel.members |= room.members
                channel.messages |= {message.ts: message for message in room.messages}
        self._sessions.restore(saved.sessions)
        for grant in saved.grants:
            fields = grant.model_dump(exclude={"token", "team_id"})
            if (workspace := workspaces.get(grant.team_id)) is not None:
                self._installs.restore(grant.token, Grant(workspace=workspace, **fields))

    async def _write_always(self) -> None:
        while True:
            await self._changed.wait()
            await asyncio.sleep(PAUSE)
            self._changed.clear()
            began = time.monotonic()
            self._write()
            await asyncio.sleep((time.monotonic() - began) * SHARE)

    def _write(self) -> None:
        saved = _Saved(
            rooms={channel.id: _room(channel) for channel in self._channels()},
            sessions=self._sessions.all(),
            grants=[_grant(*item) for item in [*self._installs.grants.items()][-GRANTS_KEPT:]],
        )
        fresh = self._path.with_suffix(".new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            fresh.touch(mode=0o600)
            fresh.write_text(saved.model_dump_json())
            fresh.replace(self._path)
        except OSError as error:
            _log.warning("the conversations cannot be written", file=str(fresh), reason=error.strerror)

    def _channels(self) -> Iterator[Channel]:
        for workspace in self._installs.workspaces.values():
            yield from workspace.channels.values()


def _grant(token: str, grant: Grant) -> _Grant:
    fields = {name: getattr(grant, name) for name in _Grant.model_fields.keys() - {"token", "team_id"}}
    return _Grant(token=token, team_id=grant.workspace.team_id, **fields)


def _room(channel: Channel) -> _Room:
    return _Room.model_construct(members=channel.members, messages=list(channel.messages.values())[-KEPT:])
