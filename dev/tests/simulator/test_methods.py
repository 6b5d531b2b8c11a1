"""The simulator serves the methods that Slack's samples call, and lets other bots and workflows act."""

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from slack_sdk.errors import SlackApiError
from slack_sdk.web.async_client import AsyncWebClient

from surelane_dev.simulator.client import SimulatorError
from tests.system.slack_app import Pair, simulated

ROOM, LOUNGE, ADA, BOT = "C0GENERAL1", "C0LOUNGE01", "U0ADA00001", "U0SURELANE"
EVENTS = frozenset({"app_mention", "message.channels", "message.im", "function_executed"})


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with simulated(subscriptions=EVENTS) as running:
        yield running


async def failing(calling: Any) -> str:
    with pytest.raises(SlackApiError) as caught:
        await calling
    error: str = caught.value.response["error"]
    return error


async def texts(pair: Pair) -> list[str]:
    return [each["text"] for each in (await pair.web.conversations_history(channel=ROOM))["messages"]]


async def heard(pair: Pair, count: int) -> list[dict[str, Any]]:
    """Wait for so many events; return them without their envelopes."""
    await pair.app.arrive(count)
    return [envelope["event"] for envelope in pair.app.events]


async def test_a_person_is_found_by_e_mail(pair: Pair) -> None:
    assert (await pair.web.users_lookupByEmail(email="Ada@example.com"))["user"]["id"] == ADA
    assert await failing(pair.web.users_lookupByEmail(email="x@example.com")) == "users_not_found"


async def test_a_bot_is_described(pair: Pair) -> None:
    assert (await pair.web.bots_info())["bot"]["user_id"] == BOT
    assert await failing(pair.web.bots_info(bot="B0NOBODY")) == "bot_not_found"


async def test_a_message_has_an_address(pair: Pair) -> None:
    ts = (await pair.said())["ts"]
    answer = await pair.web.chat_getPermalink(channel=ROOM, message_ts=ts)
    assert answer["permalink"].endswith(f"{ROOM}/{ts}")
    missing = pair.web.chat_getPermalink(channel=ROOM, message_ts="1.000001")
    assert await failing(missing) == "message_not_found"


async def test_the_bot_joins_a_channel(pair: Pair) -> None:
    assert await failing(pair.web.chat_postMessage(channel=LOUNGE, text="x")) == "not_in_channel"
    assert (await pair.web.conversations_join(channel=LOUNGE))["channel"]["is_member"]
    assert (await pair.web.chat_postMessage(channel=LOUNGE, text="x"))["ok"]
    assert (await pair.web.conversations_join(channel=LOUNGE))["warning"] == "already_in_channel"
    direct = (await pair.web.conversations_open(users=ADA))["channel"]["id"]
    joining = pair.web.conversations_join(channel=direct)
    assert await failing(joining) == "method_not_supported_for_channel_type"


async def test_a_scheduled_message_is_posted_at_its_time(pair: Pair) -> None:
    at = int(time.time()) + 2
    answer = await pair.web.chat_scheduleMessage(channel=ROOM, text="later", post_at=at)
    assert (answer["post_at"], answer["message"]["text"]) == (at, "later")
    assert await texts(pair) == []
    (event,) = await heard(pair, 1)
    assert (event["text"], event["bot_id"]) == ("later", "B0SURELANE")
    assert float(event["ts"]) >= at
    assert (await pair.web.chat_scheduledMessages_list())["scheduled_messages"] == []


async def test_a_scheduled_message_can_be_deleted_until_a_minute_before(pair: Pair) -> None:
    near, far = int(time.time()) + 50, int(time.time()) + 3600
    ids = [
        (await pair.web.chat_scheduleMessage(channel=ROOM, text="x", post_at=at))["scheduled_message_id"]
        for at in (near, far)
    ]
    listed = (await pair.web.chat_scheduledMessages_list(channel=ROOM))["scheduled_messages"]
    assert [(each["id"], each["post_at"]) for each in listed] == list(zip(ids, (near, far), strict=True))
    late = pair.web.chat_deleteScheduledMessage(channel=ROOM, scheduled_message_id=ids[0])
    assert await failing(late) == "invalid_scheduled_message_id"
    assert (await pair.web.chat_deleteScheduledMessage(channel=ROOM, scheduled_message_id=ids[1]))["ok"]
    again = pair.web.chat_deleteScheduledMessage(channel=ROOM, scheduled_message_id=ids[1])
    assert await failing(again) == "invalid_scheduled_message_id"


@pytest.mark.parametrize(
    ("wait", "error"), [(-1, "time_in_past"), (121 * 86_400, "time_too_far"), (None, "invalid_time")]
)
async def test_a_time_that_slack_refuses(pair: Pair, wait: int | None, error: str) -> None:
    at: Any = "soon" if wait is None else int(time.time()) + wait
    assert await failing(pair.web.chat_scheduleMessage(channel=ROOM, text="x", post_at=at)) == error


async def test_thirty_messages_may_be_due_in_five_minutes(pair: Pair) -> None:
    at = (int(time.time()) // 300 + 10) * 300
    for _ in range(30):
        await pair.web.chat_scheduleMessage(channel=ROOM, text="x", post_at=at)
    again = pair.web.chat_scheduleMessage(channel=ROOM, text="x", post_at=at + 299)
    assert await failing(again) == "restricted_too_many"


async def run_function(pair: Pair) -> dict[str, Any]:
    """Let a workflow run the app's function; return the event."""
    asked = {"callback_id": "greet", "inputs": {"user_id": ADA}}
    await pair.control.request("POST", "/control/functions", asked)
    (event,) = await heard(pair, 1)
    assert (event["type"], event["function"]["callback_id"]) == ("function_executed", "greet")
    assert event["inputs"] == {"user_id": ADA}
    return event


async def test_a_function_runs_with_a_token_of_its_own_and_completes_once(pair: Pair) -> None:
    event = await run_function(pair)
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


async def test_a_function_fails_with_a_reason(pair: Pair) -> None:
    run = (await run_function(pair))["function_execution_id"]
    assert (await pair.web.functions_completeError(function_execution_id=run, error="no such user"))["ok"]
    shown = await pair.control.request("GET", f"/control/functions/{run}")
    assert (shown["state"], shown["error"]) == ("failed", "no such user")
    unknown = pair.web.functions_completeSuccess(function_execution_id="Fx0", outputs={})
    assert await failing(unknown) == "function_execution_not_found"


async def test_a_token_of_no_run_is_refused(pair: Pair) -> None:
    stranger = AsyncWebClient(token="xwfp-1", base_url=f"{pair.url}/api/")
    assert await failing(stranger.auth_test()) == "invalid_auth"


async def test_a_mention_may_be_empty(pair: Pair) -> None:
    assert (await pair.said(""))["text"] == f"<@{BOT}>"
    with pytest.raises(SimulatorError, match="may be empty only"):
        await pair.control.say("")


async def test_me_is_a_message_of_its_own_kind(pair: Pair) -> None:
    await pair.control.request("POST", "/control/messages", {"text": "waves", "me": True})
    (event,) = await heard(pair, 1)
    assert (event["type"], event["subtype"], event["text"]) == ("message", "me_message", "waves")


async def test_another_apps_bot_writes(pair: Pair) -> None:
    said = {"text": "@surelane build 7 failed", "bot": "Deploys"}
    await pair.control.request("POST", "/control/messages", said)
    events = await heard(pair, 2)
    assert sorted(event["type"] for event in events) == ["app_mention", "message"]
    for event in events:
        assert (event["subtype"], event["username"]) == ("bot_message", "Deploys")
        assert not {"user", "client_msg_id", "app_id"} & event.keys()
    assert (await pair.web.bots_info(bot=events[0]["bot_id"]))["bot"]["name"] == "Deploys"


async def test_an_edit_says_what_was_there_before(pair: Pair) -> None:
    metadata = {"event_type": "filed", "event_payload": {"id": 7}}
    divider = {"type": "divider", "block_id": "d"}
    ts = (await pair.web.chat_postMessage(channel=ROOM, text="a", blocks=[divider], metadata=metadata))["ts"]
    await pair.web.chat_update(channel=ROOM, ts=ts, text="b", blocks=[])
    await pair.web.chat_delete(channel=ROOM, ts=ts)
    posted, edited, deleted = sorted(await heard(pair, 3), key=lambda event: str(event["event_ts"]))
    assert (posted["blocks"], posted["metadata"]) == ([divider], metadata)
    assert edited["previous_message"]["blocks"] == [divider]
    assert (edited["previous_message"]["text"], edited["message"]["text"]) == ("a", "b")
    assert edited["message"]["metadata"] == metadata
    assert deleted["previous_message"]["metadata"] == metadata
