"""Test a team's handlers with pytest: the real queue, a worker in the test's process, and a simulated Slack."""

from surelane_dev.simulator.workspace.model import Message
from surelane_dev.testing.asserting import assert_replied
from surelane_dev.testing.bot import Bot
from surelane_dev.testing.fleets import fleet, virtual
from surelane_dev.testing.slack import Sent, Slack
from surelane_dev.testing.story import Story

__all__ = ["Bot", "Message", "Sent", "Slack", "Story", "assert_replied", "fleet", "virtual"]
