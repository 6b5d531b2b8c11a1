"""The command on a terminal of 80 columns, by a pseudo-terminal, and how it follows events."""

import asyncio
import fcntl
import json
import os
import pty
import re
import shlex
import signal
import struct
import sys
import termios
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from rich.cells import cell_len
from typer.testing import CliRunner

from surelane.calls import Connection
from surelane.queue import Queue
from surelane_operator.cli.command import app
from surelane_service.engine import Engine
from tests.processes import clean_environment
from tests.sql.migrations import becomes
from tests.system.operators import fail
from tests.system.test_cli import Command, connection, surelane
from tests.system.test_operator_api import CLICK
from tests.unit.test_endpoints import COMMANDS

__all__ = ["connection", "surelane"]
WIDTH = 80
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Terminal:
    """A command on a pseudo-terminal."""

    def __init__(self, process: asyncio.subprocess.Process, screen: asyncio.StreamReader) -> None:
        self._process = process
        self._screen = screen
        self.raw = ""

    @property
    def lines(self) -> list[str]:
        """What it has written, without control sequences."""
        return _CONTROL.sub("", self.raw).replace("\r", "").splitlines()

    async def until(self, found: Callable[[str], bool]) -> None:
        """Read until the text so far is as wanted."""
        async with asyncio.timeout(60):
            while not found(_CONTROL.sub("", self.raw)):
                self.raw += (await self._screen.read(4096)).decode()

    async def interrupt(self) -> int:
        self._process.send_signal(signal.SIGINT)
        return await self.ended()

    async def ended(self) -> int:
        async with asyncio.timeout(60):
            while part := await self._read():
                self.raw += part
            return await self._process.wait()

    async def _read(self) -> str:
        try:
            return (await self._screen.read(4096)).decode()
        except OSError:  # how Linux says that the other end is closed
            return ""


@asynccontextmanager
async def terminal(database: str, *arguments: str, **env: str) -> AsyncIterator[Terminal]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, WIDTH, 0, 0))
    settings = {**clean_environment(), "TERM": "xterm-256color", "TZ": "UTC", "DATABASE_URL": database, **env}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "surelane_operator.cli", *arguments),
        stdout=theirs,
        stderr=theirs,
        env=settings,
        # A shell in the background ignores Ctrl-C, and its children inherit that.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    os.close(theirs)
    screen = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(screen), os.fdopen(ours, "rb", buffering=0)
    )
    try:
        yield Terminal(process, screen)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        transport.close()


async def test_table_fits_80_columns_in_colour_and_shows_the_end_of_errors(
    surelane: Command, connection: Connection
) -> None:
    key = "Ev0123456789-and-a-very-long-natural-key:1234567890:end"
    identity = await Queue(connection).enqueue("mail", item_key=key)
    await fail(connection, identity, "x" * 300 + "\ncaused by: mailbox [full]")
    await Queue(connection).enqueue("a.kind.with.a.long.name.that.somebody.gave.it", item_key=f"{key}:2")
    async with terminal(surelane.database, "events", "list") as shown:
        assert await shown.ended() == 0
    heading, live, ended, why = shown.lines
    assert heading.split() == ["id", "kind", "status", "tries", "runs", "took", "key"]
    assert all(cell_len(line) <= WIDTH for line in shown.lines), shown.lines
    assert ("…" in live, live.rstrip().endswith(":end:2")) == (True, True)
    assert re.search(r"^\d+ +mail +failed +1 +(now|\d+ \w+ ago) +\d+\.\d\d s +Ev0.*…", ended)
    assert why.endswith("xxx caused by: mailbox [full]")
    assert "\x1b[31m" in shown.raw, "failed is red"


async def test_one_event_fits_80_columns_and_a_file_gets_it_whole(
    surelane: Command, connection: Connection
) -> None:
    payload = {"text": "y" * 200, "lines": list(range(100))}
    identity = await Queue(connection).enqueue("mail", payload, item_key="welcome:" + "ada" * 40)
    await fail(connection, identity, "x" * 300 + "\ncaused by: mailbox [full]")
    async with terminal(surelane.database, "events", "show", str(identity)) as shown:
        assert await shown.ended() == 0
    assert all(cell_len(line) <= WIDTH for line in shown.lines), shown.lines
    assert shown.lines[0] == f"event {identity}  mail  failed"
    said = {line[:14].rstrip(): line[14:] for line in shown.lines if not line.startswith(" ")}
    assert (said["tries"], said["error"].endswith("xxx caused by: mailbox [full]")) == ("1", True)
    assert re.search(r"… \d+ more lines: --json", "\n".join(shown.lines))
    assert shown.lines[-1].split()[1] == "failed"
    whole = (await surelane("events", "show", str(identity), COLUMNS="")).out
    assert ("y" * 200 in whole, "\n      99\n" in whole, "more lines" in whole) == (True, True, False)


async def test_every_table_fits_80_columns(surelane: Command, connection: Connection) -> None:
    long = "a-name-that-is-much-longer-than-any-that-a-person-would-give-to-a-thing-of-theirs-on-purpose"
    identity = await Queue(connection).enqueue(long, item_key=long, enqueued_by=long)
    await Engine(connection).announce_worker(long, [long, "mail"], "1.0.0")
    await surelane("limits", "set", long, "--concurrency", "2")
    await surelane("cron", "set", long, long, "*/5 * * * *", "--time-zone", "America/Argentina/Buenos_Aires")
    await fail(connection, identity, f"{long}\n{long}: the end", worker=long)
    of_event = ("events list", f"events history {long}", f"logs {long}")
    for call in (*of_event, "stats", "limits list", "cron list"):
        shown = await surelane(*call.split(), COLUMNS="80")
        assert shown.code == 0, shown.err
        assert max(map(cell_len, shown.out.splitlines())) <= WIDTH, shown.out
        assert (": the end\n" in shown.out) == (call in of_event), call


async def test_shell_completes_commands_and_kinds(surelane: Command, connection: Connection) -> None:
    await Queue(connection).enqueue("mail")
    for line, found in (("surelane events se", ["search"]), ("surelane kinds pause ma", ["mail"])):
        env = {
            "_SURELANE_COMPLETE": "complete_bash",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(line.split()) - 1),
            "DATABASE_URL": surelane.database,
        }
        done = await asyncio.to_thread(CliRunner().invoke, app, [], env=env, prog_name="surelane")
        assert done.stdout.split() == found


async def test_tail_follows_events_until_ctrl_c(surelane: Command, connection: Connection) -> None:
    queue = Queue(connection)
    await queue.enqueue("before", item_key="old")
    async with terminal(surelane.database, "tail", NO_COLOR="1") as shown:
        await shown.until(lambda text: "old" in text)
        identity = await queue.enqueue("mail", item_key="new")
        await shown.until(lambda text: "pending    mail" in text)
        await fail(connection, identity, "mailbox [full]")
        await shown.until(lambda text: "attempts_exhausted: ValueError" in text)
        assert await shown.interrupt() == 130
    assert "mailbox" not in shown.raw, "an error may quote people"
    assert [line.split()[1:4] for line in shown.lines if line[0].isdigit()] == [
        ["pending", "before", "old"],
        ["pending", "mail", "new"],
        ["failed", "mail", "new"],
    ]
    assert not {"Traceback", "Aborted"} & set(" ".join(shown.lines).split())
    assert "\x1b[3" not in shown.raw


async def test_logs_follow_one_event_until_it_ends(surelane: Command, connection: Connection) -> None:
    identity = await Queue(connection).enqueue("mail", item_key="m")
    following = asyncio.create_task(surelane("logs", "m", "--json"))
    await becomes(connection, "select exists (select from agent.operator_action)")  # its first look
    await fail(connection, identity, "mailbox [full]")
    done = await following
    steps = [json.loads(line)["what"] for line in done.out.splitlines()]
    assert (done.code, steps) == (0, ["enqueued", "failed", "claimed", "failed"])
    assert "ValueError: mailbox [full]" in (await surelane("logs", "m")).out


async def test_clicks_are_found_by_what_people_saw_and_by_their_trigger(
    surelane: Command, connection: Connection
) -> None:
    clicked = await Queue(connection).insert_event(json.dumps(CLICK))
    trigger = CLICK["trigger_id"]
    found, shown, trace, story = await surelane.each(
        "events search Approve api? --json",
        f"events show {trigger} --json",
        f"trace {trigger}",
        f"events history {clicked} --json",
    )
    assert [job["id"] for job in found.json] == [clicked]
    assert (shown.json["id"], story.json["trace"]) == (clicked, trace.out.strip())


def test_every_command_has_json_and_its_keys_are_documented() -> None:
    ours = {
        name: each
        for name, each in COMMANDS.items()
        if not each.callback.__module__.startswith("surelane_dev")
    }
    assert len(ours) > 20
    without = {
        name for name, each in ours.items() if not any("--json" in option.opts for option in each.params)
    }
    texts = {"keys new", "feedback export"}  # a key alone, for $(…), and lines of JSON
    texts |= {"workspaces place", "workspaces hold"}  # lines for router/place, and nothing
    files = {"evals run", "evals collect"}  # --save writes the report as JSON; the cases are YAML
    assert without == texts | files
    page = (Path(__file__).parents[2] / "docs/operating.md").read_text()
    assert {name for name in ours if f"| `{name}`" not in page} == without


async def test_json_has_the_documented_keys(surelane: Command, connection: Connection) -> None:
    page = (Path(__file__).parents[2] / "docs/operating.md").read_text()
    await fail(connection, await Queue(connection).enqueue("mail", item_key="m"), "no")
    calls = (
        *("events list", "events search m", "events why m", "events history m", "events rerun m"),
        *("events signal m go 1", "events cancel m", "kinds pause mail", "kinds resume mail"),
        *("limits set mail --concurrency 2", "limits list", "limits reset mail"),
        *("cron set nightly mail '0 3 * * *'", "cron list", "cron delete nightly"),
        *("stats", "enqueue mail", "orchestrate goal", "trace m"),
    )
    for call in calls:
        group, *words = call.split()
        name = f"{group} {words[0]}" if group in ("events", "kinds", "limits", "cron") else group
        printed = (await surelane(*shlex.split(call), "--json")).json
        keys = set(printed[0] if isinstance(printed, list) else printed)
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{name}`")]
        said = row.split("|")[2].partition(": each")[0].partition("; with")[0]
        documented = set(re.findall(r"`([a-z_]+)`", said.replace("as `events list`", "")))
        documented |= {"workers"} if name == "stats" else set()
        assert documented <= keys, name
        assert keys <= documented or "and more" in row, (name, keys - documented)
