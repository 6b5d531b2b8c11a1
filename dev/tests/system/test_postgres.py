"""The embedded PostgreSQL starts in a directory that an earlier owner left in any state."""

import os
import stat
import sys
from pathlib import Path

import asyncpg
import pytest

from surelane_dev.data_directory import MAJOR, PostgresError, program, server_user, status
from surelane_dev.postgres import embedded
from surelane_dev.processes import ChildProcess
from tests.databases import CRASHABLE
from tests.deploy.commands import run
from tests.processes import clean_environment, until


async def answers(uri: str) -> bool:
    connection = await asyncpg.connect(uri)
    try:
        return await connection.fetchval("select true") is True
    finally:
        await connection.close()


@pytest.fixture(scope="module")
async def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a server's data, from whose half-made one an earlier owner had begun."""
    directory = tmp_path_factory.mktemp("made")
    half_made = directory / f"{MAJOR}.new"
    half_made.mkdir()
    (half_made / "PG_VERSION").write_text(f"{MAJOR}\n")
    async with embedded(directory, on_line=print, settings=CRASHABLE) as server:
        assert await answers(server.uri)
    return directory


async def test_a_server_left_running_is_stopped_first(made: Path) -> None:
    data = made / MAJOR
    options = ("-c", "listen_addresses=", "-c", f"unix_socket_directories={data}")
    leftover = await ChildProcess.start(
        "leftover", program("postgres"), "-D", data, *options, on_line=print, user=server_user(made)
    )
    await until(lambda: status(data) == "ready", within=300, what="the server to be left over")
    async with embedded(made, on_line=print, settings=CRASHABLE) as server:
        await leftover.wait()  # its exit code may be lost: the process that stopped it may have read it first
        assert await answers(server.uri)


async def test_a_pid_that_is_another_program_s_by_now_is_left_alone(made: Path) -> None:
    data = made / MAJOR
    for name in ("postmaster.pid", ".s.PGSQL.5432.lock"):
        (data / name).write_text(f"{os.getpid()}\n{data}\n")
    async with embedded(made, on_line=print, settings=CRASHABLE) as server:
        assert await answers(server.uri)
        with pytest.raises(PostgresError, match="in use by another `surelane dev`"):
            async with embedded(made, on_line=print):
                pass


def test_a_disk_that_takes_no_more_is_said_in_one_line_with_the_directory(tmp_path: Path) -> None:
    """A limit of each file's size stands for the full disk: the server's program meets both in the same place."""
    limited = f"ulimit -f 2000; exec {sys.executable} -m surelane_operator.cli dev"
    env = {**clean_environment(), "SURELANE_DATA_DIR": str(tmp_path / "pg")}
    done = run("sh", "-c", limited, where=tmp_path, env=env, check=False)
    assert done.returncode == 1
    last = done.stdout.splitlines()[-1]
    assert last.startswith(f"PostgreSQL cannot be created in {tmp_path}/pg/18.new: could not "), done.stdout
    assert last.endswith("File too large; make room there, or set SURELANE_DATA_DIR to another directory")


def test_a_directory_half_made_was_made_again_and_only_the_server_s_user_may_enter_it(made: Path) -> None:
    assert [path.name for path in made.iterdir()] == [MAJOR]
    assert stat.S_IMODE((made / MAJOR).stat().st_mode) == 0o700


async def test_a_server_that_does_not_start_and_a_directory_not_made_are_named(
    made: Path, tmp_path: Path
) -> None:
    lines: list[str] = []
    with pytest.raises(PostgresError, match="ended with code 1 instead of starting"):
        async with embedded(made, on_line=lines.append, settings={"shared_buffers": "much"}):
            pass
    assert any("shared_buffers" in line for line in lines)
    occupied = tmp_path / "file"
    occupied.touch()
    with pytest.raises(PostgresError, match=f"SURELANE_DATA_DIR: cannot make {occupied}"):
        async with embedded(occupied, on_line=print):
            pass
