"""slack-sdk's own client works with the simulated Web API, and other bots and workflows act."""

import time
from typing import Any

import pytest
from slack_sdk.models.blocks import SectionBlock
from slack_sdk.models.metadata import Metadata
from slack_sdk.web.async_client import AsyncWebClient

from dev.tests.simulator.calls import ADA, BOT, GENERAL, LOUNGE, failing
from surelane_dev.simulator.client import SimulatorError
from tests.system.slack_app import Pair

SUBSCRIPTIONS = frozenset({"app_mention", "message.channels", "message.im", "function_executed"})


async def history(pair: Pair, **given: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await pair.web.conversations_history(channel=GENERAL, **given))["messages"]
    return found


async def texts(pair: Pair, **given: Any) -> list[str]:
    return [each["text"] for each in await history(pair, **given)]


async def heard(pair: Pair, count: int) -> list[dict[str, Any]]:
    """Wait for so many events; return them without their envelopes."""
    await pair.app.arrive(count)
    return [envelope["event"] for envelope in pair.app.events]


async def test_who_and_where(pair: Pair) -> None:
    told = await pair.web.auth_test()
    assert (told["team_id"], told["user_id"], told["bot_id"]) == ("T0SURELANE", BOT, "B0SURELANE")
    channels = [channel["name"] for channel in (await pair.web.conversations_list(limit=10))["channels"]]
    assert channels[:2] == ["general", "support"]
    assert (await pair.web.conversations_info(channel=GENERAL))["channel"]["is_member"] is True
    opened = await pair.web.conversations_open(users=[ADA], return_im=True)
    assert (opened["channel"]["id"], opened["channel"]["user"]) == ("D0ADA00001", ADA)
    assert (await pair.web.users_info(user=ADA))["user"]["real_name"] == "Ada Byron"
    assert len((await pair.web.users_list())["members"]) == 4
    assert (await pair.web.users_lookupByEmail(email="Ada@example.com"))["user"]["id"] == ADA
    assert (await pair.web.bots_info())["bot"]["user_id"] == BOT
    ts = (await pair.said())["ts"]
    address = await pair.web.chat_getPermalink(channel=GENERAL, message_ts=ts)
    assert address["permalink"].endswith(f"{GENERAL}/{ts}")
    for missing, error in (
        (pair.web.users_info(user="U0NOBODY"), "user_not_found"),
        (pair.web.conversations_info(channel="C0NOWHERE"), "channel_not_found"),
        (pair.web.users_lookupByEmail(email="x@example.com"), "users_not_found"),
        (pair.web.bots_info(bot="B0NOBODY"), "bot_not_found"),
        (pair.web.chat_getPermalink(channel=GENERAL, message_ts="1.000001"), "message_not_found"),
    ):
        assert await failing(missing) == error


async def test_who_is_where_and_what_a_channel_keeps(pair: Pair) -> None:
    web = pair.web
    assert set((await web.conversations_members(channel=GENERAL))["members"]) > {ADA, BOT}
    mine = await web.users_conversations(types="public_channel,im", limit=200)
    assert {each["id"] for each in mine["channels"]} >= {GENERAL, "D0ADA00001"}
    assert LOUNGE not in {each["id"] for each in mine["channels"]}
    assert LOUNGE in {each["id"] for each in (await web.users_conversations(user=ADA))["channels"]}
    team = await web.team_info()
    assert (team["team"]["id"], team["team"]["domain"]) == ("T0SURELANE", "surelane")
    assert (await web.users_profile_get(user=ADA))["profile"]["real_name"] == "Ada Byron"
    (group,) = (await web.usergroups_list(include_users=True))["usergroups"]
    assert (await web.usergroups_users_list(usergroup=group["id"]))["users"] == group["users"]
    ts = (await pair.said("@oncall: look"))["ts"]
    at: dict[str, Any] = {"channel": GENERAL, "timestamp": ts}
    await web.conversations_mark(channel=GENERAL, ts=ts)
    await web.pins_add(**at)
    assert await failing(web.pins_add(**at)) == "already_pinned"
    (pinned,) = (await web.pins_list(channel=GENERAL))["items"]
    assert (pinned["type"], pinned["created_by"]) == ("message", BOT)
    assert "<!subteam^S0ONCALL01|@oncall>: look" in pinned["message"]["text"]
    await web.pins_remove(**at)
    place: dict[str, Any] = {"channel_id": GENERAL}
    added = await web.bookmarks_add(**place, title="Docs", type="link", link="https://a.example")
    one: dict[str, Any] = {**place, "bookmark_id": added["bookmark"]["id"]}
    assert (await web.bookmarks_edit(**one, title="The docs"))["bookmark"]["link"] == "https://a.example"
    assert [each["title"] for each in (await web.bookmarks_list(**place))["bookmarks"]] == ["The docs"]
    await web.bookmarks_remove(**one)
    for missing, error in (
        (web.pins_remove(**at), "no_pin"),
        (web.pins_add(channel=GENERAL), "no_item_specified"),
        (web.bookmarks_remove(**one), "not_found"),
        (web.bookmarks_add(**place, title="x", type="link", link="ftp:x"), "invalid_link"),
        (web.usergroups_users_list(usergroup="S0NOBODY"), "no_such_subteam"),
        (web.users_profile_get(user="U0NOBODY"), "user_not_found"),
        (web.team_info(team="T0NOWHERE"), "team_not_found"),
        (web.conversations_members(channel="C0NOWHERE"), "channel_not_found"),
        (web.conversations_mark(channel=GENERAL, ts="now"), "invalid_timestamp"),
    ):
        assert await failing(missing) == error
    assert "channels:read" in team.headers["x-oauth-scopes"].split(",")
    assert team.headers["x-accepted-oauth-scopes"] == "team:read"


async def test_a_reply_with_metadata_is_found_in_its_thread_and_a_long_one_comes_in_pages(pair: Pair) -> None:
    ts = (await pair.said())["ts"]
    thread: dict[str, Any] = {"channel": GENERAL, "ts": ts}
    event = {"event_id": "Ev1", "ordinal": 0}
    metadata = Metadata("surelane_reply", event)
    posted = await pair.web.chat_postMessage(channel=GENERAL, thread_ts=ts, text="hi", metadata=metadata)
    assert (posted["message"]["thread_ts"], posted["message"]["bot_id"]) == (ts, "B0SURELANE")
    short = await pair.web.conversations_replies(**thread)
    full = await pair.web.conversations_replies(**thread, include_all_metadata=True)
    assert [message["text"] for message in short["messages"]] == ["<@U0SURELANE> hello", "hi"]
    assert "metadata" not in short["messages"][1]
    assert full["messages"][1]["metadata"] == {"event_type": "surelane_reply", "event_payload": event}
    assert (short["messages"][0]["reply_count"], short["has_more"]) == (1, False)
    asked = await pair.said()
    for number in range(5):
        await pair.web.chat_postMessage(channel=GENERAL, thread_ts=asked["ts"], text=str(number))
    replies: list[str] = []
    async for page in await pair.web.conversations_replies(channel=GENERAL, ts=asked["ts"], limit=2):
        assert page["messages"][0]["ts"] == asked["ts"]
        replies += [message["text"] for message in page["messages"][1:]]
    assert replies == ["0", "1", "2", "3", "4"]


async def test_a_channels_history_has_broadcast_replies_alone(pair: Pair) -> None:
    asked = await pair.said("history")
    thread = {"channel": GENERAL, "thread_ts": asked["ts"]}
    await pair.web.chat_postMessage(**thread, text="quiet")
    await pair.web.chat_postMessage(**thread, text="loud", reply_broadcast=True)
    sent = await pair.web.chat_postEphemeral(channel=GENERAL, user=ADA, text="psst")
    found = await history(pair, oldest=asked["ts"], inclusive=True)
    assert [message["text"] for message in found] == ["loud", "<@U0SURELANE> history"]
    assert found[0]["subtype"] == "thread_broadcast"
    assert found[0]["ts"] < sent["message_ts"]
    nobody = pair.web.chat_postEphemeral(channel=GENERAL, user="U0NOBODY", text="psst")
    assert await failing(nobody) == "user_not_in_channel"


async def test_reactions_and_the_bots_own_messages_can_be_changed_and_taken_back(pair: Pair) -> None:
    where = {"channel": GENERAL, "timestamp": (await pair.said())["ts"]}
    await pair.web.reactions_add(name="eyes", **where)
    assert await failing(pair.web.reactions_add(name="eyes", **where)) == "already_reacted"
    told = await pair.web.reactions_get(**where)
    assert told["message"]["reactions"] == [{"name": "eyes", "users": [BOT], "count": 1}]
    await pair.web.reactions_remove(name="eyes", **where)
    assert await failing(pair.web.reactions_remove(name="eyes", **where)) == "no_reaction"
    assert await failing(pair.web.reactions_add(name="not a name", **where)) == "invalid_name"
    nowhere = pair.web.reactions_add(name="eyes", channel=GENERAL, timestamp="1.1")
    assert await failing(nowhere) == "message_not_found"
    asked = {"channel": GENERAL, "ts": where["timestamp"]}
    posted = await pair.web.chat_postMessage(channel=GENERAL, text="one", blocks=[SectionBlock(text="one")])
    own = {"channel": GENERAL, "ts": posted["ts"]}
    changed = await pair.web.chat_update(**own, text="second")
    assert (changed["text"], changed["message"]["edited"]["user"]) == ("second", BOT)
    assert await failing(pair.web.chat_update(**asked, text="no")) == "cant_update_message"
    assert await failing(pair.web.chat_delete(**asked)) == "cant_delete_message"
    await pair.web.chat_delete(**own)
    assert await failing(pair.web.chat_delete(**own)) == "message_not_found"


async def test_a_streamed_reply_grows_and_ends_with_metadata_and_a_status_with_the_reply(pair: Pair) -> None:
    asked = await pair.said()
    thread = {"channel": GENERAL, "thread_ts": asked["ts"]}
    assert await failing(pair.web.chat_startStream(**thread)) == "missing_recipient_team_id"
    person = {"recipient_team_id": "T0SURELANE", "recipient_user_id": ADA}
    stream = await pair.web.chat_stream(**thread, **person, buffer_size=4)
    for part in ("some ", "words ", "at a time"):
        await stream.append(markdown_text=part)
    growing: dict[str, Any] = {"channel": GENERAL, "ts": str(stream.ts)}
    assert await failing(pair.web.chat_update(**growing, text="x")) == "streaming_state_conflict"
    ended = await stream.stop(metadata=Metadata("surelane_reply", {"event_id": "Ev2"}))
    assert ended["message"]["text"] == "some words at a time"
    assert ended["message"]["metadata"]["event_payload"] == {"event_id": "Ev2"}
    late = pair.web.chat_appendStream(**growing, markdown_text="more")
    assert await failing(late) == "message_not_in_streaming_state"
    private = await pair.said(channel="D0ADA00001")
    direct = {"channel": "D0ADA00001", "thread_ts": private["ts"]}
    assert (await pair.web.chat_startStream(**direct, markdown_text="hi"))["ts"], "it answers one person"
    where = {"channel_id": GENERAL, "thread_ts": asked["ts"]}
    await pair.web.assistant_threads_setStatus(status="is thinking", **where)
    state = await pair.control.request("GET", "/control/state")
    assert [status["text"] for status in state["statuses"]] == ["is thinking"]
    await pair.web.chat_postMessage(channel=GENERAL, thread_ts=asked["ts"], text="here")
    assert (await pair.control.request("GET", "/control/state"))["statuses"] == []


async def test_the_bot_writes_where_it_was_brought_in_or_has_joined(pair: Pair) -> None:
    assert await failing(pair.web.chat_postMessage(channel="#lounge", text="hi")) == "not_in_channel"
    await pair.control.request("POST", "/control/channels/lounge/members", {"user": "surelane"})
    assert (await pair.web.chat_postMessage(channel="#lounge", text="hi"))["channel"] == LOUNGE
    assert (await pair.web.conversations_join(channel=LOUNGE))["warning"] == "already_in_channel"
    direct = (await pair.web.conversations_open(users=ADA))["channel"]["id"]
    joining = pair.web.conversations_join(channel=direct)
    assert await failing(joining) == "method_not_supported_for_channel_type"


async def test_the_bot_joins_a_channel(pair: Pair) -> None:
    assert (await pair.web.conversations_join(channel=LOUNGE))["channel"]["is_member"]
    assert (await pair.web.chat_postMessage(channel=LOUNGE, text="x"))["ok"]


async def test_a_scheduled_message_is_posted_at_its_time_or_deleted_until_a_minute_before(pair: Pair) -> None:
    at: Any = int(time.time()) + 2
    answer = await pair.web.chat_scheduleMessage(channel=GENERAL, text="later", post_at=at)
    assert (answer["post_at"], answer["message"]["text"]) == (at, "later")
    (event,) = await heard(pair, 1)
    assert (event["text"], event["bot_id"]) == ("later", "B0SURELANE")
    assert float(event["ts"]) >= at
    assert (await pair.web.chat_scheduledMessages_list())["scheduled_messages"] == []
    near, far = int(time.time()) + 50, int(time.time()) + 3600
    first, second = [
        (await pair.web.chat_scheduleMessage(channel=GENERAL, text="x", post_at=at))["scheduled_message_id"]
        for at in (near, far)
    ]
    listed = (await pair.web.chat_scheduledMessages_list(channel=GENERAL))["scheduled_messages"]
    assert [(each["id"], each["post_at"]) for each in listed] == [(first, near), (second, far)]

    async def delete(message: str) -> Any:
        return await pair.web.chat_deleteScheduledMessage(channel=GENERAL, scheduled_message_id=message)

    assert await failing(delete(first)) == "invalid_scheduled_message_id"
    assert (await delete(second))["ok"]
    assert await failing(delete(second)) == "invalid_scheduled_message_id"
    now = int(time.time())
    refused = [(now - 1, "time_in_past"), (now + 121 * 86400, "time_too_far"), ("soon", "invalid_time")]
    for at, error in refused:
        assert await failing(pair.web.chat_scheduleMessage(channel=GENERAL, text="x", post_at=at)) == error
    at = (now // 300 + 10) * 300
    for _ in range(30):  # as many may be due in five minutes
        await pair.web.chat_scheduleMessage(channel=GENERAL, text="x", post_at=at)
    again = pair.web.chat_scheduleMessage(channel=GENERAL, text="x", post_at=at + 299)
    assert await failing(again) == "restricted_too_many"


async def test_a_function_runs_with_a_token_of_its_own_and_completes_once(pair: Pair) -> None:
    asked = {"callback_id": "greet", "inputs": {"user_id": ADA}}
    await pair.control.request("POST", "/control/functions", asked)
    (event,) = await heard(pair, 1)
    assert (event["type"], event["function"]["callback_id"]) == ("function_executed", "greet")
    assert event["inputs"] == {"user_id": ADA}
    token, run = event["bot_access_token"], event["function_execution_id"]
    assert token.startswith("xwfp-")
    own = AsyncWebClient(token=token, base_url=f"{pair.url}/api/")
    assert (await own.auth_test())["user_id"] == BOT
    assert (await own.functions_completeSuccess(function_execution_id=run, outputs={"said": "hi"}))["ok"]
    shown = await pair.control.request("GET", f"/control/functions/{run}")
    assert (shown["state"], shown["outputs"]) == ("completed", {"said": "hi"})
    assert await failing(own.auth_test()) == "token_expired"
    again = pair.web.functions_completeError(function_execution_id=run, error="x")
    assert await failing(again) == "execution_not_in_running_state"
    unknown = pair.web.functions_completeSuccess(function_execution_id="Fx0", outputs={})
    assert await failing(unknown) == "function_execution_not_found"


PROFILE = {"id": "B087BF2BC0", "app_id": "A087BF2BC0", "name": "Voice", "deleted": False}
FORMS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "me": ({"me": True}, {"user": ADA, "subtype": "me_message"}, "blocks bot_id"),
    "bot": ({"bot": "Deploys"}, {"subtype": "bot_message", "username": "Deploys"}, "user app_id"),
    "workflow": (
        {"workflow": "Weekly"},
        {"subtype": "bot_message", "username": "Weekly", "workflow_id": "Wf029751324"},
        "user app_id client_msg_id",
    ),
    "app": (
        {"app": "Voice"},
        {"user": ADA, "bot_id": PROFILE["id"], "app_id": PROFILE["app_id"], "bot_profile": PROFILE},
        "subtype username client_msg_id",
    ),
    "slackbot": ({"slackbot": True}, {"user": "USLACKBOT"}, "subtype bot_id app_id client_msg_id"),
}


@pytest.mark.parametrize("form", FORMS)
async def test_people_apps_workflows_and_slackbot_write_in_forms_of_their_own(pair: Pair, form: str) -> None:
    how, has, lacks = FORMS[form]
    await pair.control.say("@surelane waves", **how)
    events = await heard(pair, 2)
    assert sorted(event["type"] for event in events) == ["app_mention", "message"]
    for event in events:
        assert {name: event.get(name) for name in has} == has
        assert not {*lacks.split()} & event.keys()
    if form in ("bot", "app"):
        names = (await pair.web.bots_info(bot=events[0]["bot_id"]))["bot"]["name"]
        assert names == next(iter(how.values()))
    if "user" in has and form != "slackbot":
        direct = await pair.control.say("wonders", **how, channel="D0ADA00001")
        assert (await heard(pair, 3))[-1]["channel_type"] == "im", direct


async def test_a_reply_can_be_shown_in_the_channel_and_a_mention_may_be_empty(pair: Pair) -> None:
    assert (await pair.said(""))["text"] == f"<@{BOT}>"
    root = (await heard(pair, 2))[0]
    await pair.control.say("@surelane look", thread_ts=root["ts"], broadcast=True)
    for event in (await heard(pair, 4))[2:]:
        told = event["subtype"], event["thread_ts"], event["root"]["ts"]
        assert told == ("thread_broadcast", root["ts"], root["ts"])
    for how in ({"text": ""}, {"text": "x", "broadcast": True}):
        with pytest.raises(SimulatorError, match=r"may be empty only|no thread"):
            await pair.control.request("POST", "/control/messages", how)


async def test_a_mention_that_its_author_edits_is_sent_again_with_edited(pair: Pair) -> None:
    sent = await pair.said("deploy web")
    where = {"channel": GENERAL, "ts": sent["ts"]}
    await pair.control.request("PUT", "/control/messages", where | {"text": f"<@{BOT}> deploy"})
    await pair.control.request("PUT", "/control/messages", where | {"text": "@surelane deploy & go"})
    heard_of = [each for each in await heard(pair, 5) if each["type"] == "app_mention"]
    first, second = sorted(heard_of, key=lambda event: str(event["event_ts"]))
    assert ("edited" in first, first["event_ts"]) == (False, sent["ts"])
    assert (second["ts"], second["edited"]["user"], second["text"]) == (
        sent["ts"],
        ADA,
        f"<@{BOT}> deploy &amp; go",
    )
    assert second["event_ts"] == second["edited"]["ts"] > sent["ts"]


async def test_an_edit_says_what_was_there_before(pair: Pair) -> None:
    metadata = {"event_type": "filed", "event_payload": {"id": 7}}
    divider = {"type": "divider", "block_id": "d"}
    sent = await pair.web.chat_postMessage(channel=GENERAL, text="a", blocks=[divider], metadata=metadata)
    await pair.web.chat_update(channel=GENERAL, ts=sent["ts"], text="b", blocks=[])
    await pair.web.chat_delete(channel=GENERAL, ts=sent["ts"])
    posted, edited, deleted = sorted(await heard(pair, 3), key=lambda event: str(event["event_ts"]))
    assert (posted["blocks"], posted["metadata"]) == ([divider], metadata)
    assert (edited["subtype"], edited["hidden"]) == ("message_changed", True)
    assert (deleted["subtype"], deleted["deleted_ts"]) == ("message_deleted", sent["ts"])
    assert edited["previous_message"]["blocks"] == [divider]
    assert (edited["previous_message"]["text"], edited["message"]["text"]) == ("a", "b")
    assert edited["message"]["metadata"] == metadata
    assert deleted["previous_message"]["metadata"] == metadata
