"""Claiming: when the worker looks for events, and where it starts."""
