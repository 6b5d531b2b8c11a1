"""The workspace keeps what is said, over a restart too; its changes make the events that Slack would send."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest

from surelane_dev.simulator import files as simulated
from surelane_dev.simulator.installs import AuthorizeRequest, Installs
from surelane_dev.simulator.posting.events import envelope, events_of, rich_text
from surelane_dev.simulator.saved import SavedConversations
from surelane_dev.simulator.sessions import AgentSessions
from surelane_dev.simulator.workspace.demo import BOT, demo_workspace, workspace_of
from surelane_dev.simulator.workspace.model import Change, Deleted, Message, Posted, StatusSet
from surelane_dev.simulator.workspace.typed import slack_text
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
        self.general = general


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


def test_a_reply_to_a_reply_stands_in_the_thread_and_a_message_with_replies_leaves_a_tombstone(
    made: Made,
) -> None:
    first = made.workspace.post(made.general, ADA, "first")
    reply = made.workspace.post(made.general, ADA, "reply", thread_ts=first.ts)
    nested = made.workspace.post(made.general, ADA, "nested", thread_ts=reply.ts)
    assert nested.thread_ts == first.thread_ts == first.ts
    assert [m.text for m in made.general.thread(first.ts)] == ["first", "reply", "nested"]
    assert first.in_channel
    assert not nested.in_channel
    made.workspace.delete(nested)
    made.workspace.delete(first)
    assert made.general.messages[first.ts].subtype == "tombstone"
    assert [m.ts for m in made.general.replies(first.ts)] == [reply.ts]
    made.workspace.delete(reply)
    assert reply.ts not in made.general.messages
    assert [type(change) for change in made.changes] == [Posted] * 3 + [Deleted] * 3


def test_a_status_lapses_after_two_minutes_or_with_the_bots_reply_not_with_a_persons(made: Made) -> None:
    made.workspace.set_status(made.general.id, "1.1", "is thinking")
    made.at += 119
    assert [status["text"] for status in made.workspace.statuses()] == ["is thinking"]
    made.at += 2
    assert made.workspace.statuses() == []
    first = made.workspace.post(made.general, ADA, "first")
    made.workspace.set_status(made.general.id, first.ts, "is thinking")
    made.workspace.post(made.general, ADA, "well?", thread_ts=first.ts)
    assert len(made.workspace.statuses()) == 1
    made.workspace.post(made.general, made.workspace.bot.id, "here", by_app=True, thread_ts=first.ts)
    assert made.workspace.statuses() == []
    told = [change.text for change in made.changes if isinstance(change, StatusSet)]
    assert told == ["is thinking", "is thinking", ""]


def test_channels_and_people_go_by_name_or_id(made: Made) -> None:
    workspace, general = made.workspace, made.general
    assert workspace.channel("general") is workspace.channel(general.id) is general
    assert workspace.channel("ada") is None
    assert workspace.user("@Ada") is workspace.user(ADA)
    assert workspace.direct_messages(ADA).is_im


ALL = frozenset({"app_mention", "message.channels", "message.im", "reaction_added", "reaction_removed"})


class Heard:
    """A workspace, and the inner events of its changes."""

    def __init__(self, subscriptions: frozenset[str] = ALL) -> None:
        self.workspace: Workspace = demo_workspace()
        self.events = list[Any]()
        self._subscriptions = subscriptions
        self.workspace.listeners.append(self._listen)

    def _listen(self, change: Change) -> None:
        self.events += events_of(self.workspace, change, self._subscriptions)

    def say(self, channel: str, text: str, user: str = ADA, **fields: object) -> Message:
        room = self.workspace.channel(channel)
        assert room is not None
        return self.workspace.post(room, user, slack_text(self.workspace, text), **fields)


@pytest.mark.parametrize(
    ("channel", "text", "expected"),
    [
        ("general", "@surelane hello", [("app_mention", None), ("message", "channel")]),
        ("general", "nobody is meant", [("message", "channel")]),
        ("lounge", "@surelane are you there?", []),  # it is not a member
        ("D0ADA00001", "hello", [("message", "im")]),
        ("D0ADA00001", "@surelane hello", [("message", "im")]),
    ],
)
def test_what_is_heard(channel: str, text: str, expected: list[tuple[str, str]]) -> None:
    heard = Heard()
    message = heard.say(channel, text)
    assert [(event["type"], event.get("channel_type")) for event in heard.events] == expected
    for event in heard.events:
        assert (event["ts"], event["text"]) == (message.ts, text.replace("@surelane", "<@U0SURELANE>"))


def test_what_is_not_subscribed_or_for_one_user_makes_no_event_and_the_bots_own_has_its_ids() -> None:
    heard = Heard(frozenset({"app_mention"}))
    heard.say("D0ADA00001", "hello")
    heard.say("general", "hello")
    assert heard.events == []
    heard = Heard()
    heard.say("general", "psst", heard.workspace.bot.id, by_app=True, visible_to=ADA)
    assert heard.events == []
    heard.say("D0ADA00001", "hello", heard.workspace.bot.id, by_app=True)
    (event,) = heard.events
    assert (event["app_id"], event["bot_id"], event["user"]) == ("A0SURELANE", "B0SURELANE", "U0SURELANE")


def test_a_reply_names_its_thread_and_a_reaction_its_message() -> None:
    heard = Heard()
    first = heard.say("general", "first")
    heard.say("general", "@surelane again", GRACE, thread_ts=first.ts)
    heard.workspace.react(first, GRACE, "eyes")
    mention, _, reaction = heard.events[1:]
    assert (mention["thread_ts"], mention["parent_user_id"]) == (first.ts, ADA)
    assert reaction["item"] == {"type": "message", "channel": first.channel, "ts": first.ts}
    assert (reaction["reaction"], reaction["item_user"]) == ("eyes", ADA)


def test_the_envelope_has_slacks_fields_and_an_id_of_its_own() -> None:
    heard = Heard()
    heard.say("general", "@surelane hello")
    first, second = (envelope(heard.workspace, event) for event in heard.events)
    assert first["event_id"] != second["event_id"]
    assert first["event_id"].startswith("Ev")
    outer = {"type": "event_callback", "team_id": "T0SURELANE", "api_app_id": "A0SURELANE"}
    assert outer.items() <= first.items()
    assert first["event_time"] == int(float(first["event"]["event_ts"]))
    assert first["authorizations"][0] == {
        "enterprise_id": None,
        "team_id": "T0SURELANE",
        "user_id": "U0SURELANE",
        "is_bot": True,
        "is_enterprise_install": False,
    }
    context = json.loads(base64.b64decode(first["event_context"].removeprefix("4-")))
    assert context == {"et": "app_mention", "tid": "T0SURELANE", "aid": "A0SURELANE", "cid": "C0GENERAL1"}


def test_typed_text_is_escaped_and_names_become_mentions() -> None:
    typed = "@Surelane is 1 < 2 & 3 > 2 in #support? mail a@b.example, ask @nobody"
    assert slack_text(demo_workspace(), typed) == (
        "<@U0SURELANE> is 1 &lt; 2 &amp; 3 &gt; 2 in <#C0SUPPORT1|support>? mail a@b.example, ask @nobody"
    )
    (section,) = rich_text("<@U0SURELANE> a &lt; b")[0]["elements"]
    mention, text = {"type": "user", "user_id": "U0SURELANE"}, {"type": "text", "text": " a < b"}
    assert section["elements"] == [mention, text]


async def test_conversations_survive(tmp_path: Path) -> None:
    path, workspace, sessions = tmp_path / "below/simulator.json", demo_workspace(), AgentSessions()
    general, lounge = workspace.channels["C0GENERAL1"], workspace.channels["C0LOUNGE01"]
    bakery = workspace_of("T0BAKERY01", "Bakery", None, workspace.app_id)
    installs = Installs((workspace, bakery))
    async with SavedConversations(path, installs, sessions).kept():
        given = installs.exchange(
            installs.approve(AuthorizeRequest("http://a/", "chat:write"), bakery, wide=False), ""
        )
        bakery.post(bakery.channels["C0BAKERY01"], bakery.people()[0].id, "bread")
        asked = workspace.post(general, "U0ADA00001", "hello", blocks=[{"type": "divider"}])
        workspace.post(general, BOT.id, "hi", by_app=True, thread_ts=asked.ts)
        workspace.react(asked, BOT.id, "eyes")
        workspace.join(lounge, BOT.id)
        sessions.set_status(general.id, asked.ts, "processing", "A talk")
    assert path.stat().st_mode & 0o077 == 0, "only their owner reads them"

    again, recalled = demo_workspace(), AgentSessions()
    anew = workspace_of("T0BAKERY01", "Bakery", None, workspace.app_id)
    installed = Installs((again, anew))
    async with SavedConversations(path, installed, recalled).kept():
        assert again.channels == workspace.channels
        assert anew.channels == bakery.channels
        grant = installed.grant_of(given["access_token"])
        assert grant is not None
        assert grant.workspace is anew
        assert recalled.json() == sessions.json()
        assert float(again.next_ts()) > float(asked.ts)


async def test_a_file_that_cannot_be_read_does_not_stop_it(tmp_path: Path) -> None:
    path, workspace = tmp_path / "simulator.json", demo_workspace()
    path.write_text('{"rooms": 1}')
    async with SavedConversations(path, Installs((workspace,)), AgentSessions()).kept():
        workspace.post(workspace.channels["C0GENERAL1"], "U0ADA00001", "hello")
    assert "hello" in path.read_text()


def test_old_files_go_where_all_together_have_too_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated, "KEPT_BYTES", 10)
    files = simulated.Files()
    kept = [files.attach("x", "text/plain", bytes(size)).id for size in (4, 4, 4, 11)]
    assert [each for each in kept if files.find(each)] == kept[3:], "the newest stays"
