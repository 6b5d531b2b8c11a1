"""Keep the workspace in memory: its people, channels and messages, and their JSON as Slack writes it."""
