"""slack-sdk's own client works with the simulated Web API over HTTP."""

from collections.abc import AsyncIterator, Awaitable

import aiohttp
import pytest
from slack_sdk.errors import SlackApiError
from slack_sdk.http_retry.builtin_async_handlers import (
    AsyncRateLimitErrorRetryHandler,
    AsyncServerErrorRetryHandler,
)
from slack_sdk.models.blocks import SectionBlock
from slack_sdk.models.metadata import Metadata
from slack_sdk.web.async_client import AsyncWebClient
from slack_sdk.webhook.async_client import AsyncWebhookClient

from tests.system.slack_app import TOKEN, Answer, Pair, simulated

GENERAL, ADA = "C0GENERAL1", "U0ADA00001"


@pytest.fixture(scope="module")
async def pair() -> AsyncIterator[Pair]:
    async with simulated() as running:
        yield running


async def failing(call: Awaitable[object]) -> str:
    """Return the error of a failing call."""
    with pytest.raises(SlackApiError) as caught:
        await call
    return str(caught.value.response["error"])


async def test_the_token_is_somebodys(pair: Pair) -> None:
    told = await pair.web.auth_test()
    assert (told["team_id"], told["user_id"], told["bot_id"]) == ("T0SURELANE", "U0SURELANE", "B0SURELANE")


async def test_a_reply_with_metadata_is_found_again_in_its_thread(pair: Pair) -> None:
    asked = await pair.said()
    metadata = Metadata("surelane_reply", {"event_id": "Ev1", "ordinal": 0})
    posted = await pair.web.chat_postMessage(
        channel=GENERAL, thread_ts=asked["ts"], text="hi", metadata=metadata
    )
    assert posted["message"]["thread_ts"] == asked["ts"]
    assert posted["message"]["bot_id"] == "B0SURELANE"
    plain = await pair.web.conversations_replies(channel=GENERAL, ts=asked["ts"])
    full = await pair.web.conversations_replies(channel=GENERAL, ts=asked["ts"], include_all_metadata=True)
    assert [message["text"] for message in plain["messages"]] == ["<@U0SURELANE> hello", "hi"]
    assert "metadata" not in plain["messages"][1]
    assert full["messages"][1]["metadata"] == {
        "event_type": "surelane_reply",
        "event_payload": {"event_id": "Ev1", "ordinal": 0},
    }
    assert plain["messages"][0]["reply_count"] == 1
    assert plain["has_more"] is False


async def test_a_long_thread_comes_in_pages_that_slack_sdk_follows(pair: Pair) -> None:
    asked = await pair.said()
    for number in range(5):
        await pair.web.chat_postMessage(channel=GENERAL, thread_ts=asked["ts"], text=str(number))
    texts: list[str] = []
    async for page in await pair.web.conversations_replies(channel=GENERAL, ts=asked["ts"], limit=2):
        assert page["messages"][0]["ts"] == asked["ts"]
        texts += [message["text"] for message in page["messages"][1:]]
    assert texts == ["0", "1", "2", "3", "4"]


async def test_a_channels_history_has_its_replies_only_where_they_were_broadcast(pair: Pair) -> None:
    asked = await pair.said("history")
    await pair.web.chat_postMessage(channel=GENERAL, thread_ts=asked["ts"], text="quiet")
    await pair.web.chat_postMessage(channel=GENERAL, thread_ts=asked["ts"], text="loud", reply_broadcast=True)
    history = await pair.web.conversations_history(channel=GENERAL, oldest=asked["ts"], inclusive=True)
    assert [message["text"] for message in history["messages"]] == ["loud", "<@U0SURELANE> history"]
    assert history["messages"][0]["subtype"] == "thread_broadcast"


async def test_the_bots_messages_can_be_changed_and_taken_back_and_nobody_elses(pair: Pair) -> None:
    asked = await pair.said()
    posted = await pair.web.chat_postMessage(
        channel=GENERAL, text="first", blocks=[SectionBlock(text="first")]
    )
    changed = await pair.web.chat_update(channel=GENERAL, ts=posted["ts"], text="second")
    assert (changed["text"], changed["message"]["edited"]["user"]) == ("second", "U0SURELANE")
    assert (
        await failing(pair.web.chat_update(channel=GENERAL, ts=asked["ts"], text="no"))
        == "cant_update_message"
    )
    assert await failing(pair.web.chat_delete(channel=GENERAL, ts=asked["ts"])) == "cant_delete_message"
    await pair.web.chat_delete(channel=GENERAL, ts=posted["ts"])
    assert await failing(pair.web.chat_delete(channel=GENERAL, ts=posted["ts"])) == "message_not_found"


async def test_reactions(pair: Pair) -> None:
    asked = await pair.said()
    where = {"channel": GENERAL, "timestamp": asked["ts"]}
    await pair.web.reactions_add(name="eyes", **where)
    assert await failing(pair.web.reactions_add(name="eyes", **where)) == "already_reacted"
    told = await pair.web.reactions_get(**where)
    assert told["message"]["reactions"] == [{"name": "eyes", "users": ["U0SURELANE"], "count": 1}]
    await pair.web.reactions_remove(name="eyes", **where)
    assert await failing(pair.web.reactions_remove(name="eyes", **where)) == "no_reaction"
    assert await failing(pair.web.reactions_add(name="not a name", **where)) == "invalid_name"
    assert (
        await failing(pair.web.reactions_add(name="eyes", channel=GENERAL, timestamp="1.1"))
        == "message_not_found"
    )


async def test_a_streamed_reply_grows_and_ends_with_metadata(pair: Pair) -> None:
    asked = await pair.said()
    stream = await pair.web.chat_stream(
        channel=GENERAL,
        thread_ts=asked["ts"],
        recipient_team_id="T0SURELANE",
        recipient_user_id=ADA,
        buffer_size=4,
    )
    for part in ("some ", "words ", "at a time"):
        await stream.append(markdown_text=part)
    assert (
        await failing(pair.web.chat_update(channel=GENERAL, ts=str(stream.ts), text="x"))
        == "streaming_state_conflict"
    )
    ended = await stream.stop(metadata=Metadata("surelane_reply", {"event_id": "Ev2"}))
    assert ended["message"]["text"] == "some words at a time"
    assert ended["message"]["metadata"]["event_payload"] == {"event_id": "Ev2"}
    late = pair.web.chat_appendStream(channel=GENERAL, ts=str(stream.ts), markdown_text="more")
    assert await failing(late) == "message_not_in_streaming_state"


async def test_a_stream_in_a_channel_says_whom_it_answers_and_one_in_direct_messages_need_not(
    pair: Pair,
) -> None:
    asked = await pair.said()
    nameless = pair.web.chat_startStream(channel=GENERAL, thread_ts=asked["ts"])
    assert await failing(nameless) == "missing_recipient_team_id"
    private = await pair.said(channel="D0ADA00001")
    started = await pair.web.chat_startStream(
        channel="D0ADA00001", thread_ts=private["ts"], markdown_text="hi"
    )
    assert started["ts"]


async def test_a_status_is_shown_and_ends_with_the_reply(pair: Pair) -> None:
    asked = await pair.said()
    where = {"channel_id": GENERAL, "thread_ts": asked["ts"]}
    await pair.web.assistant_threads_setStatus(status="is thinking", **where)
    state = await pair.control.request("GET", "/control/state")
    assert [status["text"] for status in state["statuses"]] == ["is thinking"]
    await pair.web.chat_postMessage(channel=GENERAL, thread_ts=asked["ts"], text="here")
    assert (await pair.control.request("GET", "/control/state"))["statuses"] == []


async def test_who_and_where(pair: Pair) -> None:
    channels = [channel["name"] for channel in (await pair.web.conversations_list(limit=10))["channels"]]
    assert channels[:2] == ["general", "support"]
    assert (await pair.web.conversations_info(channel=GENERAL))["channel"]["is_member"] is True
    opened = await pair.web.conversations_open(users=[ADA], return_im=True)
    assert (opened["channel"]["id"], opened["channel"]["user"]) == ("D0ADA00001", ADA)
    assert (await pair.web.users_info(user=ADA))["user"]["real_name"] == "Ada Byron"
    assert len((await pair.web.users_list())["members"]) == 4
    assert await failing(pair.web.users_info(user="U0NOBODY")) == "user_not_found"
    assert await failing(pair.web.conversations_info(channel="C0NOWHERE")) == "channel_not_found"


async def test_what_one_user_alone_sees_is_not_in_the_history(pair: Pair) -> None:
    sent = await pair.web.chat_postEphemeral(channel=GENERAL, user=ADA, text="psst")
    history = await pair.web.conversations_history(channel=GENERAL, limit=1)
    assert history["messages"][0]["ts"] < sent["message_ts"]
    nobody = pair.web.chat_postEphemeral(channel=GENERAL, user="U0NOBODY", text="psst")
    assert await failing(nobody) == "user_not_in_channel"


async def test_the_bot_cannot_write_where_it_is_not_until_it_is_brought_in() -> None:
    async with simulated() as pair:
        assert await failing(pair.web.chat_postMessage(channel="#lounge", text="hi")) == "not_in_channel"
        await pair.control.request("POST", "/control/channels/lounge/members", {"user": "surelane"})
        assert (await pair.web.chat_postMessage(channel="#lounge", text="hi"))["channel"] == "C0LOUNGE01"


async def test_a_rate_limit_and_a_server_error_are_survived_by_slack_sdks_retry_handlers() -> None:
    async with simulated() as pair:
        await pair.control.request("POST", "/control/faults", {"kind": "rate_limited", "retry_after": 0})
        await pair.control.request(
            "POST", "/control/faults", {"kind": "server_error", "methods": ["auth.test"]}
        )
        handlers = [AsyncRateLimitErrorRetryHandler(2), AsyncServerErrorRetryHandler(2)]
        client = AsyncWebClient(token=TOKEN, base_url=f"{pair.url}/api/", retry_handlers=[*handlers])
        assert (await client.auth_test())["ok"]
        calls = (await pair.control.request("GET", "/control/calls"))["calls"]
        assert [(call["status"], call["error"]) for call in calls] == [
            (429, "ratelimited"),
            (500, "internal_error"),
            (200, None),
        ]


async def test_a_lost_answer_leaves_the_message_there() -> None:
    async with simulated() as pair:
        await pair.control.request(
            "POST", "/control/faults", {"kind": "answer_lost", "methods": ["chat.postMessage"]}
        )
        client = AsyncWebClient(token=TOKEN, base_url=f"{pair.url}/api/", retry_handlers=[])
        with pytest.raises(aiohttp.ClientError):
            await client.chat_postMessage(channel=GENERAL, text="did it arrive?")
        history = await pair.web.conversations_history(channel=GENERAL)
        assert [message["text"] for message in history["messages"]] == ["did it arrive?"]


async def test_a_refused_token_and_a_slow_answer() -> None:
    async with simulated() as pair:
        await pair.control.request("POST", "/control/faults", {"kind": "invalid_auth"})
        assert await failing(pair.web.auth_test()) == "invalid_auth"
        await pair.control.request("POST", "/control/faults", {"kind": "slow", "delay": "30s"})
        impatient = AsyncWebClient(token=TOKEN, base_url=f"{pair.url}/api/", timeout=1, retry_handlers=[])
        with pytest.raises(TimeoutError):
            await impatient.auth_test()


async def test_a_command_is_answered_at_its_response_url_five_times() -> None:
    async with simulated() as pair:
        pair.app.answers.append(
            Answer(body='{"text": "at once"}', headers={"Content-Type": "application/json"})
        )
        body = {"command": "/deploy", "text": "now", "channel": "general"}
        answer = await pair.control.request("POST", "/control/commands", body)
        hook = AsyncWebhookClient(answer["response_url"])
        sent = [await hook.send(text=f"{number}", response_type="in_channel") for number in range(6)]
        assert [response.status_code for response in sent] == [200] * 5 + [404]
        assert (sent[0].body, "used_url" in sent[5].body) == ("ok", True)
        history = await pair.web.conversations_history(channel=GENERAL)
        assert [message["text"] for message in history["messages"]] == ["4", "3", "2", "1", "0"]


async def test_a_modal_is_opened_once_and_submitted() -> None:
    async with simulated() as pair:
        trigger = (await pair.control.request("POST", "/control/commands", {"command": "/form"}))[
            "trigger_id"
        ]
        element = {"type": "plain_text_input", "action_id": "what"}
        block = {
            "type": "input",
            "block_id": "b",
            "label": {"type": "plain_text", "text": "What"},
            "element": element,
        }
        title = {"type": "plain_text", "text": "Form"}
        view = {"type": "modal", "title": title, "submit": title, "blocks": [block]}
        opened = await pair.web.views_open(trigger_id=trigger, view=view)
        assert await failing(pair.web.views_open(trigger_id=trigger, view=view)) == "exchanged_trigger_id"
        assert await failing(pair.web.views_open(trigger_id="1.2.3", view=view)) == "invalid_trigger_id"
        values = {"b": {"what": {"type": "plain_text_input", "value": "it"}}}
        answer = await pair.control.request(
            "POST", f"/control/views/{opened['view']['id']}", {"values": values}
        )
        assert answer["status"] == 200
        assert pair.app.received[-1].payload["type"] == "view_submission"
        assert pair.app.received[-1].genuine
