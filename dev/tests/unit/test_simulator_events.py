"""Changes of the workspace make the events that Slack would send."""

import base64
import json

import pytest

from surelane_dev.simulator.posting.events import envelope, events_of, rich_text
from surelane_dev.simulator.workspace.demo import demo_workspace
from surelane_dev.simulator.workspace.model import JSON, Change, Message
from surelane_dev.simulator.workspace.typed import slack_text
from surelane_dev.simulator.workspace.workspace import Workspace

ALL = frozenset({"app_mention", "message.channels", "message.im", "reaction_added", "reaction_removed"})
ADA, GRACE = "U0ADA00001", "U0GRACE001"


class Heard:
    """A workspace, and the inner events of its changes."""

    def __init__(self, subscriptions: frozenset[str] = ALL) -> None:
        self.workspace: Workspace = demo_workspace()
        self.events: list[JSON] = []
        self._subscriptions = subscriptions
        self.workspace.listeners.append(self._listen)

    def _listen(self, change: Change) -> None:
        self.events += events_of(self.workspace, change, self._subscriptions)

    def say(self, channel: str, text: str, user: str = ADA, **fields: object) -> Message:
        room = self.workspace.channel(channel)
        assert room is not None
        return self.workspace.post(room, user, slack_text(self.workspace, text), **fields)

    def kinds(self) -> list[tuple[str, str | None]]:
        return [(event["type"], event.get("subtype") or event.get("channel_type")) for event in self.events]


def test_a_mention_makes_two_events_with_one_message_where_both_are_subscribed() -> None:
    heard = Heard()
    message = heard.say("general", "@surelane hello")
    assert heard.kinds() == [("app_mention", None), ("message", "channel")]
    assert {event["ts"] for event in heard.events} == {message.ts}
    assert heard.events[0]["text"] == "<@U0SURELANE> hello"


@pytest.mark.parametrize(
    ("channel", "text", "expected"),
    [
        ("general", "nobody is meant", [("message", "channel")]),
        ("lounge", "@surelane are you there?", []),
        ("D0ADA00001", "hello", [("message", "im")]),
        ("D0ADA00001", "@surelane hello", [("message", "im")]),
    ],
    ids=["no mention", "the bot is not a member", "direct message", "mention in a direct message"],
)
def test_what_is_heard(channel: str, text: str, expected: list[tuple[str, str]]) -> None:
    heard = Heard()
    heard.say(channel, text)
    assert heard.kinds() == expected


def test_nothing_is_sent_that_is_not_subscribed() -> None:
    heard = Heard(frozenset({"app_mention"}))
    heard.say("D0ADA00001", "hello")
    heard.say("general", "hello")
    assert heard.events == []


def test_the_bots_own_message_is_told_with_its_ids_so_that_it_can_be_passed_over() -> None:
    heard = Heard()
    heard.say("D0ADA00001", "hello", heard.workspace.bot.id, by_app=True)
    (event,) = heard.events
    assert (event["app_id"], event["bot_id"], event["user"]) == ("A0SURELANE", "B0SURELANE", "U0SURELANE")


def test_edits_and_deletions_are_hidden_messages() -> None:
    heard = Heard()
    message = heard.say("general", "hello")
    heard.workspace.edit(message, text="hallo")
    heard.workspace.delete(message)
    changed, deleted = heard.events[1:]
    assert (changed["subtype"], changed["hidden"]) == ("message_changed", True)
    assert (changed["message"]["text"], changed["previous_message"]["text"]) == ("hallo", "hello")
    assert (deleted["subtype"], deleted["deleted_ts"]) == ("message_deleted", message.ts)


def test_what_one_user_alone_sees_makes_no_event() -> None:
    heard = Heard()
    heard.say("general", "psst", heard.workspace.bot.id, by_app=True, visible_to=ADA)
    assert heard.events == []


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
    outer = [envelope(heard.workspace, event) for event in heard.events]
    assert outer[0]["event_id"] != outer[1]["event_id"]
    assert all(each["event_id"].startswith("Ev") for each in outer)
    first = outer[0]
    assert (first["type"], first["team_id"], first["api_app_id"]) == (
        "event_callback",
        "T0SURELANE",
        "A0SURELANE",
    )
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
    workspace = demo_workspace()
    typed = "@Surelane is 1 < 2 & 3 > 2 in #support? mail a@b.example, ask @nobody"
    assert slack_text(workspace, typed) == (
        "<@U0SURELANE> is 1 &lt; 2 &amp; 3 &gt; 2 in <#C0SUPPORT1|support>? mail a@b.example, ask @nobody"
    )


def test_the_block_of_typed_text_has_mentions_apart_and_no_escapes() -> None:
    (section,) = rich_text("<@U0SURELANE> a &lt; b")[0]["elements"]
    assert section["elements"] == [
        {"type": "user", "user_id": "U0SURELANE"},
        {"type": "text", "text": " a < b"},
    ]
