"""A team's own package: its handlers, and whatever they need."""

from .handlers import handlers

__all__ = ["handlers"]
