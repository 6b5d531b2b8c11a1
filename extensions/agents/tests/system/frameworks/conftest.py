"""Give the tests of frameworks their bot, their model, and the rows of their file."""

from dev.tests.kit.conftest import surelane_server, surelane_slack
from extensions.agents.tests.system.frameworks.trials import handlers, model, rows, trial

__all__ = ["handlers", "model", "rows", "surelane_server", "surelane_slack", "trial"]
