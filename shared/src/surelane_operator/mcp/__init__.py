"""Assistants' tools: operations of ``/v1`` by the Model Context Protocol, at ``/mcp``. Off without ``SURELANE_MCP``."""
