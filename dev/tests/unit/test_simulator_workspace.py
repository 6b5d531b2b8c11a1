"""The workspace in memory keeps times, threads, reactions and statuses."""

import re

from surelane_dev.simulator.workspace.demo import demo_workspace
from surelane_dev.simulator.workspace.model import Change, Channel, Deleted, Posted, Reacted, StatusSet
from surelane_dev.simulator.workspace.workspace import Workspace


class Clock:
    def __init__(self, at: float = 1_700_000_000.25) -> None:
        self.at = at

    def __call__(self) -> float:
        return self.at


def made(clock: Clock) -> tuple[Workspace, Channel, list[Change]]:
    workspace = demo_workspace(clock)
    changes: list[Change] = []
    workspace.listeners.append(changes.append)
    general = workspace.channel("#general")
    assert general is not None
    return workspace, general, changes


def test_times_are_slacks_and_never_the_same_even_when_the_clock_stands_or_goes_back() -> None:
    clock = Clock()
    workspace, general, _ = made(clock)
    posted = [workspace.post(general, "U0ADA00001", "a").ts for _ in range(3)]
    clock.at -= 60
    posted.append(workspace.post(general, "U0ADA00001", "b").ts)
    assert posted[0] == "1700000000.250000"
    assert all(re.fullmatch(r"\d{10}\.\d{6}", ts) for ts in posted)
    assert sorted(set(posted)) == posted


def test_a_reply_to_a_reply_stands_in_the_same_thread() -> None:
    workspace, general, _ = made(Clock())
    first = workspace.post(general, "U0ADA00001", "first")
    reply = workspace.post(general, "U0ADA00001", "reply", thread_ts=first.ts)
    nested = workspace.post(general, "U0ADA00001", "nested", thread_ts=reply.ts)
    assert nested.thread_ts == first.thread_ts == first.ts
    assert [m.text for m in general.thread(first.ts)] == ["first", "reply", "nested"]
    assert first.in_channel
    assert not nested.in_channel


def test_a_message_with_replies_leaves_a_tombstone_and_one_without_is_gone() -> None:
    workspace, general, changes = made(Clock())
    first = workspace.post(general, "U0ADA00001", "first")
    reply = workspace.post(general, "U0ADA00001", "reply", thread_ts=first.ts)
    workspace.delete(first)
    assert general.messages[first.ts].subtype == "tombstone"
    assert [m.ts for m in general.replies(first.ts)] == [reply.ts]
    workspace.delete(reply)
    assert reply.ts not in general.messages
    assert [type(change) for change in changes] == [Posted, Posted, Deleted, Deleted]


def test_a_reaction_counts_once_and_can_be_taken_back() -> None:
    workspace, general, changes = made(Clock())
    message = workspace.post(general, "U0ADA00001", "first")
    assert workspace.react(message, "U0GRACE001", "eyes")
    assert not workspace.react(message, "U0GRACE001", "eyes")
    assert workspace.unreact(message, "U0GRACE001", "eyes")
    assert not workspace.unreact(message, "U0GRACE001", "eyes")
    assert message.reactions == {}
    assert [change.added for change in changes if isinstance(change, Reacted)] == [True, False]


def test_a_status_lapses_after_two_minutes() -> None:
    clock = Clock()
    workspace, general, _ = made(clock)
    workspace.set_status(general.id, "1.1", "is thinking")
    clock.at += 119
    assert [status["text"] for status in workspace.statuses()] == ["is thinking"]
    clock.at += 2
    assert workspace.statuses() == []


def test_a_status_ends_with_the_bots_reply_but_not_with_a_persons() -> None:
    workspace, general, changes = made(Clock())
    first = workspace.post(general, "U0ADA00001", "first")
    workspace.set_status(general.id, first.ts, "is thinking")
    workspace.post(general, "U0ADA00001", "well?", thread_ts=first.ts)
    assert len(workspace.statuses()) == 1
    workspace.post(general, workspace.bot.id, "here", by_app=True, thread_ts=first.ts)
    assert workspace.statuses() == []
    assert [change.text for change in changes if isinstance(change, StatusSet)] == ["is thinking", ""]


def test_channels_and_people_go_by_name_or_id() -> None:
    workspace, general, _ = made(Clock())
    assert workspace.channel("general") is workspace.channel(general.id) is general
    assert workspace.channel("ada") is None
    assert workspace.user("@Ada") is workspace.user("U0ADA00001")
    assert workspace.direct_messages("U0ADA00001").is_im
