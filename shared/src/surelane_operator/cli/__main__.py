"""Run the ``surelane`` command as ``python -m surelane_operator.cli``."""

from surelane_operator.cli.command import app

app()
