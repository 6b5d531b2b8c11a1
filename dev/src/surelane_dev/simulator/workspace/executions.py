"""Keep the runs of an app's functions: the steps that a workflow of Slack's asks the app to do."""

from dataclasses import dataclass
from secrets import token_hex
from typing import Literal

from surelane_dev.simulator.workspace.model import JSON

PREFIX = "xwfp-"
"""The beginning of the token of one run."""


@dataclass(slots=True)
class Execution:
    """A run of a function."""

    id: str
    token: str
    """A bot's token, good until the run has ended."""
    team_id: str
    callback_id: str
    state: Literal["running", "completed", "failed"] = "running"
    outputs: JSON | None = None
    error: str | None = None


class Executions:
    """The runs of functions, by id."""

    def __init__(self) -> None:
        self._runs: dict[str, Execution] = {}

    def start(self, run_id: str, team_id: str, callback_id: str) -> Execution:
        run = Execution(run_id, f"{PREFIX}{token_hex(12)}", team_id, callback_id)
        self._runs[run_id] = run
        return run

    def find(self, run_id: str) -> Execution | None:
        return self._runs.get(run_id)

    def of_token(self, token: str) -> Execution | None:
        return next((run for run in self._runs.values() if run.token == token), None)
