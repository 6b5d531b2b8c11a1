"""The built-in handlers: a worker runs them by default, and a team may include them beside its own."""

from surelane_worker.builtin import jobs, messages, rules
from surelane_worker.builtin.jobs import dispatch, gathered, split
from surelane_worker.builtin.messages import tell
from surelane_worker.handling.registry import Handlers

handlers = Handlers()
handlers.include(messages.handlers)
handlers.include(jobs.handlers)
handlers.include(rules.handlers)

__all__ = ["dispatch", "gathered", "handlers", "split", "tell"]
