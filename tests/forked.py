"""Run our programs as real processes that start with their modules imported.

They are forked from one process that has only imported them, because the start of an interpreter with these imports
takes a second of CPU. Each has a session, an environment and pipes of its own, as after ``python -m``.
"""

import asyncio
import ctypes
import multiprocessing
import os
import runpy
import signal
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess

from surelane_dev.leash import PR_SET_PDEATHSIG
from surelane_dev.processes import LONGEST_LINE

IMPORTED = (
    "surelane_dev.simulator.command",
    "opentelemetry.instrumentation.aiohttp_client",
    "opentelemetry.instrumentation.asyncpg",
    "surelane_ingest.wiring",
    "surelane_migrations.command",
    "surelane_operator.cli.command",
    "surelane_operator.wiring",
    "surelane_worker.builtin",
    "surelane_agents.models.client",
    "surelane_agents.answering",
    "surelane_agents.tools.servers",
    "surelane_worker.wiring",
    "uvloop",
)

_forking = multiprocessing.get_context("forkserver")
_forking.set_forkserver_preload([*IMPORTED, __name__, "tests.frozen"])


class Forked(asyncio.subprocess.Process):
    """A forked program, with the interface of asyncio's processes."""

    def __init__(self, process: ForkServerProcess, *outputs: asyncio.StreamReader) -> None:
        self._process = process
        assert process.pid is not None
        self.pid = process.pid
        self.stdin = None
        self.stdout, self.stderr = outputs if len(outputs) > 1 else (outputs[0], None)
        loop = asyncio.get_running_loop()
        self._ended = loop.create_future()
        loop.add_reader(process.sentinel, self._end)

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    async def wait(self) -> int:
        await asyncio.shield(self._ended)
        code = self.returncode
        assert code is not None
        return code

    async def communicate(self, input: object = None) -> tuple[bytes, bytes]:  # noqa: A002 - asyncio's name
        assert input is None
        outputs = [stream.read() for stream in (self.stdout, self.stderr) if stream]
        first, *second = await asyncio.gather(*outputs)
        await self.wait()
        return first, second[0] if second else b""

    def send_signal(self, signal: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, signal)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._process.sentinel)
        self._ended.set_result(None)


async def start(
    module: str, *arguments: str, env: Mapping[str, str], stderr: bool = False, orphaned: int = signal.SIGTERM
) -> Forked:
    """Start ``python -m module`` with these arguments.

    Args:
        module: a module whose imports are among ``IMPORTED``.
        arguments: the command's.
        env: the whole environment.
        stderr: whether standard error has a pipe of its own instead of standard output's.
        orphaned: the signal that it gets when this process dies.
    """
    streams, ends = zip(*[await _pipe() for _ in range(1 + stderr)], strict=True)
    command = (module, *arguments)
    process = _forking.Process(target=_become, args=(command, dict(env), ends, int(orphaned)), daemon=True)
    process.start()
    for end in ends:
        end.close()
    await streams[0].readexactly(1)  # it has its own session, so that its group can be killed
    return Forked(process, *streams)


async def _pipe() -> tuple[asyncio.StreamReader, Connection]:
    ours, theirs = multiprocessing.Pipe(duplex=False)
    reader = asyncio.StreamReader(limit=LONGEST_LINE)
    read_end = os.fdopen(os.dup(ours.fileno()), "rb")
    ours.close()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), read_end)
    return reader, theirs


def _become(
    command: Sequence[str], env: Mapping[str, str], outputs: Sequence[Connection], orphaned: int
) -> None:
    """Run the program in the forked process."""
    os.setsid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, orphaned)
    os.write(outputs[0].fileno(), b"\n")
    for standard, output in zip((1, 2), (outputs[0], outputs[-1]), strict=True):
        os.dup2(output.fileno(), standard)
    for output in outputs:
        output.close()
    os.environ.clear()
    os.environ.update(env)
    sys.argv = list(command)
    runpy.run_module(command[0], run_name="__main__", alter_sys=True)
