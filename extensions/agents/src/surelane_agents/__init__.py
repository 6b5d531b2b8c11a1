"""Agents for Surelane: models, tools, MCP servers and frameworks that answer in Slack."""
