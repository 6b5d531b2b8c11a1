"""Answer people with a model: an agent's turn, whose model calls and tool calls are steps.

The libraries for it come with the extra ``surelane-worker[model]``. They are imported when a worker with a model
starts, and not with these modules.
"""

from surelane_worker.model.agent import Agent
from surelane_worker.model.tools import Tools

__all__ = ["Agent", "Tools"]
