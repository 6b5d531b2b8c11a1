"""Talk to Slack: replies are posted once, even if their event is handled again."""
