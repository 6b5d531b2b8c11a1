"""Install, fill and run graphile-worker, a program for Node that npm installs on demand.

Its performance page has the preset of its highest rate: 24 concurrent jobs on a pool of 25 connections. A local queue
fetches 500 jobs at once, and completions go in batches. Finished jobs are deleted, as by default.
"""

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path

from benchmarks.fill import PAYLOAD_BYTES
from benchmarks.peers.missing import MissingError

FOLDER = Path(__file__).resolve().parents[1] / "graphile"
RUNNER = FOLDER / "runner.mjs"
PACKAGE = "graphile-worker"
VERSION: str = json.loads((FOLDER / "package.json").read_text())["dependencies"][PACKAGE]
INSTALLED = FOLDER / "node_modules" / PACKAGE / "package.json"
NPM_INSTALL = ("npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts")
NPM_WITHIN = 120.0

SETTINGS = (
    f"{VERSION}, the preset of its performance page (a pool of one connection more than jobs, completions in"
    " batches), finished jobs deleted, so timed from its first job's start to its worker's end"
)
TUNINGS = [{"concurrentJobs": 24, "localQueue": 500}]
SPAN = """
    select extract(epoch from max(at) - min(at))::float8
    , pg_sequence_last_value(pg_get_serial_sequence('graphile_worker._private_jobs', 'id')::regclass)
        - (select count(*) from graphile_worker._private_jobs)
    from bench_moment
"""


async def prepare(installed: Path = INSTALLED) -> None:
    """Install it with npm, once.

    Raises:
        MissingError: there is no Node or npm, or npm could not install it.
    """
    if not (shutil.which("node") and shutil.which("npm")):
        raise MissingError("there is no Node with npm on this machine")
    if _is_installed(installed):
        return
    try:
        async with asyncio.timeout(NPM_WITHIN):
            await _call(*NPM_INSTALL)
    except (RuntimeError, TimeoutError) as error:
        print(error, file=sys.stderr)
        raise MissingError(f"npm could not install {PACKAGE} {VERSION}") from error


def _is_installed(metadata: Path) -> bool:
    return metadata.exists() and json.loads(metadata.read_text())["version"] == VERSION


async def install(uri: str) -> None:
    """Create its schema."""
    await _call("node", str(RUNNER), "install", uri)


async def fill(uri: str, count: int) -> None:
    """Enqueue ``count`` jobs."""
    await _call("node", str(RUNNER), "fill", uri, str(count), str(PAYLOAD_BYTES))


async def _call(*command: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *command, cwd=FOLDER, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command[:3])} ended with {process.returncode}:\n{output.decode()}")


if __name__ == "__main__":
    # By default it logs every finished job. Its own benchmark turns that off too.
    os.execvpe("node", ["node", str(RUNNER), *sys.argv[1:]], {**os.environ, "NO_LOG_SUCCESS": "1"})
