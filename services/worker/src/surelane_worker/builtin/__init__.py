"""The built-in handlers: a worker runs them by default, and a team may include them beside its own."""

from surelane_worker.builtin import chores, dispatch, messages, orchestrator
from surelane_worker.handling.registry import Handlers

handlers = Handlers()

for part in (messages, chores, orchestrator, dispatch):
    handlers.include(part.handlers)

__all__ = ["handlers"]
