"""Test handlers with pytest. The package surelane-dev has the parts and the plugin."""

from surelane.errors import INSTALL

try:
    from surelane_dev.testing import Bot, Message, Sent, Slack, Story, assert_replied, fleet, virtual
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "surelane_dev":
        raise
    told = f"surelane.testing needs the package surelane-dev: {INSTALL} surelane-dev"
    raise ModuleNotFoundError(told, name=error.name) from None

__all__ = ["Bot", "Message", "Sent", "Slack", "Story", "assert_replied", "fleet", "virtual"]
