"""Serve ``/control/…``: actions of people in Slack, and faults, for the page, the command and tests."""
