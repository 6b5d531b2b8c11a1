"""Run child processes that end with us, each in its own session, and pass on their output."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

LEASH = Path(__file__).with_name("leash.py")
LONGEST_LINE = 2**20

OnLine = Callable[[str], None]


class ChildProcess:
    """A running child process. A callback gets its output line by line."""

    running: ClassVar[set["ChildProcess"]] = set()
    """All children that still run."""

    def __init__(
        self, name: str, process: asyncio.subprocess.Process, on_line: OnLine, killed_by: signal.Signals
    ) -> None:
        self.name = name
        self.process = process
        self._killed_by = killed_by
        self.killed = False
        """Whether we killed it. Its exit code is known a moment later."""
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
        fed: bool = False,
        passed: Collection[int] = (),
        where: Path | None = None,
    ) -> "ChildProcess":
        """Start ``command`` in a session of its own, so that a terminal's Ctrl-C reaches us alone.

        Args:
            on_line: receives standard output and standard error, without line ends.
            env: the whole environment; ``None`` means ours. ``where``: the working directory, in the same way.
            user: the uid (and gid) to run as, for a parent that is root.
            orphaned: the signal that it gets if we are killed before we stop it (Linux only).
            killed_by: the signal that ends it at once; not SIGKILL if that would leave things behind.
            fed: whether standard input takes one line, by ``feed``. It is empty otherwise.
            passed: descriptors that it has, too.
        """
        leash = (sys.executable, "-IS", LEASH, str(int(orphaned)), str(os.getpid()), str(user or ""))
        process = await asyncio.create_subprocess_exec(
            *leash,
            *command,
            env=env,
            cwd=where,
            stdin=asyncio.subprocess.PIPE if fed else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            limit=LONGEST_LINE,
            pass_fds=tuple(passed),
        )
        return cls(name, process, on_line, killed_by)

    def feed(self, line: str) -> None:
        """Write its one line of standard input."""
        if self.process.stdin is not None:
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.close()

    @property
    def exit_code(self) -> int | None:
        """The exit code, or minus the number of the signal that killed it; ``None`` while it runs."""
        return self.process.returncode

    async def wait(self) -> int:
        """Wait for its end and for its last output."""
        code = await self.process.wait()
        await asyncio.wait({self._reader}, timeout=1)  # a grandchild may keep the pipe open
        self._reader.cancel()
        self.running.discard(self)
        return code

    def tell(self, number: signal.Signals) -> None:
        """Send a signal, if it still runs."""
        if self.exit_code is None:
            # Avoid asyncio's `send_signal`: it polls for the exit status, and a watcher waits for that in another
            # thread. If the child has just ended, the watcher finds no status: "Unknown child process pid", code 255.
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    async def stop(self, number: signal.Signals, within: float) -> int:
        """Send a signal, wait for ``within`` seconds, then kill the whole session. Return the exit code."""
        self.tell(number)
        try:
            async with asyncio.timeout(within):
                return await self.wait()
        except TimeoutError:
            self.kill()
            return await self.wait()

    def kill(self) -> None:
        """Kill it and every process that it started."""
        if self.exit_code is None:
            self.killed = True
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
