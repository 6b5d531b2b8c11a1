"""Put single faults into the sources, and say which tier of tests finds each, after how long.

A fault that a tier finds is not tried on the later ones. A test counts only if it passes without the fault.
"""

import argparse
import asyncio
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.databases import MEMORY, SERVER, memory_is_free, running_server
from tests.mutants.table import MUTANTS, Mutant
from tests.mutants.tree import ROOT, copied, environment

TIERS = ("everyday", "simulation", "rest")
EVERYDAY = (
    "tests/unit/",
    "tests/sql/",
    "tests/fleet/",
    "tests/promises/",
    *(f"extensions/{found.name}/tests/unit/" for found in (ROOT / "extensions").iterdir()),
    "dev/tests/unit/",
)
TOOLS = ("container", "browser", "chaos", "cluster", "simulation", "soak", "fuzz", "telemetry", "packages")
WITHOUT_TOOLS = " and ".join(f"not {mark}" for mark in TOOLS)
RECORDED = "tests/sql/test_migration_release.py"
"""It compares the scripts with what is recorded of them. So it finds every change, which proves nothing."""
MOST_UNSOUND = 3
"""Tests that fail without the fault, too, after which a tier is given up."""
LONGEST = 1200
"""Seconds for one tier."""
HUNG = "a test that ran into its time bound"


class InvalidMutantError(Exception):
    """The sources with this fault cannot be imported or migrated, or no test could be run."""


class Runner:
    """Runs tests on copies of the tree. ``sound``: one without a fault."""

    def __init__(self, given: argparse.Namespace, sound: Path) -> None:
        self._given, self._sound = given, sound
        self._turns = asyncio.Semaphore(given.jobs)
        self._passes: dict[str, bool] = {}

    async def tier(self, mutant: Mutant) -> str | None:
        """Return the first tier that finds a fault, and say which test did."""
        async with self._turns:
            with copied(mutant, self._given.tests_from) as tree:
                for missing in [name for name in mutant.tests if not (tree / name).exists()]:
                    _say(f"note: {mutant.name} names {missing}, which is not there")
                for tier in self._given.tier or TIERS:
                    began = time.monotonic()
                    try:
                        found = await self._finds(tree, mutant, tier)
                    except InvalidMutantError as error:
                        _say(f"INVALID {mutant.name}: {error}")
                        return None
                    if found is not None:
                        _say(
                            f"found  {mutant.name}: by {tier} after {time.monotonic() - began:.0f} s, {found}"
                        )
                        return tier
        _say(f"MISSED {mutant.name}: {mutant.promise}")
        return None

    async def _finds(self, tree: Path, mutant: Mutant, tier: str) -> str | None:
        if tier == "simulation":
            seeds = "--seeds", str(self._given.seeds), "--until-broken"
            code, output = await _ended(tree, "tests.simulation", *seeds)
            return (re.findall(r"^seed \d+.*", output, re.MULTILINE) or [output[-200:]])[0] if code else None
        hints = [name for name in mutant.tests if (tree / name).exists()]
        if tier == "rest":
            return await self._failing(tree, hints)
        whole = [name for name in EVERYDAY if (tree / name).exists()] if self._given.whole else []
        quick = [name for name in hints if name.startswith(EVERYDAY)]
        return await self._failing(tree, quick, " and not slow") or await self._failing(
            tree, whole, " and not slow"
        )

    async def _failing(self, tree: Path, files: Sequence[str], marks: str = "") -> str | None:
        """Return the first test of some files that fails with the fault alone."""
        unsound: list[str] = []
        while files and len(unsound) < MOST_UNSOUND:
            left_out = [f"--deselect={test}" for test in unsound]
            test = await _first_failure(tree, *left_out, "-m", WITHOUT_TOOLS + marks, *files)
            if test is None or test == HUNG or await self._is_sound(test):
                return test
            _say(f"note: without a fault, too, fails {test}")
            unsound.append(test)
        return None

    async def _is_sound(self, test: str) -> bool:
        if test not in self._passes:
            self._passes[test] = await _first_failure(self._sound, test) is None
        return self._passes[test]


async def _first_failure(tree: Path, *given: str) -> str | None:
    options = "-x", "-q", "-n", "0", "--tb=native", f"--ignore={RECORDED}"
    code, output = await _ended(tree, "pytest", *options, *given)
    if "Timeout (>" in output:  # it may end pytest, too
        return HUNG
    migrated = not re.search(
        r"ERROR at setup.*^[\s|E]*surelane_migrations.errors", output, re.DOTALL | re.MULTILINE
    )
    failed = re.search(
        r"^(?:FAILED|ERROR) ((?:tests|dev|extensions)/\S+\.py(?:::.+?)?)(?: - |$)", output, re.MULTILINE
    )
    if code not in (0, 1, 5) or not migrated or (code == 1 and failed is None):
        raise InvalidMutantError(output[-2000:])
    return failed[1] if code == 1 and failed else None


async def _ended(tree: Path, module: str, *given: str) -> tuple[int, str]:
    """Run a module in a copy of the tree. Return its exit code and its output."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *given),
        cwd=tree,
        env=environment(tree),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(LONGEST):
            output, _ = await process.communicate()
    except TimeoutError:
        return 1, f"Timeout (>{LONGEST}.0s)"
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGTERM)
    return process.returncode or 0, output.decode(errors="replace")


async def _try_all(given: argparse.Namespace) -> int:
    mutants = [MUTANTS[name] for name in given.mutant or MUTANTS]
    async with running_server() as server:
        os.environ[SERVER] = server.admin
        with copied(None, given.tests_from) as sound:
            runner = Runner(given, sound)
            found = await asyncio.gather(*(runner.tier(mutant) for mutant in mutants))
    counts = {tier: found.count(tier) for tier in TIERS}
    quick, all_found = counts["everyday"] + counts["simulation"], sum(counts.values())
    _say(f"{len(mutants)} faults: {all_found} found, {quick} of them by everyday or simulation ({counts})")
    return 0 if all_found == len(mutants) else 1


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Return 1 if a fault was missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--list", action="store_true", help="show the faults")
    parser.add_argument("--mutant", action="append", choices=MUTANTS, metavar="NAME", help="only this one")
    parser.add_argument("--tier", action="append", choices=TIERS, help="only this tier")
    parser.add_argument(
        "--whole", action="store_true", help="all of the everyday suite, not the hinted files alone"
    )
    parser.add_argument("--seeds", type=int, default=60, help="of the simulation (default: %(default)s)")
    parser.add_argument(
        "--jobs", type=int, default=1, choices=(1, 2), help="faults at once (default: %(default)s)"
    )
    parser.add_argument(
        "--tests-from", type=Path, default=ROOT, metavar="DIR", help="a checkout with other tests"
    )
    given = parser.parse_args()
    if given.list:
        for mutant in MUTANTS.values():
            _say(f"{mutant.name}: {mutant.promise} ({', '.join(edit.file for edit in mutant.edits)})")
        return 0
    if "TMPDIR" not in os.environ and memory_is_free():
        os.environ["TMPDIR"], tempfile.tempdir = str(MEMORY), None
    given.tests_from = given.tests_from.resolve()
    return asyncio.run(_try_all(given))


if __name__ == "__main__":
    sys.exit(main())
