"""``python -m surelane.cli``: the same as the ``surelane`` command."""

from surelane.cli.command import app

app()
