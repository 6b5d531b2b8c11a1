"""Python reads Slack's payloads by the same rules as the database: each kind that Slack sends, and malformed ones."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from surelane import slack
from surelane.calls import Connection
from surelane.slack import (
    CHANNEL,
    MESSAGE,
    THREAD,
    answered_at,
    inner_event,
    key_of,
    kind_of,
    place_of,
    text_at,
)
from surelane_dev.simulator.interactions import Interactions
from surelane_dev.simulator.posting.events import envelope, events_of
from surelane_dev.simulator.posting.payloads import Payloads
from surelane_dev.simulator.views import View
from surelane_dev.simulator.workspace.demo import demo_workspace, other_workspaces
from surelane_dev.simulator.workspace.model import Change
from surelane_encryption.envelopes import clear_part, workspace_of
from surelane_service.installations import Owner
from surelane_service.subscriptions import INTERACTIONS

ALL = ("app_mention", "message.channels", "message.im", "reaction_added", "reaction_removed")
HUGE = "x" * 1000
MALFORMED: tuple[Any, ...] = (
    *(None, True, 7, 1.5, "", "a b", "é", HUGE),
    *([], ["C1"], [{"id": "C1"}], {}, {"id": "C1"}, {"id": 7}, {"id": {"id": "C1"}}),
    {"0": {"action_id": "surelane.x"}},
)  # fmt: skip


def simulated() -> Iterator[dict[str, Any]]:
    here, interactions = demo_workspace(), Interactions("http://127.0.0.1")
    changes: list[Change] = []
    here.listeners.append(changes.append)
    user, general = here.people()[0], here.channel("general")
    assert general is not None
    direct = here.direct_messages(user.id)
    message = here.post(general, user.id, f"<@{here.bot.id}> hello")
    reply = here.post(general, user.id, "more", thread_ts=message.ts)
    here.post(direct, user.id, "hello")
    ephemeral = here.post(general, here.bot.id, "only you", visible_to=user.id, thread_ts=message.ts)
    here.edit(reply, text="less")
    here.react(message, user.id, "eyes")
    here.unreact(message, user.id, "eyes")
    here.delete(reply)
    other = other_workspaces(here.app_id)[0]
    here.share(general, other)
    here.post(general, user.id, f"<@{here.bot.id}> shared")
    for change in changes:
        yield from (envelope(here, inner) for inner in events_of(here, change, ALL))

    content = {"id": "V1", "type": "modal", "blocks": [], "callback_id": "form", "team_id": here.team_id}
    view = View(user.id, content | {"state": {"values": {}}})
    button = {"type": "button", "action_id": "go", "block_id": "b"}
    made = Payloads(here, interactions, user)
    yield made.command("/deploy", "now", general)
    yield made.shortcut("cut")
    yield made.message_action("cut", message)
    for clicked in (message, reply, ephemeral):
        yield made.action(clicked, button)
    for name in ("surelane.choose.1", "surelane.stop"):
        yield made.action(message, button | {"action_id": name})
    yield made.action(view, button)
    for place in (message, view):
        yield made.suggestion(place, {"action_id": "go", "block_id": "b"}, "a", {})
    for kind in ("view_submission", "view_closed"):
        for name in ("form", "surelane.written"):
            yield made.view(kind, view.content | {"callback_id": name})


def around(**event: Any) -> dict[str, Any]:
    return {"type": "event_callback", "team_id": "T1", "event_id": "Ev1", "event": event}


THEIRS = {"team": {"id": "T9"}, "user": {"id": "U9", "team_id": "T9"}, "api_app_id": "A1"}
OF_OTHERS: tuple[Any, ...] = (
    {
        **around(type="app_mention", channel="C1", ts="1.1", user="U9"),
        "team_id": "T9",
        "authorizations": [{"team_id": "T1"}],
    },
    {**THEIRS, "type": "view_submission", "view": {"app_installed_team_id": "T1", "team_id": "T2"}},
    {**THEIRS, "type": "view_closed", "view": {"app_installed_team_id": "E1", "team_id": "T1"}},
    {**THEIRS, "type": "block_actions", "message": {"app_id": "A1", "team": "T1", "ts": "1.1"}},
    {**THEIRS, "type": "block_suggestion", "message": {"bot_id": "B1", "team": "T1", "ts": "1.1"}},
    {
        **THEIRS,
        "type": "message_action",
        "message": {"app_id": "A1", "bot_id": "B1", "team": "T1", "ts": "1.1"},
    },
    {**THEIRS, "type": "view_submission", "view": {"callback_id": "surelane.written", "team_id": "T1"}},
)
"""Of people of other workspaces, in what the installation of T1 made."""
AT, ONE = {"channel": {"id": "C1"}}, {"ts": "1.2", "team": "T1", "app_id": "A1", "bot_id": "B1"}
REPLY, OLD = ONE | {"thread_ts": "1.1"}, {name: ONE[name] for name in ("ts", "team", "bot_id")}
SEEN_BY_ONE = {"channel_id": "C1", "message_ts": "1.2", "thread_ts": "1.1", "is_ephemeral": True}
VIEW = {"view": {"team_id": "T2", "app_installed_team_id": "T1"}}
PLACES: tuple[tuple[str, dict[str, Any], str, str | None, str | None], ...] = (
    ("block_actions", AT | {"message": ONE}, "T1", "1.2", None),
    ("block_actions", AT | {"message": REPLY}, "T1", "1.1", "1.1"),
    ("block_actions", AT | {"container": SEEN_BY_ONE}, "T9", "1.1", "1.1"),
    ("block_actions", AT | {"container": SEEN_BY_ONE | {"thread_ts": None}}, "T9", None, None),
    ("block_actions", AT | {"message": REPLY | {"app_id": "A2"}, "app_unfurl": {}}, "T9", "1.1", "1.1"),
    ("block_actions", VIEW, "T1", None, None),
    ("block_suggestion", AT | {"message": REPLY}, "T1", "1.1", "1.1"),
    ("block_suggestion", VIEW, "T1", None, None),
    ("interactive_message", AT | {"message_ts": "1.2", "original_message": ONE}, "T1", "1.2", None),
    ("interactive_message", AT | {"message_ts": "1.2", "original_message": OLD}, "T1", "1.2", None),
    ("interactive_message", AT | {"message_ts": "1.2", "original_message": REPLY}, "T1", "1.1", "1.1"),
    ("interactive_message", AT | {"message_ts": "1.2"}, "T9", None, None),  # seen by one
    ("interactive_message", AT | {"message_ts": "1.2", "app_unfurl": {}}, "T9", "1.2", None),
    ("message_action", AT | {"message_ts": "1.2", "message": {"ts": "1.2", "team": "T2"}}, "T9", "1.2", None),
    ("message_action", AT | {"message_ts": "1.2", "message": REPLY | {"app_id": "A2"}}, "T9", "1.1", "1.1"),
    ("message_action", AT | {"message_ts": "1.2", "message": REPLY}, "T1", "1.1", "1.1"),
    ("shortcut", {}, "T9", None, None),
    *((f"dialog_{each}", AT, "T9", None, None) for each in ("submission", "cancellation", "suggestion")),
    ("view_submission", VIEW, "T1", None, None),
    ("view_closed", VIEW, "T1", None, None),
    ("workflow_step_edit", {"workflow_step": {}}, "T9", None, None),
)
"""What a person of T9 does in what the app A1 of T1 shows: whose it is, and the thread of a posted message and of an
answer through a response URL. What has no message is the person's: the app may show it in no other workspace."""
FURTHER: tuple[Any, ...] = (
    around(type="channel_created", channel={"id": "C1", "name": "x"}, event_ts="1700000000.000100"),
    around(type="assistant_thread_started", assistant_thread={"channel_id": "D1", "thread_ts": "1.1", "user_id": "U1"}),
    around(type="file_shared", channel_id="C1", user_id="U1", file_id="F1"),
    around(type="message", channel_type="im", channel="D1", ts="1.1", thread_ts="1.1", user="U1"),
    around(type="message", channel_type="mpim", channel="G1", ts="1.1", user="U1"),
    *(around(type="message", channel=each, ts="1.1", user="U1") for each in ("D1", "C1", "G1", "X1")),
    around(type="message", channel_type="app_home", channel="D1", ts="1.1", user="U1"),
    around(type="team_join", user={"id": "U1"}),
    around(type="message", subtype="message_changed", channel="C1", ts="1.2", message={"ts": "1.1", "user": "U1"}),
    around(type="message", subtype="message_changed", channel="C1", ts="1.2", message={"subtype": "tombstone"}),
    around(type="message", subtype="message_deleted", channel="D1", ts="1.2", previous_message={"ts": "1.1"}),
    {**around(type="reaction_added", item={"channel": "C1", "ts": "1.1"}), "is_ext_shared_channel": True},
    {"type": "block_actions", "team": {"id": "T1"}, "channel": {"id": "C1"}, "user": {"id": "U1"},
     "trigger_id": "1.2.a", "actions": [{"action_id": "go"}],
     "container": {"channel_id": "C1", "message_ts": "1.2", "thread_ts": "1.1"}},
    *OF_OTHERS,
    *({**THEIRS, "type": kind, **fields} for kind, fields, *_ in PLACES),
    {"type": "app_mention", "team": "T1", "channel": "C1", "user": "U1", "ts": "1.1"},
    {"command": "//deploy/", "team_id": "T1", "channel_id": "C1", "user_id": "U1", "trigger_id": "1.2.a"},
    {"type": "view_submission", "view": {"callback_id": "surelane.written"}},
    {"agent": "billing", "team_id": "T1", "channel": "C1", "user": "Ann Smith", "text": "a job"},
    {"type": "t" * 300},
    {"command": "/" + "d" * 300},
    {"text": "x" * 1_000_000, "team_id": "T1", "channel": "C1"},
    *MALFORMED,
)  # fmt: skip
OBJECTS = (
    "event",
    "view",
    "authorizations",
    "team",
    "user",
    "channel",
    "item",
    "message",
    "container",
    "assistant_thread",
)
FIELDS = (
    *("type", "command", "channel_type", "event_id", "trigger_id", "team_id", "channel_id", "user_id", "ts"),
    *("subtype", "app_installed_team_id", "app_id", "bot_id", "api_app_id", "app_unfurl", "edited"),
    "original_message",
    *("thread_ts", "id", "message_ts", "action_id", "callback_id", "is_ext_shared_channel", "actions", *OBJECTS),
)  # fmt: skip


def damaged(payload: dict[str, Any], depth: int = 3) -> Iterator[dict[str, Any]]:
    """Yield copies of a payload with one field missing, or with another value."""
    for name in FIELDS:
        yield {each: value for each, value in payload.items() if each != name}
        yield from ({**payload, name: value} for value in MALFORMED)
        inner = payload.get(name)
        if isinstance(inner, dict) and depth > 1:
            yield from ({**payload, name: changed} for changed in damaged(inner, depth - 1))


def group_of(payload: object) -> str | None:
    """Return the group key of an event, as SQL makes it of what Python reads."""
    inner, place = inner_event(payload), place_of(payload)
    channel = text_at(inner, CHANNEL[:3])
    message = text_at(inner, (*MESSAGE, ("container", "message_ts")))
    thread = text_at(inner, THREAD)
    if channel is None:
        return None
    if inner.get("channel_type") == "im" or channel.startswith("D"):
        thread = None if thread == message else thread
    else:
        thread = thread or message
    shared = isinstance(payload, dict) and slack.is_shared(payload)
    key = ":".join(part for part in (None if shared else place.workspace, channel, thread) if part)
    return key_of({"event_id": key})


async def derived(connection: Connection, payloads: list[Any]) -> list[tuple[Any, ...]]:
    rows = await connection.fetch(
        "select agent.event_kind(event), agent.event_item_key(event), agent.event_group_key(event)"
        ", agent.event_workspace(event), agent.event_channel(event), agent.event_user(event)"
        " from unnest($1::text[]) with ordinality as given (text, nth), lateral (select text::jsonb) as read (event)"
        " order by nth",
        [json.dumps(payload) for payload in payloads],
    )
    return [tuple(row) for row in rows]


def read(payload: Any) -> tuple[Any, ...]:
    place = place_of(payload)
    ids = (place.workspace or "", place.channel or "", place.user or "")
    return (kind_of(payload), key_of(payload), group_of(payload), *ids)


async def compare(connection: Connection, payloads: list[Any]) -> None:
    for payload, (kind, key, *rest) in zip(payloads, await derived(connection, payloads), strict=True):
        own_kind, own_key, *own = read(payload)
        assert [own_kind, own_key or key, *own] == [kind, key, *rest], json.dumps(payload)[:2000]
        assert own_key is not None or key.startswith("sha256:")


async def test_an_event_is_of_the_installation_that_made_what_a_person_uses(queue: Connection) -> None:
    for payload, (_, _, _, workspace, *_) in zip(OF_OTHERS, await derived(queue, [*OF_OTHERS]), strict=True):
        assert (workspace, slack.workspace_of(payload), workspace_of(payload)) == ("T1", "T1", "T1"), payload
        assert Owner.of(*slack.reporter_of(payload)) in (Owner("T1"), Owner("E1", True))
        assert place_of(payload).team == "T9", "the person's own"
    others = {**THEIRS, "type": "message_action", "message": {"app_id": "A2", "bot_id": "B2", "team": "T1"}}
    unfurled = {
        **THEIRS,
        "type": "block_actions",
        "app_unfurl": {},
        "message": {"bot_id": "B2", "team": "T1"},
    }
    assert {row[3] for row in await derived(queue, [others, unfurled])} == {"T9"}


async def test_each_interaction_has_a_workspace_and_a_place_for_its_answer(queue: Connection) -> None:
    for kind, fields, workspace, posted, answered in PLACES:
        payload = {**THEIRS, "type": kind, **fields}
        ((_, _, group, found, channel, user),) = await derived(queue, [payload])
        place = answered_at(payload)
        assert (found, place.workspace, user, place.user) == (workspace, workspace, "U9", "U9"), payload
        assert (place.thread_ts, place.around) == (posted, answered), payload
        assert (channel, place.channel or "") == ("C1" if fields.get("channel") else "",) * 2, payload
        thread = posted or text_at(payload, (("container", "message_ts"), ("message_ts",)))
        assert group == (f"{workspace}:C1{f':{thread}' if thread else ''}" if channel else None), payload
    assert {kind for kind, *_ in PLACES} == INTERACTIONS


async def test_every_payload_that_the_simulator_makes_and_others_of_any_form(queue: Connection) -> None:
    payloads = list(simulated())
    await compare(queue, payloads)
    kinds = {kind_of(payload) for payload in payloads}
    assert kinds == {
        *("slack.app_mention", "slack.message.channels", "slack.message.im", "slack.command.deploy"),
        *("slack.message_changed", "slack.message_deleted"),
        *("slack.reaction_added", "slack.reaction_removed", "slack.shortcut", "slack.message_action"),
        *("slack.block_actions", "slack.block_suggestion", "slack.view_submission", "slack.view_closed"),
        "surelane.answer",
    }
    await compare(queue, list(FURTHER))


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(each, marks=[] if number % 4 == 0 else pytest.mark.slow)
        for number, each in enumerate([each for each in FURTHER if isinstance(each, dict)][:20])
    ],
)
async def test_payloads_with_a_damaged_field(queue: Connection, payload: dict[str, Any]) -> None:
    await compare(queue, list(damaged(payload)))


async def test_the_clear_part_of_a_payload_reads_as_the_payload(queue: Connection) -> None:
    payloads = [
        *simulated(),
        *(each for each in FURTHER if isinstance(each, dict) and each.get("user") != "Ann Smith"),
    ]
    payloads = [payload for payload in payloads if HUGE not in payload.values()]
    assert len(payloads) > 30
    whole = await derived(queue, payloads)
    clear = await derived(queue, [clear_part(payload) for payload in payloads])
    for payload, (kind, _, *rest), (clear_kind, _, *of_clear) in zip(payloads, whole, clear, strict=True):
        if len(kind) < slack.MAX_KEY:
            assert (kind, rest) == (clear_kind, of_clear), payload
