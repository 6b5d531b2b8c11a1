"""Slack: replies that are sent once, however often an event is tried."""
