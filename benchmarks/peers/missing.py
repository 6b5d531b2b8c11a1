"""Report a peer that this machine cannot run."""


class MissingError(Exception):
    """The peer is not available here. The message says why, for the page."""
