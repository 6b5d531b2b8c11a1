"""Child processes end on a signal, by a kill if they ignore it, and when we die."""

import asyncio
import signal
import sys

import psutil  # type: ignore[import-untyped]

from surelane_dev.processes import LONGEST_LINE, Child
from tests.processes import until

DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
time.sleep(600)
"""
PARENT = """
import asyncio, sys
from surelane_dev.processes import Child
async def main():
    child = await Child.start("child", sys.executable, "-c", "import time; time.sleep(600)", on_line=print)
    print(child.process.pid, flush=True)
    await child.wait()
asyncio.run(main())
"""


async def start(code: str, lines: list[str]) -> Child:
    return await Child.start("child", sys.executable, "-c", code, on_line=lines.append)


async def test_lines_of_both_streams_arrive_and_one_too_long_does_not_end_the_reading() -> None:
    lines: list[str] = []
    long = f"print('x' * {3 * LONGEST_LINE}); print('after', flush=True)"
    child = await start(f"import sys; {long}; print('err', file=sys.stderr)", lines)
    assert await child.wait() == 0
    assert lines[-2:] == ["after", "err"]


async def test_a_child_that_ignores_the_signal_is_killed() -> None:
    lines: list[str] = []
    child = await start(DEAF, lines)
    await until(lambda: lines, what="the child's first line")
    assert await child.stop(signal.SIGTERM, within=0.2) == -signal.SIGKILL


async def test_stopping_one_that_has_ended_tells_how() -> None:
    child = await start("raise SystemExit(3)", [])
    await child.wait()
    assert await child.stop(signal.SIGTERM, within=1) == 3
    child.kill()


async def test_children_do_not_outlive_a_killed_parent() -> None:
    lines: list[str] = []
    parent = await start(PARENT, lines)
    await until(lambda: lines, what="the grandchild's pid")
    grandchild = psutil.Process(int(lines[0]))
    parent.process.kill()
    await parent.wait()
    await asyncio.to_thread(grandchild.wait, 300)
