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


def test_what_is_not_subscribed_or_for_one_user_alone_makes_no_event() -> None:
    heard = Heard(frozenset({"app_mention"}))
    heard.say("D0ADA00001", "hello")
    heard.say("general", "hello")
    assert heard.events == []
    heard = Heard()
    heard.say("general", "psst", heard.workspace.bot.id, by_app=True, visible_to=ADA)
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
