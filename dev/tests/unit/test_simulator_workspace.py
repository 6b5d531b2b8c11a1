"""The workspace in memory keeps times, threads, reactions and statuses."""

import re

import pytest

from surelane_dev.simulator.workspace.demo import demo_workspace
from surelane_dev.simulator.workspace.model import Change, Channel, Deleted, Posted, Reacted, StatusSet
from surelane_dev.simulator.workspace.workspace import Workspace

ADA, GRACE = "U0ADA00001", "U0GRACE001"


class Made:
    """A workspace, its #general, its changes, and a clock that stands."""

    def __init__(self) -> None:
        self.at = 1_700_000_000.25
        self.workspace: Workspace = demo_workspace(lambda: self.at)
        self.changes: list[Change] = []
        self.workspace.listeners.append(self.changes.append)
        general = self.workspace.channel("#general")
        assert general is not None
        self.general: Channel = general


@pytest.fixture
def made() -> Made:
    return Made()


def test_times_are_slacks_and_never_the_same_even_when_the_clock_stands_or_goes_back(made: Made) -> None:
    posted = [made.workspace.post(made.general, ADA, "a").ts for _ in range(3)]
    made.at -= 60
    posted.append(made.workspace.post(made.general, ADA, "b").ts)
    assert posted[0] == "1700000000.250000"
    assert all(re.fullmatch(r"\d{10}\.\d{6}", ts) for ts in posted)
    assert sorted(set(posted)) == posted


def test_a_reply_to_a_reply_stands_in_the_same_thread(made: Made) -> None:
    first = made.workspace.post(made.general, ADA, "first")
    reply = made.workspace.post(made.general, ADA, "reply", thread_ts=first.ts)
    nested = made.workspace.post(made.general, ADA, "nested", thread_ts=reply.ts)
    assert nested.thread_ts == first.thread_ts == first.ts
    assert [m.text for m in made.general.thread(first.ts)] == ["first", "reply", "nested"]
    assert first.in_channel
    assert not nested.in_channel


def test_a_message_with_replies_leaves_a_tombstone_and_one_without_is_gone(made: Made) -> None:
    first = made.workspace.post(made.general, ADA, "first")
    reply = made.workspace.post(made.general, ADA, "reply", thread_ts=first.ts)
    made.workspace.delete(first)
    assert made.general.messages[first.ts].subtype == "tombstone"
    assert [m.ts for m in made.general.replies(first.ts)] == [reply.ts]
    made.workspace.delete(reply)
    assert reply.ts not in made.general.messages
    assert [type(change) for change in made.changes] == [Posted, Posted, Deleted, Deleted]


def test_a_reaction_counts_once_and_can_be_taken_back(made: Made) -> None:
    message = made.workspace.post(made.general, ADA, "first")
    assert [made.workspace.react(message, GRACE, "eyes") for _ in range(2)] == [True, False]
    assert [made.workspace.unreact(message, GRACE, "eyes") for _ in range(2)] == [True, False]
    assert message.reactions == {}
    assert [change.added for change in made.changes if isinstance(change, Reacted)] == [True, False]


def test_a_status_lapses_after_two_minutes(made: Made) -> None:
    made.workspace.set_status(made.general.id, "1.1", "is thinking")
    made.at += 119
    assert [status["text"] for status in made.workspace.statuses()] == ["is thinking"]
    made.at += 2
    assert made.workspace.statuses() == []


def test_a_status_ends_with_the_bots_reply_but_not_with_a_persons(made: Made) -> None:
    first = made.workspace.post(made.general, ADA, "first")
    made.workspace.set_status(made.general.id, first.ts, "is thinking")
    made.workspace.post(made.general, ADA, "well?", thread_ts=first.ts)
    assert len(made.workspace.statuses()) == 1
    made.workspace.post(made.general, made.workspace.bot.id, "here", by_app=True, thread_ts=first.ts)
    assert made.workspace.statuses() == []
    assert [change.text for change in made.changes if isinstance(change, StatusSet)] == ["is thinking", ""]


def test_channels_and_people_go_by_name_or_id(made: Made) -> None:
    workspace, general = made.workspace, made.general
    assert workspace.channel("general") is workspace.channel(general.id) is general
    assert workspace.channel("ada") is None
    assert workspace.user("@Ada") is workspace.user(ADA)
    assert workspace.direct_messages(ADA).is_im
