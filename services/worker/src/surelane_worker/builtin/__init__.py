"""The built-in handlers: a worker runs them by default, and a team may include them beside its own."""

from surelane_worker.builtin import jobs, messages
from surelane_worker.builtin.jobs import dispatch, gathered, split
from surelane_worker.builtin.messages import tell
from surelane_worker.extensions import extensions
from surelane_worker.handling.registry import Handlers

extended = Handlers()
"""The extensions' handlers alone. Where ``surelane-agents`` is installed and a model is set, it answers people."""
for extension in extensions():
    extended.include(extension.built_in)
handlers = Handlers()
handlers.include(extended)
handlers.include(messages.handlers)
handlers.include(jobs.handlers)

__all__ = ["dispatch", "extended", "gathered", "handlers", "split", "tell"]
