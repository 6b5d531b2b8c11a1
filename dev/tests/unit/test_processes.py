"""Child processes end on a signal, by a kill if they ignore it, and when we die; their lines are readable."""

import asyncio
import json
import os
import signal
import subprocess
import sys

import psutil  # type: ignore[import-untyped]
import pytest

from surelane_dev.output import Output
from surelane_dev.processes import LONGEST_LINE, ChildProcess
from tests.processes import until

DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
time.sleep(600)
"""
PARENT = """
import asyncio, sys
from surelane_dev.processes import ChildProcess
async def main():
    child = await ChildProcess.start("child", sys.executable, "-c", "import time; time.sleep(600)", on_line=print)
    print(child.process.pid, flush=True)
    await child.wait()
asyncio.run(main())
"""


async def start(code: str, lines: list[str]) -> ChildProcess:
    return await ChildProcess.start("child", sys.executable, "-c", code, on_line=lines.append)


async def test_lines_of_both_streams_arrive_and_one_too_long_does_not_end_the_reading() -> None:
    lines: list[str] = []
    long = f"print('x' * {3 * LONGEST_LINE}); print('after', flush=True)"
    child = await start(f"import sys; {long}; print('err', file=sys.stderr)", lines)
    assert await child.wait() == 0
    assert lines[-2:] == ["after", "err"]


async def test_a_child_that_ignores_the_signal_is_killed_and_one_that_has_ended_tells_how() -> None:
    lines: list[str] = []
    child = await start(DEAF, lines)
    await until(lambda: lines, what="the child's first line")
    assert await child.stop(signal.SIGTERM, within=0.2) == -signal.SIGKILL
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


FAILING = """
import structlog
from surelane_service.logs import configure_logs, get_logger
configure_logs("surelane-worker")
try:
    try:
        secret = "xoxb-secret"
        1 / 0
    except ZeroDivisionError as error:
        raise RuntimeError("no answer") from error
except RuntimeError:
    get_logger("surelane.test").exception("handler failed", attempt=2)
"""


def test_a_record_is_one_readable_line_with_colours_where_asked(capsys: pytest.CaptureFixture[str]) -> None:
    record = {"event": "stopped", "level": "info", "timestamp": "2026-01-02T03:04:05.678Z", "attempt": 2}
    line = Output(colours=False).readable(json.dumps({**record, "service": "surelane-worker"}))
    assert ".678 [info" in line
    assert line.endswith("stopped attempt=2")
    for other in ("Traceback (most recent call last):", "[1, 2]", '{"a": 1}', ""):
        assert Output(colours=False).readable(other) == other
    Output(colours=True).of("worker")("hello")
    Output(colours=False).of("worker")("hello")
    coloured, plain = capsys.readouterr().out.splitlines()
    assert coloured.startswith("\x1b[33mworker")
    assert plain == "worker     hello"


def test_a_traceback_of_a_service_survives(capsys: pytest.CaptureFixture[str]) -> None:
    run = subprocess.run([sys.executable, "-c", FAILING], capture_output=True, text=True, check=True)
    Output(colours=False).of("worker")(run.stdout.strip())
    shown = capsys.readouterr().out
    assert all(line.startswith("worker     ") for line in shown.splitlines())
    assert shown.index("ZeroDivisionError\n") < shown.index("RuntimeError\n")
    assert "no answer" not in run.stdout, "messages may quote what people wrote"
    assert 'File "<string>", line 8, in <module>' in shown
    assert "handler failed" in shown
    assert "xoxb-secret" not in run.stdout


def test_a_terminal_that_went_away_is_survived() -> None:
    code = "from surelane_dev.output import Output; out = Output(); out.say('hello'); out.say('again')"
    reading, writing = os.pipe()
    os.close(reading)
    run = subprocess.run([sys.executable, "-c", code], stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (run.returncode, run.stderr) == (0, b"")
