"""The simulated Slack has modals, shortcuts, menus of the app, Home, feedback buttons, files and Stop."""

import json
from typing import Any

import aiohttp
import pytest
from slack_sdk.errors import SlackApiError
from slack_sdk.webhook.async_client import AsyncWebhookClient

from dev.tests.simulator.calls import ADA, failing, plain
from surelane_dev.simulator.app_answers import TROUBLE
from surelane_dev.simulator.client import SimulatorError
from tests.system.slack_app import Answer, Pair, simulated

SUBSCRIPTIONS = frozenset({"app_home_opened", "agent_session_stopped", "app_context_changed", "message.im"})
STREAMED: dict[str, Any] = {"recipient_team_id": "T", "recipient_user_id": ADA}


async def post(pair: Pair, path: str, **body: Any) -> dict[str, Any]:
    return await pair.control.request("POST", f"/control/{path}", body)


async def posted(pair: Pair, *elements: dict[str, Any], block: str = "actions") -> dict[str, Any]:
    """Post a message with elements; return what names it."""
    blocks = [{"type": block, "block_id": "b", "elements": list(elements)}]
    answer = await pair.web.chat_postMessage(channel="general", text="x", blocks=blocks)
    return {"channel": answer["channel"], "ts": answer["ts"]}


async def state(pair: Pair, what: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await pair.control.request("GET", "/control/state"))[what]
    return found


async def event(pair: Pair, sent: dict[str, Any]) -> dict[str, Any]:
    """Wait until an event is delivered; return it."""
    await pair.settled(sent["event"]["id"], "delivered")
    found: dict[str, Any] = pair.app.events[-1]["event"]
    return found


async def test_shortcuts_have_a_trigger_and_one_of_a_message_has_a_response_url_too(pair: Pair) -> None:
    await post(pair, "shortcuts", callback_id="ask", user="grace")
    payload = pair.app.received[-1].payload
    assert (payload["type"], payload["callback_id"]) == ("shortcut", "ask")
    assert payload["user"]["id"] == "U0GRACE001"
    assert not payload.keys() & {"channel", "message", "response_url"}
    said = await pair.said("look at this")
    await post(pair, "shortcuts", callback_id="file", channel=said["channel"], ts=said["ts"])
    payload = pair.app.received[-1].payload
    assert (payload["type"], payload["message"]["text"]) == ("message_action", said["text"])
    async with aiohttp.request("POST", payload["response_url"], json={"text": "filed"}) as answer:
        assert answer.status == 200


async def test_an_answer_that_comes_too_late_is_slackbots_warning_or_a_modals_trouble() -> None:
    async with simulated(timeout="300ms") as pair:
        pair.app.answers.append(Answer(after=300))
        await post(pair, "commands", command="/deploy")
        (shown,) = await state(pair, "messages")
        assert shown["text"] == '/deploy failed with the error "operation_timeout"'
        assert (shown["username"], shown["visible_to"], "bot_id" in shown) == ("Slackbot", ADA, False)
        view_id = await opened(pair)
        pair.app.answers.append(Answer(after=300))
        done = await submit(pair, view_id)
        assert (done["problem"], done["message"]) == ("http_timeout", TROUBLE)


async def test_a_commands_answer_is_shown(pair: Pair) -> None:
    failed = '/x failed with the error "dispatch_failed"'
    answer: object
    for answer, shown in (
        ({"text": "hello"}, [("hello", ADA)]),
        ({"text": "hello", "response_type": "in_channel"}, [("hello", None)]),
        ({"blocks": [{"type": "divider"}]}, [("", ADA)]),
        ({}, []),
        (["odd"], [(failed, ADA)]),
        ({"text": "x", "blocks": "odd"}, [(failed, ADA)]),
    ):
        before = len(await state(pair, "messages"))
        pair.app.answer(answer)
        await post(pair, "commands", command="/x")
        new = (await state(pair, "messages"))[before:]
        assert [(each["text"], each["visible_to"]) for each in new] == shown


async def test_a_menu_asks_the_app_from_the_length_it_names_and_unusable_options_are_none(pair: Pair) -> None:
    where = await posted(pair, {"type": "external_select", "action_id": "city", "min_query_length": 2})
    ask = {**where, "action_id": "city"}
    short = await post(pair, "options", **ask, query="b")
    assert (short["options"], short["type_more"], pair.app.received) == ([], 2, [])
    offered = [{"text": plain("Berlin"), "value": "ber"}]
    pair.app.answer({"options": offered})
    answer = await post(pair, "options", **ask, query="be")
    payload = pair.app.received[-1].payload
    assert answer["options"] == offered
    assert (payload["type"], payload["value"], payload["action_id"]) == ("block_suggestion", "be", "city")
    assert not payload.keys() & {"trigger_id", "response_url"}
    await post(pair, "actions", **ask, value="ber")
    assert pair.app.received[-1].payload["actions"][0]["selected_option"] == offered[0]
    with pytest.raises(SimulatorError, match="does not offer"):
        await post(pair, "actions", **ask, value="rom")
    groups = [{"label": plain("North"), "options": [{"text": plain("Oslo"), "value": "osl"}]}]
    pair.app.answer({"option_groups": groups})
    assert (await post(pair, "options", **ask, query="osl"))["option_groups"] == groups
    where = await posted(pair, {"type": "external_select", "action_id": "city"})
    for unusable in (
        Answer(),
        Answer(503),
        Answer(body="{}"),
        Answer(body='{"options": [{"value": "x"}]}'),
        Answer(body='{"option_groups": [1]}'),
        Answer(body=json.dumps({"options": [{"text": plain("x"), "value": str(n)} for n in range(101)]})),
    ):
        pair.app.answers.append(unusable)
        found = await post(pair, "options", **where, action_id="city", query="ber")
        assert (found["options"], bool(found["unusable"])) == ([], True), unusable


async def test_feedback_says_which_button_was_pressed(pair: Pair) -> None:
    feedback = {
        "type": "feedback_buttons",
        "action_id": "feedback",
        "positive_button": {"text": plain("Good"), "value": "good"},
        "negative_button": {"text": plain("Bad"), "value": "bad"},
    }
    trash = {"type": "icon_button", "action_id": "drop", "icon": "trash", "text": plain("Delete")}
    where = await posted(pair, feedback, trash, block="context_actions")
    await post(pair, "actions", **where, action_id="feedback", value="bad")
    await post(pair, "actions", **where, action_id="drop")
    with pytest.raises(SimulatorError, match="no button"):
        await post(pair, "actions", **where, action_id="stop")
    for each in (request.payload for request in pair.app.received):
        named = (each["type"], each["user"]["id"], each["container"]["message_ts"])
        assert named == ("block_actions", ADA, where["ts"])
    one, two = (each.payload["actions"][0] for each in pair.app.received)
    assert (one["action_id"], one["block_id"]) == ("feedback", "b")
    assert (one["type"], one["value"], one["text"]["text"]) == ("feedback_buttons", "bad", "Bad")
    assert (two["type"], two["icon"]) == ("icon_button", "trash")


async def test_home_is_opened_published_and_used(pair: Pair) -> None:
    opened = await event(pair, await post(pair, "home", tab="home"))
    assert (opened["type"], opened["tab"], opened["channel"]) == ("app_home_opened", "home", "D0ADA00001")
    assert "view" not in opened
    button = {"type": "button", "action_id": "go", "text": plain("Go")}
    view = {"type": "home", "blocks": [{"type": "actions", "elements": [button]}]}
    published = await pair.web.views_publish(user_id=ADA, view=view)
    view_id, old = published["view"]["id"], published["view"]["hash"]
    await post(pair, "actions", view_id=view_id, action_id="go")
    assert pair.app.received[-1].payload["view"]["type"] == "home"
    again = await pair.web.views_publish(user_id=ADA, view=view, hash=old)
    assert again["view"]["id"] == view_id
    assert await failing(pair.web.views_publish(user_id=ADA, view=view, hash=old)) == "hash_conflict"


async def test_stop_ends_the_streams_and_tells_the_app(pair: Pair) -> None:
    said = await pair.said()
    thread = {"channel": said["channel"], "thread_ts": said["ts"]}
    session = {"channel_id": said["channel"], "thread_ts": said["ts"]}
    with pytest.raises(SimulatorError, match="not working"):
        await post(pair, "stop", **thread)
    began = await pair.web.agents_sessions_setStatus(status="processing", title="Deploy", **session)
    assert (began["agent_status"], began.get("warning")) == ("processing", None)
    ts = (await pair.web.chat_startStream(**thread, **STREAMED))["ts"]
    stopped = await event(pair, await post(pair, "stop", **thread))
    assert (stopped["type"], stopped["streaming_message_ts"]) == ("agent_session_stopped", [ts])
    late = pair.web.chat_appendStream(channel=said["channel"], ts=ts, markdown_text="more")
    assert await failing(late) == "message_not_in_streaming_state"
    sessions = await state(pair, "sessions")
    assert [each["status"] for each in sessions] == ["processing"], "the app ends it itself"
    ts = (await pair.web.chat_startStream(**thread, **STREAMED))["ts"]
    await pair.web.chat_stopStream(channel=said["channel"], ts=ts, markdown_text="done")
    assert [each["status"] for each in await state(pair, "sessions")] == ["active"]


async def test_slack_sends_no_event_without_its_subscription_and_warns_an_agent_that_needs_one() -> None:
    async with simulated(subscriptions=frozenset({"app_mention"})) as pair:
        assert (await post(pair, "home"))["event"] is None
        said = await pair.said()
        session = {"channel_id": said["channel"], "thread_ts": said["ts"]}
        began = await pair.web.agents_sessions_setStatus(status="processing", **session)
        assert began["warning"].startswith("missing_agent_session_stopped")


async def test_a_file_is_shared_and_can_be_saved_once_its_bytes_are_there(pair: Pair) -> None:
    said = await pair.said()
    thread = {"channel": said["channel"], "thread_ts": said["ts"], "initial_comment": "here"}
    await pair.web.files_upload_v2(content="all well", filename="<report>.txt", **thread)
    shared = (await state(pair, "messages"))[-1]
    (file,) = shared["files"]
    assert (shared["text"], file["name"], file["size"]) == ("here", "<report>.txt", 8)
    async with aiohttp.request("GET", file["url_private_download"]) as response:
        assert await response.text() == "all well"
        assert response.headers["Content-Disposition"].startswith("attachment")
    place = await pair.web.files_getUploadURLExternal(filename="x", length=8)
    share: dict[str, Any] = {"files": [{"id": place["file_id"]}], "channel_id": "general"}
    with pytest.raises(SlackApiError, match="file_not_found"):
        await pair.web.files_completeUploadExternal(**share)
    for data, status in (("short", 400), ("all well", 200)):
        async with aiohttp.request("POST", place["upload_url"], data=data) as answer:
            assert answer.status == status
    await pair.web.files_completeUploadExternal(**share)


async def test_what_a_person_looks_at_is_an_event_and_comes_with_their_direct_messages(pair: Pair) -> None:
    assert (await post(pair, "context", channel="lounge", user="ada"))["event"]
    await pair.said("hello", channel="D0ADA00001", mention=False, wait=True)
    changed, message = (each["event"] for each in pair.app.events[-2:])
    assert (changed["type"], changed["user"]) == ("app_context_changed", ADA)
    (entity,) = changed["context"]["entities"]
    assert entity["type"] == "slack#/types/channel_id"
    assert (message["text"], message["app_context"]) == ("hello", changed["context"])


async def test_opening_an_assistant_starts_a_thread_that_hears_of_each_channel() -> None:
    both = frozenset({"assistant_thread_started", "assistant_thread_context_changed"})
    async with simulated(subscriptions=both) as pair:
        assert (await post(pair, "home", tab="home"))["event"] is None
        assert (await post(pair, "home", tab="messages"))["event"] is None
        await pair.app.arrive(1)
        assert await post(pair, "context", channel="lounge")
        await pair.app.arrive(2)
        await post(pair, "home", tab="messages")
        await pair.app.arrive(3)
        await post(pair, "context", channel="general", thread_ts="1.1", user="ada")
        await pair.app.arrive(4)
        events = [each["event"] for each in pair.app.events]
        started, changed = "assistant_thread_started", "assistant_thread_context_changed"
        assert [each["type"] for each in events] == [started, changed, started, changed]
        first, then, new, named = (each["assistant_thread"] for each in events)
        assert (first["user_id"], first["channel_id"], first["context"]) == (ADA, "D0ADA00001", {})
        assert then["thread_ts"] == first["thread_ts"] != new["thread_ts"]
        assert then["context"] == new["context"]
        assert new["context"]["channel_id"].startswith("C")
        assert (named["user_id"], named["thread_ts"]) == (ADA, "1.1")
        assert named["context"]["channel_id"] == "C0GENERAL1"
        reply = {"channel": first["channel_id"], "thread_ts": first["thread_ts"]}
        assert (await pair.web.chat_postMessage(text="How can I help?", **reply))["ok"], "the thread exists"


View = dict[str, Any]
FILLED = {"values": {"b": {"what": "it"}}}


def asking(name: str, **fields: Any) -> View:
    """Return a modal with one text input, in the block ``b``."""
    element = {"type": "plain_text_input", "action_id": "what"}
    block = {"type": "input", "block_id": "b", "label": plain("What"), "element": element}
    view = {"type": "modal", "callback_id": name, "title": plain(name), "submit": plain("Go")}
    return {**view, "blocks": [block], **fields}


async def triggered(pair: Pair) -> str:
    """Return the trigger id of a shortcut that Ada used."""
    return str((await post(pair, "shortcuts", callback_id="ask"))["trigger_id"])


async def opened(pair: Pair, view: View | None = None) -> str:
    """Open a modal for Ada; return its id."""
    answer = await pair.web.views_open(trigger_id=await triggered(pair), view=view or asking("one"))
    return str(answer["view"]["id"])


async def submit(pair: Pair, view_id: str, body: View | None = None) -> dict[str, Any]:
    return await pair.control.request("POST", f"/control/views/{view_id}", body or FILLED)


async def shown(pair: Pair) -> list[str]:
    """Return the modals that Ada sees, the lowest first, by their ``callback_id``."""
    (hers,) = [views for views in await state(pair, "views") if views["user"] == ADA]
    return [view["callback_id"] for view in hers["modals"]]


async def test_the_app_is_asked_when_all_is_filled_in_and_an_empty_answer_closes_it(pair: Pair) -> None:
    trigger = await triggered(pair)
    view_id = (await pair.web.views_open(trigger_id=trigger, view=asking("one")))["view"]["id"]
    again = pair.web.views_open(trigger_id=trigger, view=asking("one"))
    assert await failing(again) == "exchanged_trigger_id"
    unknown = pair.web.views_open(trigger_id="1.2.3", view=asking("one"))
    assert await failing(unknown) == "invalid_trigger_id"
    before = len(pair.app.received)
    done = await submit(pair, view_id, {"values": {}})
    assert done["errors"] == {"b": "Please complete this required field."}
    assert len(pair.app.received) == before
    done = await submit(pair, view_id)
    assert (done["status"], done["errors"], done["message"]) == (200, {}, None)
    payload = pair.app.received[-1].payload
    assert (payload["type"], pair.app.received[-1].genuine) == ("view_submission", True)
    assert payload["view"]["state"]["values"]["b"]["what"] == {"type": "plain_text_input", "value": "it"}
    assert await shown(pair) == []
    assert await failing(pair.web.views_update(view_id=view_id, view=asking("late"))) == "not_found"


async def test_errors_leave_a_modal_open_update_replaces_push_covers_and_clear_closes_it(pair: Pair) -> None:
    view_id = await opened(pair)
    errors = {"response_action": "errors", "errors": {"b": "Not this."}}
    for answer, left in (
        (errors, ["one"]),
        ({"response_action": "update", "view": asking("two")}, ["two"]),
        ({"response_action": "push", "view": asking("over")}, ["two", "over"]),
        ({"response_action": "clear"}, []),
    ):
        pair.app.answer(answer)
        assert (await submit(pair, view_id))["errors"] == answer.get("errors", {})
        assert await shown(pair) == left
    view_id = await opened(pair)
    for unusable in (
        Answer(500),
        Answer(body="ok"),
        Answer(body='{"ok": true}'),
        Answer(body='{"response_action": "errors", "errors": {}}'),
        Answer(body='{"response_action": "errors", "errors": {"nowhere": "x"}}'),
        Answer(body='{"response_action": "update"}'),
        Answer(body='{"response_action": "update", "view": {"type": "home", "blocks": []}}'),
        Answer(body='{"response_action": "close"}'),
        Answer(body="[]"),
    ):
        pair.app.answers.append(unusable)
        done = await submit(pair, view_id)
        assert (done["message"], done["errors"], await shown(pair)) == (TROUBLE, {}, ["one"]), unusable


async def test_three_modals_at_most_lie_over_each_other_and_none_over_nothing(pair: Pair) -> None:
    nothing = pair.web.views_push(trigger_id=await triggered(pair), view=asking("x"))
    assert await failing(nothing) == "not_found"
    view_id = await opened(pair)
    for name in ("two", "three"):
        trigger = await triggered(pair)
        pushed = await pair.web.views_push(trigger_id=trigger, view=asking(name))
        assert pushed["view"]["root_view_id"] == view_id
        again = pair.web.views_push(trigger_id=trigger, view=asking("again"))
        assert await failing(again) == "exchanged_trigger_id"
    assert await shown(pair) == ["one", "two", "three"]
    trigger = await triggered(pair)
    assert await failing(pair.web.views_push(trigger_id=trigger, view=asking("x"))) == "push_limit_reached"
    pair.app.answer({"response_action": "push", "view": asking("x")})
    assert (await submit(pair, pushed["view"]["id"]))["message"] == TROUBLE
    await submit(pair, pushed["view"]["id"])
    assert await shown(pair) == ["one", "two"]


async def test_an_old_hash_conflicts_an_external_id_is_used_once_and_a_view_has_a_bound(pair: Pair) -> None:
    named = asking("one", external_id="mine")
    answer = await pair.web.views_open(trigger_id=await triggered(pair), view=named)
    first = answer["view"]["hash"]
    second = await pair.web.views_update(external_id="mine", hash=first, view=asking("two"))
    assert second["view"]["hash"] != first
    again = pair.web.views_update(view_id=answer["view"]["id"], hash=first, view=asking("three"))
    assert await failing(again) == "hash_conflict"
    assert await shown(pair) == ["two"]
    await opened(pair, asking("three", external_id="other"))
    twice = pair.web.views_open(trigger_id=await triggered(pair), view=asking("x", external_id="other"))
    assert await failing(twice) == "duplicate_external_id"
    blocks = [{"type": "markdown", "text": "x" * 250_000}]
    assert await failing(opened(pair, asking("one", blocks=blocks))) == "view_too_large"
    assert await shown(pair) == ["three"]


async def test_the_app_hears_of_a_closed_modal_only_if_it_asked_for_that(pair: Pair) -> None:
    view_id = await opened(pair)
    await pair.control.request("DELETE", f"/control/views/{view_id}", {})
    assert [each.payload["type"] for each in pair.app.received] == ["shortcut"]
    view_id = await opened(pair, asking("two", notify_on_close=True))
    await pair.web.views_push(trigger_id=await triggered(pair), view=asking("three", notify_on_close=True))
    await pair.control.request("DELETE", f"/control/views/{view_id}", {"all": True})
    closed = [each.payload for each in pair.app.received[-2:]]
    assert [(each["type"], each["view"]["callback_id"], each["is_cleared"]) for each in closed] == [
        ("view_closed", "three", True),
        ("view_closed", "two", True),
    ]
    assert "trigger_id" not in closed[0]
    with pytest.raises(SimulatorError, match="not open"):
        await submit(pair, view_id)


async def test_a_change_of_an_input_is_posted_with_what_the_others_hold(pair: Pair) -> None:
    size = {"type": "static_select", "action_id": "size", "options": [{"text": plain("L"), "value": "l"}]}
    blocks = [*asking("x")["blocks"], {"type": "actions", "block_id": "s", "elements": [size]}]
    view_id = await opened(pair, asking("one", blocks=blocks))
    values = {"b": {"what": "half"}, "s": {"size": "l"}}
    press = {"view_id": view_id, "action_id": "size", "value": "l", "values": values}
    await post(pair, "actions", **press)
    payload = pair.app.received[-1].payload
    assert payload["container"] == {"type": "view", "view_id": view_id}
    assert payload["actions"][0]["selected_option"]["value"] == "l"
    assert payload["view"]["state"]["values"]["b"]["what"]["value"] == "half"
    await pair.web.views_push(trigger_id=payload["trigger_id"], view=asking("two"))
    assert await shown(pair) == ["one", "two"]


async def test_a_menu_of_channels_may_ask_for_a_response_url(pair: Pair) -> None:
    menu = {"type": "conversations_select", "action_id": "where", "response_url_enabled": True}
    block = {"type": "input", "block_id": "c", "label": plain("Where"), "element": menu}
    view_id = await opened(pair, asking("one", blocks=[block]))
    await submit(pair, view_id, {"values": {"c": {"where": "C0SUPPORT1"}}})
    (place,) = pair.app.received[-1].payload["response_urls"]
    assert (place["block_id"], place["action_id"], place["channel_id"]) == ("c", "where", "C0SUPPORT1")
    assert (await AsyncWebhookClient(place["response_url"]).send(text="filed")).status_code == 200
    assert [(each["channel"], each["text"]) for each in await state(pair, "messages")] == [
        ("C0SUPPORT1", "filed")
    ]
