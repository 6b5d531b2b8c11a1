"""Hold a team's own handlers."""

from .handlers import handlers

__all__ = ["handlers"]
