"""Put single faults into the sources, and say which tier of tests finds each, after how long.

A fault that a tier finds is not tried on later ones. A test counts only if it passes without the fault.
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
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.databases import MEMORY, memory_is_free, running_server
from tests.mutants.table import MUTANTS, Mutant
from tests.mutants.tree import ROOT, copied, environment

TIERS = ("everyday", "simulation", "rest")
EVERYDAY = ("tests/unit/", "tests/sql/", "tests/fleet/", "tests/promises/", "dev/tests/unit/")
TOOLS = ("container", "browser", "chaos", "cluster", "simulation", "soak", "fuzz", "telemetry", "packages")
WITHOUT_TOOLS = " and ".join(f"not {mark}" for mark in TOOLS)
RECORDED = "tests/sql/test_migration_release.py"
"""It compares the scripts with what is recorded of them, so it finds every change, and shows nothing."""
LONGEST = 1200
"""Seconds for one tier."""


class InvalidMutantError(Exception):
    """The sources with this fault cannot be imported or migrated, or no test ran."""


@dataclass
class Runner:
    """Runs tests on copies of the tree."""

    given: argparse.Namespace
    sound: Path
    """A copy without a fault."""
    turns: asyncio.Semaphore
    passes: dict[str, bool] = field(default_factory=dict)
    """Whether a test passes without a fault."""

    async def find(self, mutant: Mutant) -> tuple[str, str, float] | None:
        """Return the first tier that finds a fault, the test, and the seconds that it took."""
        async with self.turns:
            with copied(mutant, self.given.tests_from) as tree:
                for missing in [name for name in mutant.tests if not (tree / name).exists()]:
                    _say(f"note: {mutant.name} names {missing}, which is not there")
                for tier in self.given.tier or TIERS:
                    began = time.monotonic()
                    if found := await self._tried(tree, mutant, tier):
                        return tier, found, time.monotonic() - began
        return None

    async def _tried(self, tree: Path, mutant: Mutant, tier: str) -> str | None:
        """Return what finds a fault in a tier."""
        if tier == "simulation":
            command = "tests.simulation", "--seeds", str(self.given.seeds), "--until-broken"
            code, output = await _run(tree, *command)
            return None if code == 0 else (re.findall(r"^seed \d+.*", output, re.MULTILINE) or ["a crash"])[0]
        hints = [name for name in mutant.tests if (tree / name).exists()]
        if tier == "everyday":
            found = await self._failing(
                tree, [name for name in hints if name.startswith(EVERYDAY)], " and not slow"
            )
            whole = [name for name in EVERYDAY if (tree / name).exists()] if self.given.whole else []
            return found or await self._failing(tree, whole, " and not slow")
        return await self._failing(tree, hints)

    async def _failing(self, tree: Path, files: Sequence[str], marks: str = "") -> str | None:
        """Return the first test of some files that fails with the fault alone."""
        without: list[str] = []
        while files and len(without) < 6:
            test = await _first_failure(tree, *without, "-m", WITHOUT_TOOLS + marks, *files)
            if test is None or await self._passes(test):
                return test
            _say(f"note: without a fault, too, fails {test}")
            without += ["--deselect", test]
        return None

    async def _passes(self, test: str) -> bool:
        if test not in self.passes:
            self.passes[test] = await _first_failure(self.sound, test) is None
        return self.passes[test]


async def _first_failure(tree: Path, *arguments: str) -> str | None:
    code, output = await _run(
        tree, "pytest", "-x", "-q", "-n", "0", "--tb=short", f"--ignore={RECORDED}", *arguments
    )
    failed = re.search(r"^(?:FAILED|ERROR) ((?:tests|dev)/\S+\.py(?:::.+?)?)(?: - |$)", output, re.MULTILINE)
    migrated = not re.search(
        r"ERROR at setup.*^E +surelane_migrations.errors", output, re.DOTALL | re.MULTILINE
    )
    if code not in (0, 1, 5) or not migrated:
        raise InvalidMutantError(output[-2000:])
    return None if code != 1 else failed[1] if failed else output[-200:]


async def _run(tree: Path, module: str, *arguments: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *arguments),
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
        return 1, f"it ran for {LONGEST} seconds"
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGTERM)
    return process.returncode or 0, output.decode(errors="replace")


async def _try_all(given: argparse.Namespace) -> int:
    missed, tiers = [], dict.fromkeys(TIERS, 0)
    mutants = [MUTANTS[name] for name in given.mutant or MUTANTS]
    async with running_server() as server:
        os.environ["SURELANE_TEST_DATABASE_URL"] = server.admin
        with ExitStack() as stack:
            sound = stack.enter_context(copied(None, given.tests_from))
            runner = Runner(given, sound, asyncio.Semaphore(given.jobs))

            async def tried(mutant: Mutant) -> None:
                try:
                    found = await runner.find(mutant)
                except InvalidMutantError as error:
                    _say(f"INVALID {mutant.name}: {error}")
                    found = None
                if found is None:
                    missed.append(mutant.name)
                    _say(f"MISSED {mutant.name}: {mutant.promise}")
                else:
                    tiers[found[0]] += 1
                    _say(f"found  {mutant.name}: by {found[0]} after {found[2]:.0f} s, {found[1]}")

            await asyncio.gather(*map(tried, mutants))
    quick = tiers["everyday"] + tiers["simulation"]
    _say(
        f"{len(mutants)} faults: {len(mutants) - len(missed)} found, {quick} by everyday or simulation ({tiers})"
    )
    return 1 if missed else 0


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
