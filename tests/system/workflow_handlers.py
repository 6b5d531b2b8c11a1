"""Handle the workflow tests' events: the examples'."""

from examples.agent_turn.handlers import handlers as agent_turn
from examples.cron.handlers import handlers as cron
from examples.dispatch.handlers import handlers as dispatching
from examples.orchestration.handlers import handlers as orchestration

from surelane_worker import Handlers

handlers = Handlers()
for example in (cron, dispatching, orchestration, agent_turn):  # the last one includes the built-in handlers
    handlers.include(example)
