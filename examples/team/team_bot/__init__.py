"""A team's own package: its handlers and what they need."""

from .handlers import handlers

__all__ = ["handlers"]
