"""Child processes that cannot outlive us: own session, watched output, a signal, a deadline, then a kill."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

LEASH = Path(__file__).with_name("leash.py")
LONGEST_LINE = 2**20

OnLine = Callable[[str], None]


class Child:
    """A running child process whose output goes to a callback line by line."""

    running: ClassVar[set["Child"]] = set()
    """Every child that has not ended."""

    def __init__(
        self, name: str, process: asyncio.subprocess.Process, on_line: OnLine, killed_by: signal.Signals
    ) -> None:
        self.name = name
        self.process = process
        self._killed_by = killed_by
        self.running.add(self)
        self._reader = asyncio.create_task(self._read(process.stdout, on_line), name=f"output of {name}")

    @classmethod
    async def start(
        cls,
        name: str,
        *command: str | Path,
        on_line: OnLine,
        env: Mapping[str, str] | None = None,
        user: int | None = None,
        orphaned: signal.Signals = signal.SIGTERM,
        killed_by: signal.Signals = signal.SIGKILL,
    ) -> "Child":
        """Start ``command`` in a session of its own, so that a terminal's Ctrl-C reaches us alone.

        Args:
            name: what messages call it.
            command: the program and its arguments.
            on_line: receives standard output and standard error, without line ends.
            env: the whole environment; ours where ``None``.
            user: the uid (and gid) to run as, for a parent that is root.
            orphaned: the signal it gets when we are killed without having stopped it (Linux only).
            killed_by: the signal that ends it at once, where SIGKILL would leave things behind.
        """
        leash = (sys.executable, "-IS", LEASH, str(int(orphaned)), str(os.getpid()), str(user or ""))
        process = await asyncio.create_subprocess_exec(
            *leash,
            *command,
            env=env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            limit=LONGEST_LINE,
        )
        return cls(name, process, on_line, killed_by)

    @property
    def exit_code(self) -> int | None:
        """How it ended; ``None`` while it runs. Negative: the signal that killed it."""
        return self.process.returncode

    async def wait(self) -> int:
        """Wait for its end and for the last of its output."""
        code = await self.process.wait()
        await asyncio.wait({self._reader}, timeout=1)  # a grandchild may hold the pipe open
        self._reader.cancel()
        self.running.discard(self)
        return code

    async def stop(self, number: signal.Signals, within: float) -> int:
        """Send a signal, wait ``within`` seconds, then kill what is left. Return the exit code."""
        if self.exit_code is None:
            # asyncio's own `send_signal` asks for the exit status first, which a watcher waits for in another thread.
            # Of one that has just ended it would take that away: "Unknown child process pid", and the code 255.
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, number)
        try:
            async with asyncio.timeout(within):
                return await self.wait()
        except TimeoutError:
            self.kill()
            return await self.wait()

    def kill(self) -> None:
        """Kill it and everything that it started."""
        if self.exit_code is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, self._killed_by)

    async def _read(self, stream: asyncio.StreamReader | None, on_line: OnLine) -> None:
        while stream is not None:
            try:
                line = await stream.readline()
            except ValueError:
                on_line(f"({self.name} wrote a line of more than {LONGEST_LINE} bytes)")
                continue
            if not line:
                return
            on_line(line.decode(errors="replace").rstrip("\r\n"))
