"""While Slack is simulated, calls of slack-sdk's own synchronous clients reach the simulator."""

from http.client import HTTPResponse
from typing import cast
from urllib.request import BaseHandler, Request, build_opener, install_opener

SLACK = "https://slack.com/api/"


class _AtSimulator(BaseHandler):
    """Opens URLs of Slack's Web API at another address."""

    handler_order = 100  # before urllib's own handlers

    def __init__(self, api: str) -> None:
        self._api = api

    def https_open(self, request: Request) -> HTTPResponse | None:
        """Send the request to the simulator. ``None``: it is none for Slack, and urllib goes on with it."""
        method = request.full_url.removeprefix(SLACK)
        if method == request.full_url:
            return None
        moved = Request(self._api + method, request.data, request.headers, method=request.get_method())  # noqa: S310 - http
        return cast("HTTPResponse", self.parent.open(moved, timeout=request.timeout))


def use_simulator(api: str) -> None:
    """Let all requests of this process that urllib would send to Slack's Web API go to ``api``.

    A ``WebClient`` sends its requests by ``urllib.request.urlopen``, whose opener a program may replace. An ``App`` of
    slack-bolt makes one as its module is imported, and calls ``auth.test``.
    """
    install_opener(build_opener(_AtSimulator(api)))
