"""The simulated Slack has shortcuts, menus of the app, Home, feedback buttons, files and Stop."""

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from slack_sdk.errors import SlackApiError

from surelane_dev.simulator.client import SimulatorError
from tests.system.slack_app import Answer, Pair, simulated

ADA = "U0ADA00001"
ALL = frozenset({"app_home_opened", "agent_session_stopped", "app_context_changed", "message.im"})


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with simulated(subscriptions=ALL) as running:
        yield running


def plain(text: str) -> dict[str, str]:
    return {"type": "plain_text", "text": text}


async def posted(pair: Pair, *elements: dict[str, Any], block: str = "actions") -> dict[str, Any]:
    """Post a message with elements; return what names it."""
    answer = await pair.web.chat_postMessage(
        channel="general", text="x", blocks=[{"type": block, "elements": list(elements)}]
    )
    return {"channel": answer["channel"], "ts": answer["ts"]}


async def messages(pair: Pair) -> list[dict[str, Any]]:
    state = await pair.control.request("GET", "/control/state")
    found: list[dict[str, Any]] = state["messages"]
    return found


async def test_a_global_shortcut_has_a_trigger_and_no_channel(pair: Pair) -> None:
    await pair.control.request("POST", "/control/shortcuts", {"callback_id": "ask", "user": "grace"})
    payload = pair.app.received[-1].payload
    assert (payload["type"], payload["callback_id"]) == ("shortcut", "ask")
    assert payload["user"]["id"] == "U0GRACE001"
    assert not payload.keys() & {"channel", "message", "response_url"}


async def test_a_messages_shortcut_has_the_message_and_a_response_url(pair: Pair) -> None:
    said = await pair.said("look at this")
    body = {"callback_id": "file", "channel": said["channel"], "ts": said["ts"]}
    await pair.control.request("POST", "/control/shortcuts", body)
    payload = pair.app.received[-1].payload
    assert (payload["type"], payload["message"]["text"]) == ("message_action", said["text"])
    async with (
        aiohttp.ClientSession() as session,
        session.post(payload["response_url"], json={"text": "filed"}) as answer,
    ):
        assert answer.status == 200


async def test_a_command_without_an_answer_in_time_is_slackbots_warning() -> None:
    async with simulated(timeout="300ms") as pair:
        pair.app.answers.append(Answer(after=30))
        await pair.control.request("POST", "/control/commands", {"command": "/deploy"})
        (shown,) = await messages(pair)
        assert shown["text"] == '/deploy failed with the error "operation_timeout"'
        assert (shown["username"], shown["visible_to"], "bot_id" in shown) == ("Slackbot", ADA, False)


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        ({"text": "hello"}, [("hello", ADA)]),
        ({"text": "hello", "response_type": "in_channel"}, [("hello", None)]),
        ({"blocks": [{"type": "divider"}]}, [("", ADA)]),
        ({}, []),
        (["odd"], [('/x failed with the error "dispatch_failed"', ADA)]),
        ({"text": "x", "blocks": "odd"}, [('/x failed with the error "dispatch_failed"', ADA)]),
    ],
)
async def test_a_commands_answer_is_shown(pair: Pair, answer: object, shown: list[tuple[str, str]]) -> None:
    pair.app.answer(answer)
    await pair.control.request("POST", "/control/commands", {"command": "/x"})
    assert [(each["text"], each["visible_to"]) for each in await messages(pair)] == shown


async def test_a_menu_asks_the_app_from_the_length_it_names(pair: Pair) -> None:
    where = await posted(pair, {"type": "external_select", "action_id": "city", "min_query_length": 2})
    ask = {**where, "action_id": "city"}
    short = await pair.control.request("POST", "/control/options", ask | {"query": "b"})
    assert (short["options"], short["type_more"], pair.app.received) == ([], 2, [])
    offered = [{"text": plain("Berlin"), "value": "ber"}]
    pair.app.answer({"options": offered})
    answer = await pair.control.request("POST", "/control/options", ask | {"query": "be"})
    payload = pair.app.received[-1].payload
    assert answer["options"] == offered
    assert (payload["type"], payload["value"], payload["action_id"]) == ("block_suggestion", "be", "city")
    assert not payload.keys() & {"trigger_id", "response_url"}
    await pair.control.request("POST", "/control/actions", ask | {"value": "ber"})
    assert pair.app.received[-1].payload["actions"][0]["selected_option"] == offered[0]
    with pytest.raises(SimulatorError, match="does not offer"):
        await pair.control.request("POST", "/control/actions", ask | {"value": "rom"})


@pytest.mark.parametrize(
    "answer",
    [
        Answer(),
        Answer(503),
        Answer(body="{}"),
        Answer(body='{"options": [{"value": "x"}]}'),
        Answer(body='{"option_groups": [1]}'),
        Answer(body=json.dumps({"options": [{"text": plain("x"), "value": str(n)} for n in range(101)]})),
    ],
    ids=["empty", "503", "no options", "no text", "no group", "101"],
)
async def test_options_that_slack_cannot_use_are_none(pair: Pair, answer: Answer) -> None:
    where = await posted(pair, {"type": "external_select", "action_id": "city"})
    pair.app.answers.append(answer)
    found = await pair.control.request(
        "POST", "/control/options", {**where, "action_id": "city", "query": "ber"}
    )
    assert (found["options"], bool(found["unusable"])) == ([], True)


async def test_options_in_groups(pair: Pair) -> None:
    where = await posted(pair, {"type": "external_select", "action_id": "city"})
    groups = [{"label": plain("North"), "options": [{"text": plain("Oslo"), "value": "osl"}]}]
    pair.app.answer({"option_groups": groups})
    ask = {**where, "action_id": "city", "query": "osl"}
    assert (await pair.control.request("POST", "/control/options", ask))["option_groups"] == groups


async def test_feedback_says_which_button_was_pressed(pair: Pair) -> None:
    feedback = {
        "type": "feedback_buttons",
        "action_id": "feedback",
        "positive_button": {"text": plain("Good"), "value": "good"},
        "negative_button": {"text": plain("Bad"), "value": "bad"},
    }
    trash = {"type": "icon_button", "action_id": "drop", "icon": "trash", "text": plain("Delete")}
    where = await posted(pair, feedback, trash, block="context_actions")
    await pair.control.request("POST", "/control/actions", {**where, "action_id": "feedback", "value": "bad"})
    await pair.control.request("POST", "/control/actions", {**where, "action_id": "drop"})
    (one, two) = (each.payload["actions"][0] for each in pair.app.received)
    assert (one["type"], one["value"], one["text"]["text"]) == ("feedback_buttons", "bad", "Bad")
    assert (two["type"], two["icon"]) == ("icon_button", "trash")


async def test_home_is_opened_published_and_used(pair: Pair) -> None:
    opened = await pair.control.request("POST", "/control/home", {"tab": "home"})
    await pair.settled(opened["event"]["id"], "delivered")
    event = pair.app.events[0]["event"]
    assert (event["type"], event["tab"], event["channel"]) == ("app_home_opened", "home", "D0ADA00001")
    assert "view" not in event
    button = {"type": "button", "action_id": "go", "text": plain("Go")}
    view = {"type": "home", "blocks": [{"type": "actions", "elements": [button]}]}
    published = await pair.web.views_publish(user_id=ADA, view=view)
    view_id = published["view"]["id"]
    await pair.control.request("POST", "/control/actions", {"view_id": view_id, "action_id": "go"})
    assert pair.app.received[-1].payload["view"]["type"] == "home"
    again = await pair.web.views_publish(user_id=ADA, view=view, hash=published["view"]["hash"])
    assert again["view"]["id"] == view_id
    with pytest.raises(SlackApiError, match="hash_conflict"):
        await pair.web.views_publish(user_id=ADA, view=view, hash=published["view"]["hash"])


async def test_an_event_without_a_subscription_is_not_sent() -> None:
    async with simulated(subscriptions=frozenset({"app_mention"})) as pair:
        assert (await pair.control.request("POST", "/control/home", {}))["event"] is None


async def test_stop_ends_the_streams_and_tells_the_app(pair: Pair) -> None:
    said = await pair.said()
    where = {"channel_id": said["channel"], "thread_ts": said["ts"]}
    stop = {"channel": said["channel"], "thread_ts": said["ts"]}
    with pytest.raises(SimulatorError, match="not working"):
        await pair.control.request("POST", "/control/stop", stop)
    began = await pair.web.agents_sessions_setStatus(status="processing", title="Deploy", **where)
    assert (began["agent_status"], began.get("warning")) == ("processing", None)
    stream = await pair.web.chat_startStream(
        channel=said["channel"], thread_ts=said["ts"], recipient_team_id="T", recipient_user_id=ADA
    )
    stopped = await pair.control.request("POST", "/control/stop", stop)
    await pair.settled(stopped["event"]["id"], "delivered")
    event = pair.app.events[-1]["event"]
    assert (event["type"], event["streaming_message_ts"]) == ("agent_session_stopped", [stream["ts"]])
    with pytest.raises(SlackApiError, match="message_not_in_streaming_state"):
        await pair.web.chat_appendStream(channel=said["channel"], ts=stream["ts"], markdown_text="more")
    state = await pair.control.request("GET", "/control/state")
    assert [session["status"] for session in state["sessions"]] == ["processing"], "the app ends it itself"


async def test_the_end_of_a_stream_ends_the_sessions_work(pair: Pair) -> None:
    said = await pair.said()
    where = {"channel_id": said["channel"], "thread_ts": said["ts"]}
    await pair.web.agents_sessions_setStatus(status="processing", **where)
    stream = await pair.web.chat_startStream(
        channel=said["channel"], thread_ts=said["ts"], recipient_team_id="T", recipient_user_id=ADA
    )
    await pair.web.chat_stopStream(channel=said["channel"], ts=stream["ts"], markdown_text="done")
    state = await pair.control.request("GET", "/control/state")
    assert [session["status"] for session in state["sessions"]] == ["active"]


async def test_slack_warns_an_agent_that_does_not_hear_of_stop() -> None:
    async with simulated() as pair:
        said = await pair.said()
        began = await pair.web.agents_sessions_setStatus(
            status="processing", channel_id=said["channel"], thread_ts=said["ts"]
        )
        assert began["warning"].startswith("missing_agent_session_stopped")


async def test_a_file_is_shared_and_can_be_saved(pair: Pair) -> None:
    said = await pair.said()
    await pair.web.files_upload_v2(
        content="all well",
        filename="<report>.txt",
        channel=said["channel"],
        thread_ts=said["ts"],
        initial_comment="here",
    )
    shared = (await messages(pair))[-1]
    (file,) = shared["files"]
    assert (shared["text"], file["name"], file["size"]) == ("here", "<report>.txt", 8)
    async with aiohttp.ClientSession() as session, session.get(file["url_private_download"]) as response:
        assert await response.text() == "all well"
        assert response.headers["Content-Disposition"].startswith("attachment")


async def test_a_file_whose_bytes_are_missing_cannot_be_shared(pair: Pair) -> None:
    place = await pair.web.files_getUploadURLExternal(filename="x", length=8)
    with pytest.raises(SlackApiError, match="file_not_found"):
        await pair.web.files_completeUploadExternal(files=[{"id": place["file_id"]}], channel_id="general")
    async with aiohttp.ClientSession() as session:
        async with session.post(place["upload_url"], data=b"short") as refused:
            assert refused.status == 400
        async with session.post(place["upload_url"], data=b"all well") as taken:
            assert taken.status == 200
    await pair.web.files_completeUploadExternal(files=[{"id": place["file_id"]}], channel_id="general")


async def test_what_a_person_looks_at_is_an_event_and_comes_with_their_direct_messages(pair: Pair) -> None:
    look = {"channel": "lounge", "user": "ada"}
    assert (await pair.control.request("POST", "/control/context", look))["event"]
    await pair.said("hello", channel="D0ADA00001", mention=False, wait=True)
    changed, message = (each["event"] for each in pair.app.events[-2:])
    assert (changed["type"], changed["user"]) == ("app_context_changed", ADA)
    (entity,) = changed["context"]["entities"]
    assert entity["type"] == "slack#/types/channel_id"
    assert (message["text"], message["app_context"]) == ("hello", changed["context"])


async def test_an_assistants_thread_hears_of_its_context() -> None:
    async with simulated(subscriptions=frozenset({"assistant_thread_context_changed"})) as pair:
        look = {"channel": "general", "thread_ts": "1.1", "user": "ada"}
        await pair.control.request("POST", "/control/context", look)
        await pair.app.arrive(1)
        thread = pair.app.events[-1]["event"]["assistant_thread"]
        assert (thread["user_id"], thread["thread_ts"], thread["context"]["channel_id"]) == (
            ADA,
            "1.1",
            "C0GENERAL1",
        )


async def test_opening_an_assistant_starts_a_thread_that_hears_of_each_channel() -> None:
    both = frozenset({"assistant_thread_started", "assistant_thread_context_changed"})
    async with simulated(subscriptions=both) as pair:
        assert (await pair.control.request("POST", "/control/home", {"tab": "home"}))["event"] is None
        assert (await pair.control.request("POST", "/control/home", {"tab": "messages"}))["event"] is None
        await pair.app.arrive(1)
        assert await pair.control.request("POST", "/control/context", {"channel": "lounge"})
        await pair.app.arrive(2)
        await pair.control.request("POST", "/control/home", {"tab": "messages"})
        await pair.app.arrive(3)
        started, changed, again = (each["event"] for each in pair.app.events)
        assert [each["type"] for each in (started, changed, again)] == [
            "assistant_thread_started",
            "assistant_thread_context_changed",
            "assistant_thread_started",
        ]
        first, then, new = (each["assistant_thread"] for each in (started, changed, again))
        assert (first["user_id"], first["channel_id"], first["context"]) == (ADA, "D0ADA00001", {})
        assert then["thread_ts"] == first["thread_ts"] != new["thread_ts"]
        assert then["context"] == new["context"]
        assert new["context"]["channel_id"].startswith("C")
        reply = {"channel": first["channel_id"], "thread_ts": first["thread_ts"]}
        assert (await pair.web.chat_postMessage(text="How can I help?", **reply))["ok"], "the thread exists"
