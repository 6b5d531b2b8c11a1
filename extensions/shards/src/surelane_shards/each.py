"""``surelane --shard``: run a command for several installations, one after the other."""

import os
import subprocess
import sys

import typer

from surelane_operator.cli.session import ExitCode, failed
from surelane_operator.shards import SETTING, known

ALL = "all"


def run_each(named: str) -> int:
    """Run this process's command for the installations of these names, separated by commas.

    If an installation is away, the command still runs for the others. Return the greatest exit code.
    """
    uris = known()
    names = list(uris) if named == ALL else named.split(",")
    if not names or not all(uris.get(name) for name in names):
        told = f"{SETTING} names {', '.join(uris) or 'none'}; it holds NAME=URI, separated by spaces"
        raise failed(f"--shard {named}: {told}", ExitCode.USAGE)
    given = f"--shard={named}" in sys.argv
    at = sys.argv.index(f"--shard={named}" if given else "--shard")
    arguments = [*sys.argv[1:at], *sys.argv[at + 2 - given :]]
    codes = []
    for name in names:
        typer.echo(f"== {name}", err=True)
        environment = {**os.environ, "SURELANE_OPERATOR_DATABASE_URL": uris[name]}
        command = [sys.executable, "-m", "surelane_operator.cli", *arguments]
        codes.append(subprocess.run(command, env=environment, check=False).returncode)  # noqa: S603 - our own arguments
    return max(codes)
