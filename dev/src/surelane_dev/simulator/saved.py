"""Keep the conversations in a file, so that they survive a restart of the simulator."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from pydantic import BaseModel, ValidationError

from surelane_dev.simulator.sessions import Session, Sessions
from surelane_dev.simulator.workspace.model import Channel, Message
from surelane_dev.simulator.workspace.workspace import Workspace
from surelane_service.logs import get_logger

PAUSE = 0.2  # seconds between a change and its write, at least
SHARE = 10  # a write may take a tenth of the time
KEPT = 500  # messages of a channel

_log = get_logger("simulator.saved")


class _Room(BaseModel):
    members: set[str]
    messages: list[Message]


class _Saved(BaseModel):
    rooms: dict[str, _Room]
    sessions: list[Session] = []


class Conversations:
    """The conversations of a workspace, and the file that keeps them."""

    def __init__(self, path: Path, workspace: Workspace, sessions: Sessions) -> None:
        self._path = path
        self._workspace = workspace
        self._sessions = sessions
        self._changed = asyncio.Event()
        workspace.listeners.append(lambda _: self._changed.set())

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
            reason = type(error).__name__
            _log.warning(
                "the conversations cannot be read; they begin anew", file=str(self._path), reason=reason
            )
            return
        for identity, room in saved.rooms.items():
            if (channel := self._workspace.channels.get(identity)) is not None:
                channel.members |= room.members
                channel.messages |= {message.ts: message for message in room.messages}
        self._sessions.restore(saved.sessions)

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
            rooms={channel.id: _room(channel) for channel in self._workspace.channels.values()},
            sessions=self._sessions.all(),
        )
        fresh = self._path.with_suffix(".new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            fresh.touch(mode=0o600)
            fresh.write_text(saved.model_dump_json())
            fresh.replace(self._path)
        except OSError as error:
            _log.warning("the conversations cannot be written", file=str(fresh), reason=error.strerror)


def _room(channel: Channel) -> _Room:
    return _Room.model_construct(members=channel.members, messages=list(channel.messages.values())[-KEPT:])
