"""``python -m surelane_operator.cli``: the same as the ``surelane`` command."""

from surelane_operator.cli.command import app

app()
