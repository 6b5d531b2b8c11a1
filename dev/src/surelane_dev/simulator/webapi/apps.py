"""Serve ``apps.connections.open``."""

from surelane_dev.simulator.webapi.call import Method, MethodCall, SlackState
from surelane_dev.simulator.workspace.model import JSON

PATH = "/link"
"""Where the WebSocket of Socket Mode is."""


def connections_open(_: MethodCall, slack: SlackState) -> JSON:
    """Return an address that opens one connection of Socket Mode."""
    at = slack.interactions.public_url.replace("http", "ws", 1)
    return {"url": f"{at}{PATH}?ticket={slack.sockets.ticket()}&app_id={slack.workspace.app_id}"}


METHODS = {"apps.connections.open": Method(connections_open, takes_app_token=True)}
