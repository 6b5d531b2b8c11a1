"""Agents for Surelane: models, tools, MCP servers and frameworks that answer in Slack.

A team imports the names below. The libraries of models are imported when a worker with a model starts, and not with
these modules.
"""

from surelane_agents.agent import Agent
from surelane_agents.agent_settings import AgentSettings
from surelane_agents.people.following import HEARD
from surelane_agents.tools.functions import Tools

__all__ = ["HEARD", "Agent", "AgentSettings", "Tools"]
