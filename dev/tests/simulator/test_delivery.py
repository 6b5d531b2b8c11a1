"""Events reach the app as from Slack: signed, on time, retried, with faults on demand."""

import json
import socket
from datetime import timedelta
from urllib.parse import parse_qsl

import pytest

from surelane_dev.simulator.client import SimulatorError
from tests.system.slack_app import Answer, Pair, simulated


async def only_event(pair: Pair, **fields: object) -> str:
    """Let Ada mention the bot; return the event's id."""
    answer = await pair.control.say("hello", mention=True, **fields)
    (event,) = answer["events"]
    return str(event["id"])


async def test_a_mention_arrives_signed_and_is_done_when_acknowledged() -> None:
    async with simulated() as pair:
        event_id = await only_event(pair)
        (request,) = await pair.app.arrive(1)
        assert request.genuine
        assert request.headers["Content-Type"] == "application/json"
        assert request.retry == (None, None)
        assert request.envelope["event_id"] == event_id
        assert request.envelope["event"]["type"] == "app_mention"
        delivery = await pair.settled(event_id, "delivered")
        assert [attempt["status"] for attempt in delivery["attempts"]] == [200]


async def test_errors_are_retried_three_times_with_number_and_reason() -> None:
    async with simulated() as pair:
        pair.app.answers.extend([Answer(503), Answer(500), Answer(404), Answer(503)])
        event_id = await only_event(pair)
        delivery = await pair.settled(event_id, "failed")
        assert [request.retry for request in pair.app.received] == [
            (None, None),
            ("1", "http_error"),
            ("2", "http_error"),
            ("3", "http_error"),
        ]
        assert len({request.body for request in pair.app.received}) == 1
        assert all(request.genuine for request in pair.app.received)
        assert [attempt["status"] for attempt in delivery["attempts"]] == [503, 500, 404, 503]


async def test_a_retry_that_is_taken_ends_the_retries() -> None:
    async with simulated() as pair:
        pair.app.answers.append(Answer(503))
        delivery = await pair.settled(await only_event(pair), "delivered")
        assert [attempt["retry_num"] for attempt in delivery["attempts"]] == [0, 1]


async def test_no_retry_is_honoured_except_on_a_200() -> None:
    async with simulated() as pair:
        pair.app.answers.append(Answer(400, {"X-Slack-No-Retry": "1"}))
        delivery = await pair.settled(await only_event(pair), "failed")
        assert len(delivery["attempts"]) == 1
        pair.app.answers.append(Answer(200, {"X-Slack-No-Retry": "1"}))
        delivery = await pair.settled(await only_event(pair), "delivered")
        assert len(pair.app.received) == 2


@pytest.mark.parametrize("redirected", [True, False], ids=["redirects without end", "no answer in time"])
async def test_the_reason_says_what_went_wrong(redirected: bool) -> None:
    async with simulated(timeout=timedelta(seconds=1)) as pair:
        if redirected:
            pair.app.answers.extend([Answer(307, {"Location": "/slack/events"})] * 3)
        else:
            pair.app.answers.append(Answer(after=3))
        delivery = await pair.settled(await only_event(pair), "delivered")
        expected = "too_many_redirects" if redirected else "http_timeout"
        assert pair.app.received[-1].retry == ("1", expected)
        assert delivery["attempts"][0]["status"] is None


async def test_nobody_listening_is_a_failed_connection() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{taken.getsockname()[1]}"
        async with simulated(ingest_url=closed) as pair:
            delivery = await pair.settled(await only_event(pair), "failed")
            assert {attempt["problem"] for attempt in delivery["attempts"]} == {"connection_failed"}


async def test_one_message_is_two_events_where_both_are_subscribed() -> None:
    async with simulated(subscriptions=frozenset({"app_mention", "message.channels"})) as pair:
        answer = await pair.control.say("hello", mention=True, wait=True)
        assert [event["kind"] for event in answer["events"]] == ["app_mention", "message.channel"]
        assert len({event["event_id"] for event in pair.app.events}) == 2
        assert len({event["event"]["ts"] for event in pair.app.events}) == 1


async def test_a_duplicate_is_the_same_event_again_as_a_retry() -> None:
    async with simulated() as pair:
        await pair.control.request("POST", "/control/faults", {"kind": "duplicate"})
        await only_event(pair)
        first, second = await pair.app.arrive(2)
        assert first.body == second.body
        assert second.retry == ("1", "http_timeout")


async def test_an_event_can_be_overtaken_by_a_later_one() -> None:
    async with simulated() as pair:
        await pair.control.request("POST", "/control/faults", {"kind": "out_of_order"})
        first = await only_event(pair)
        assert (await pair.control.request("GET", f"/control/deliveries/{first}"))["state"] == "held"
        second = await only_event(pair)
        await pair.app.arrive(2)
        assert [event["event_id"] for event in pair.app.events] == [second, first]


async def test_an_event_can_be_delivered_again_on_demand() -> None:
    async with simulated() as pair:
        event_id = await only_event(pair, wait=True)
        await pair.control.request("POST", f"/control/deliveries/{event_id}/resend", {})
        received = await pair.app.arrive(2)
        assert received[0].body == received[1].body


async def test_a_command_is_a_signed_form_and_is_not_retried() -> None:
    async with simulated() as pair:
        pair.app.answers.append(Answer(503))
        body = {"command": "/deploy", "text": "api & web", "channel": "support", "user": "grace"}
        answer = await pair.control.request("POST", "/control/commands", body)
        assert (answer["status"], answer["problem"]) == (503, "http_error")
        (request,) = pair.app.received
        assert (request.path, request.genuine) == ("/slack/events", True)
        assert request.headers["Content-Type"] == "application/x-www-form-urlencoded"
        assert b"text=api+%26+web" in request.body
        state = await pair.control.request("GET", "/control/state")
        (shown,) = state["messages"]
        assert (shown["visible_to"], "dispatch_failed" in shown["text"]) == ("U0GRACE001", True)


async def test_a_button_is_posted_as_block_actions() -> None:
    async with simulated() as pair:
        button = {
            "type": "button",
            "action_id": "go",
            "value": "7",
            "text": {"type": "plain_text", "text": "Go"},
        }
        blocks = [{"type": "actions", "block_id": "b", "elements": [button]}]
        posted = await pair.web.chat_postMessage(channel="general", text="go?", blocks=blocks)
        press = {"channel": "general", "ts": posted["ts"], "action_id": "go"}
        assert (await pair.control.request("POST", "/control/actions", press))["status"] == 200
        (request,) = pair.app.received
        payload = json.loads(dict(parse_qsl(request.body.decode()))["payload"])
        assert (payload["type"], payload["user"]["id"]) == ("block_actions", "U0ADA00001")
        assert payload["container"]["message_ts"] == posted["ts"]
        (action,) = payload["actions"]
        assert (action["action_id"], action["block_id"], action["value"]) == ("go", "b", "7")
        with pytest.raises(SimulatorError, match="no button"):
            await pair.control.request("POST", "/control/actions", press | {"action_id": "stop"})
