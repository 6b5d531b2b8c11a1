"""Each test run on a machine has its own ports and directories."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.commands import ROOT

TAKE = "from tests.processes import free_port; print(*(free_port() for _ in range(300))); input()"


@pytest.mark.slow
def test_processes_are_given_different_ports_while_they_run() -> None:
    command = [sys.executable, "-c", TAKE]
    running = [
        subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        given = [set(process.stdout.readline().split()) for process in running if process.stdout]
    finally:
        for process in running:
            process.communicate("\n", timeout=60)
    assert all(len(ports) > 100 for ports in given)
    assert len(set.union(*given)) == sum(map(len, given))


def test_another_run_of_pytest_closes_no_directory_of_this_one(tmp_path: Path) -> None:
    assert not any(parent.name.startswith("pytest-of-") for parent in tmp_path.parents)
