"""What a model may call: functions, MCP servers, Slack, and as which person."""
