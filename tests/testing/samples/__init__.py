"""Bolt apps with the listeners of Slack's public samples: their constraints, and the calls that each of them makes."""
