"""Assistants' tools: endpoints of ``/v1`` by the Model Context Protocol, at ``/mcp``. Off without ``SURELANE_MCP``."""
