"""Run ``python -m dev.simulator``."""

from dev.simulator.command import app

app(prog_name="python -m dev.simulator")
