"""Simulate Slack for development and tests: a workspace, the Web API, events, and a page to talk to the bot."""
