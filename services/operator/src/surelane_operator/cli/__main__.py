"""Run the ``surelane`` command: ``python -m surelane_operator.cli``."""

from surelane_operator.cli.command import app

if __name__ == "__main__":
    app()
