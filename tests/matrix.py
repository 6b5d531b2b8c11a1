"""Run ``make test-all`` on each supported PostgreSQL and Python that this machine has: ``make matrix``.

The first Python runs it on every server, the others on the embedded one. Each Python gets a clone of the commit, so
what is not committed is not tested. The last lines are a table for ``docs/development.md``. It takes about eight
minutes a row.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.13", "3.11", "3.12", "3.14")
"""The first one is the images'."""
SERVERS = {"embedded": "18", "oldest": "16", "container": "17 with TimescaleDB 2.19"}
"""The versions of the servers that ``SURELANE_TEST_SERVER`` names."""


def main() -> int:
    """Return 1 if a run failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    parser.add_argument("--pythons", nargs="+", default=PYTHONS, help="versions (default: %(default)s)")
    parser.add_argument(
        "--servers", nargs="+", default=list(SERVERS), choices=SERVERS, help="(default: %(default)s)"
    )
    parser.add_argument("--tests", default="", help="a part of the tests, as make test-all TESTS= takes it")
    given = parser.parse_args()
    found = {version: path for version in given.pythons if (path := _python(version))}
    for version in sorted(set(given.pythons) - found.keys()):
        print(f"there is no Python {version}: left out", file=sys.stderr)
    rows, failed = [], False
    for place, (version, path) in enumerate(found.items()):
        with tempfile.TemporaryDirectory(prefix="surelane-matrix-") as directory:
            subprocess.run(["git", "clone", "--quiet", ROOT, directory], check=True)
            for server in given.servers if place == 0 else ["embedded"]:
                code, summary = _run(Path(directory), path, server, given.tests)
                failed |= code != 0
                rows.append(f"| {version} | {SERVERS[server]} | {summary} |")
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()
    print(f"\nOn {datetime.now(UTC):%Y-%m-%d}, commit {commit}:\n")
    print("| Python | PostgreSQL | make test, make rest |\n|---|---|---|")
    print("\n".join(rows))
    return int(failed)


def _python(version: str) -> str | None:
    """Return an interpreter of a version that starts: a version manager's stub may not, but those behind it do."""
    managed = sorted(map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python")))
    for path in (shutil.which(f"python{version}"), *managed):
        if (
            path
            and subprocess.run([path, "-c", "import venv"], capture_output=True, check=False).returncode == 0
        ):
            return path
    return None


def _run(clone: Path, python: str, server: str, tests: str) -> tuple[int, str]:
    """Run the suite with its output shown; return its exit code and pytest's summaries."""
    print(f"\n== {python}, {server}", flush=True)
    some = [f"TESTS={tests}"] if tests else []
    command = ["make", "--no-print-directory", "test-all", f"PYTHON={python}", *some]
    environment = {**os.environ, "SURELANE_TEST_SERVER": server}
    if server != "container":
        environment["DOCKER_HOST"] = "unix:///nonexistent"
    summaries = []
    with subprocess.Popen(
        command, cwd=clone, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            if re.search(r"\d+ (passed|failed|errors?).* in ", line):
                summaries.append(re.sub(r" in [\d.]+s.*", "", line).strip("= \n"))
    return process.returncode, "; ".join(summaries) or f"failed with code {process.returncode}"


if __name__ == "__main__":
    sys.exit(main())
