"""Run ``python -m surelane_dev.simulator``."""

from surelane_dev.simulator.command import app

app(prog_name="python -m surelane_dev.simulator")
