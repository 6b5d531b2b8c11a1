"""A peer that this machine cannot run."""


class MissingError(Exception):
    """The peer cannot be had here; the message says why, for the page."""
