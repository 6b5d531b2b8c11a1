"""All built-in handlers: what a worker runs that is given no others, and what a team may include beside its own."""

from surelane_worker.builtin import agent_turn, answer, chores, dispatch, orchestrator, triggers
from surelane_worker.handling.registry import Handlers

handlers = Handlers()

for part in (answer, agent_turn, triggers, chores, orchestrator, dispatch):
    handlers.include(part.handlers)
