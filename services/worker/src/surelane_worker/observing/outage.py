"""Outages are logged twice: when they begin and when they end."""

from surelane_service.logs import Logger


class Outage:
    """Whether something that needs the database fails at the moment."""

    def __init__(self, log: Logger, what: str) -> None:
        """``what`` waits for the database: ``claims``, ``settles``, …"""
        self._log = log
        self._what = what
        self.on = False
        """Whether the database failed to answer the last time."""

    def goes_on(self, error: BaseException) -> None:
        """The database did not answer."""
        if not self.on:
            self._log.warning("database unavailable", waiting=self._what, error=type(error).__name__)
        self.on = True

    def is_over(self) -> None:
        """The database answered."""
        if self.on:
            self._log.info("database available again", resumed=self._what)
        self.on = False
