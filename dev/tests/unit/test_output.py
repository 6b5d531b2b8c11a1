"""`surelane dev` shows readable lines on the terminal."""

import json
import os
import subprocess
import sys

import pytest

from surelane_dev.output import Output

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


def test_a_record_is_one_readable_line() -> None:
    record = {"event": "stopped", "level": "info", "timestamp": "2026-01-02T03:04:05.678Z", "attempt": 2}
    line = Output(colours=False).readable(json.dumps({**record, "service": "surelane-worker"}))
    assert ".678 [info" in line
    assert line.endswith("stopped attempt=2")


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


@pytest.mark.parametrize("line", ["Traceback (most recent call last):", "[1, 2]", '{"a": 1}', ""])
def test_other_lines_stay_as_they_are(line: str) -> None:
    assert Output(colours=False).readable(line) == line


def test_colours_only_where_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    Output(colours=True).of("worker")("hello")
    Output(colours=False).of("worker")("hello")
    coloured, plain = capsys.readouterr().out.splitlines()
    assert coloured.startswith("\x1b[33mworker")
    assert plain == "worker     hello"


def test_a_terminal_that_went_away_is_survived() -> None:
    code = "from surelane_dev.output import Output; out = Output(); out.say('hello'); out.say('again')"
    reading, writing = os.pipe()
    os.close(reading)
    run = subprocess.run([sys.executable, "-c", code], stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (run.returncode, run.stderr) == (0, b"")
