"""Events reach the app as from Slack: signed, on time, retried, with faults on demand."""

import socket
from datetime import timedelta
from typing import Any

from tests.system.slack_app import Answer, Pair, simulated


async def only_event(pair: Pair, **fields: object) -> str:
    """Let Ada mention the bot; return the event's id."""
    answer = await pair.control.say("hello", mention=True, **fields)
    (event,) = answer["events"]
    return str(event["id"])


async def delivered(pair: Pair, state: str = "delivered") -> list[dict[str, Any]]:
    """Let Ada mention the bot; return the attempts of the event's delivery when it has ended."""
    attempts: list[dict[str, Any]] = (await pair.settled(await only_event(pair), state))["attempts"]
    return attempts


async def test_a_mention_arrives_signed_and_can_be_doubled_overtaken_and_sent_again(pair: Pair) -> None:
    event_id = await only_event(pair)
    (request,) = await pair.app.arrive(1)
    assert request.genuine
    assert request.headers["Content-Type"] == "application/json"
    assert request.retry == (None, None)
    assert (request.envelope["event_id"], request.envelope["event"]["type"]) == (event_id, "app_mention")
    delivery = await pair.settled(event_id, "delivered")
    assert [attempt["status"] for attempt in delivery["attempts"]] == [200]
    await pair.control.request("POST", "/control/faults", {"kind": "duplicate"})
    await only_event(pair)
    _, first, second = await pair.app.arrive(3)
    assert first.body == second.body
    assert second.retry == ("1", "http_timeout")

    await pair.control.request("POST", "/control/faults", {"kind": "out_of_order"})
    held = await only_event(pair)
    assert (await pair.control.request("GET", f"/control/deliveries/{held}"))["state"] == "held"
    later = await only_event(pair)
    await pair.app.arrive(5)
    assert [event["event_id"] for event in pair.app.events[3:]] == [later, held]

    await pair.control.request("POST", f"/control/deliveries/{held}/resend", {})
    received = await pair.app.arrive(6)
    assert received[4].body == received[5].body


async def test_errors_are_retried_three_times_with_number_and_reason(pair: Pair) -> None:
    statuses = [503, 500, 404, 503]
    pair.app.answers.extend(map(Answer, statuses))
    attempts = await delivered(pair, "failed")
    retries = [("1", "http_error"), ("2", "http_error"), ("3", "http_error")]
    assert [request.retry for request in pair.app.received] == [(None, None), *retries]
    assert len({request.body for request in pair.app.received}) == 1
    assert all(request.genuine for request in pair.app.received)
    assert [attempt["status"] for attempt in attempts] == statuses
    pair.app.answers.append(Answer(503))
    assert [each["retry_num"] for each in await delivered(pair)] == [0, 1], "the first 200 ends the retries"


async def test_no_retry_is_honoured_except_on_a_200_and_endless_redirects_are_the_reason(pair: Pair) -> None:
    pair.app.answers.append(Answer(400, {"X-Slack-No-Retry": "1"}))
    assert len(await delivered(pair, "failed")) == 1
    pair.app.answers.append(Answer(200, {"X-Slack-No-Retry": "1"}))
    assert len(await delivered(pair)) == 1
    pair.app.answers.extend([Answer(307, {"Location": "/slack/events"})] * 3)
    assert [attempt["status"] for attempt in await delivered(pair)] == [None, 200]
    assert pair.app.received[-1].retry == ("1", "too_many_redirects")


async def test_the_reason_says_that_no_answer_came_in_time() -> None:
    async with simulated(timeout=timedelta(seconds=1)) as pair:
        pair.app.answers.append(Answer(after=300))
        assert (await delivered(pair))[0]["status"] is None
        assert pair.app.received[1].retry == ("1", "http_timeout")


async def test_nobody_listening_is_a_failed_connection() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{taken.getsockname()[1]}"
        async with simulated(ingest_url=closed) as pair:
            attempts = await delivered(pair, "failed")
            assert {attempt["problem"] for attempt in attempts} == {"connection_failed"}


async def test_a_command_is_a_signed_form_and_is_not_retried(pair: Pair) -> None:
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
