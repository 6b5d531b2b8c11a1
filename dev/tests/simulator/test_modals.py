"""The simulated Slack opens, pushes, updates, submits and closes modals as Slack does."""

from collections.abc import AsyncIterator, Awaitable
from typing import Any

import pytest
from slack_sdk.errors import SlackApiError
from slack_sdk.webhook.async_client import AsyncWebhookClient

from surelane_dev.simulator.app_answers import TROUBLE
from surelane_dev.simulator.client import SimulatorError
from tests.system.slack_app import Answer, Pair, simulated

View = dict[str, Any]


def plain(text: str) -> dict[str, str]:
    return {"type": "plain_text", "text": text}


def asking(name: str, **fields: Any) -> View:
    """Return a modal with one text input, in the block ``b``."""
    element = {"type": "plain_text_input", "action_id": "what"}
    block = {"type": "input", "block_id": "b", "label": plain("What"), "element": element}
    view = {"type": "modal", "callback_id": name, "title": plain(name), "submit": plain("Go")}
    return {**view, "blocks": [block], **fields}


FILLED = {"values": {"b": {"what": "it"}}}


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with simulated() as running:
        yield running


async def triggered(pair: Pair) -> str:
    """Return the trigger id of a shortcut that Ada used."""
    used = await pair.control.request("POST", "/control/shortcuts", {"callback_id": "ask"})
    return str(used["trigger_id"])


async def opened(pair: Pair, view: View | None = None) -> str:
    """Open a modal for Ada; return its id."""
    answer = await pair.web.views_open(trigger_id=await triggered(pair), view=view or asking("one"))
    return str(answer["view"]["id"])


async def submit(pair: Pair, view_id: str, body: View | None = None) -> dict[str, Any]:
    return await pair.control.request("POST", f"/control/views/{view_id}", body or FILLED)


async def shown(pair: Pair) -> list[str]:
    """Return the modals that Ada sees, the lowest first, by their ``callback_id``."""
    state = await pair.control.request("GET", "/control/state")
    (hers,) = [views for views in state["views"] if views["user"] == "U0ADA00001"]
    return [view["callback_id"] for view in hers["modals"]]


async def failing(call: Awaitable[object]) -> str:
    with pytest.raises(SlackApiError) as caught:
        await call
    return str(caught.value.response["error"])


async def test_an_empty_answer_closes_the_modal(pair: Pair) -> None:
    view_id = await opened(pair)
    done = await submit(pair, view_id)
    assert (done["status"], done["errors"], done["message"]) == (200, {}, None)
    payload = pair.app.received[-1].payload
    assert payload["type"] == "view_submission"
    assert payload["view"]["state"]["values"]["b"]["what"] == {"type": "plain_text_input", "value": "it"}
    assert await shown(pair) == []
    assert await failing(pair.web.views_update(view_id=view_id, view=asking("late"))) == "not_found"


async def test_errors_leave_the_modal_open(pair: Pair) -> None:
    view_id = await opened(pair)
    pair.app.answer({"response_action": "errors", "errors": {"b": "Not this."}})
    assert (await submit(pair, view_id))["errors"] == {"b": "Not this."}
    assert await shown(pair) == ["one"]


async def test_the_client_asks_the_app_only_when_all_is_filled_in(pair: Pair) -> None:
    view_id = await opened(pair)
    before = len(pair.app.received)
    done = await submit(pair, view_id, {"values": {}})
    assert done["errors"] == {"b": "Please complete this required field."}
    assert len(pair.app.received) == before


async def test_update_replaces_push_covers_and_clear_closes_all(pair: Pair) -> None:
    view_id = await opened(pair)
    pair.app.answer({"response_action": "update", "view": asking("two")})
    await submit(pair, view_id)
    assert await shown(pair) == ["two"]
    pair.app.answer({"response_action": "push", "view": asking("over")})
    await submit(pair, view_id)
    assert await shown(pair) == ["two", "over"]
    pair.app.answer({"response_action": "clear"})
    await submit(pair, view_id)
    assert await shown(pair) == []


@pytest.mark.parametrize(
    "answer",
    [
        Answer(500),
        Answer(body="ok"),
        Answer(body='{"ok": true}'),
        Answer(body='{"response_action": "errors", "errors": {}}'),
        Answer(body='{"response_action": "errors", "errors": {"nowhere": "x"}}'),
        Answer(body='{"response_action": "update"}'),
        Answer(body='{"response_action": "update", "view": {"type": "home", "blocks": []}}'),
        Answer(body='{"response_action": "close"}'),
        Answer(body="[]"),
    ],
    ids=lambda answer: answer.body or str(answer.status),
)
async def test_an_answer_that_slack_cannot_use_is_shown_as_trouble(pair: Pair, answer: Answer) -> None:
    view_id = await opened(pair)
    pair.app.answers.append(answer)
    done = await submit(pair, view_id)
    assert (done["message"], done["errors"], await shown(pair)) == (TROUBLE, {}, ["one"])


async def test_an_answer_that_comes_too_late_is_trouble() -> None:
    async with simulated(timeout="300ms") as pair:
        view_id = await opened(pair)
        pair.app.answers.append(Answer(after=30))
        done = await submit(pair, view_id)
        assert (done["problem"], done["message"]) == ("http_timeout", TROUBLE)


async def test_three_modals_at_most_lie_over_each_other(pair: Pair) -> None:
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


async def test_nothing_is_pushed_over_nothing(pair: Pair) -> None:
    trigger = await triggered(pair)
    assert await failing(pair.web.views_push(trigger_id=trigger, view=asking("x"))) == "not_found"


async def test_an_old_hash_conflicts_and_a_new_one_comes_with_each_update(pair: Pair) -> None:
    answer = await pair.web.views_open(
        trigger_id=await triggered(pair), view=asking("one", external_id="mine")
    )
    first = answer["view"]["hash"]
    second = await pair.web.views_update(external_id="mine", hash=first, view=asking("two"))
    assert second["view"]["hash"] != first
    again = pair.web.views_update(view_id=answer["view"]["id"], hash=first, view=asking("three"))
    assert await failing(again) == "hash_conflict"
    assert await shown(pair) == ["two"]


async def test_an_external_id_is_used_once(pair: Pair) -> None:
    await opened(pair, asking("one", external_id="mine"))
    trigger = await triggered(pair)
    again = pair.web.views_open(trigger_id=trigger, view=asking("two", external_id="mine"))
    assert await failing(again) == "duplicate_external_id"


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"private_metadata": "x" * 3001}, "invalid_arguments", "3001"),
        ({"title": plain("x" * 25)}, "invalid_arguments", "less than 25"),
        ({"submit": None}, "invalid_arguments", "must define `submit`"),
        ({"blocks": [{"type": "divider"}] * 101}, "invalid_arguments", "no more than 100"),
        ({"blocks": [{"type": "divider", "block_id": "d"}] * 2}, "invalid_arguments", "already exists"),
        ({"blocks": [{"type": "input"}]}, "invalid_arguments", "element"),
        ({"type": "home"}, "invalid_arguments", "type modal"),
        ({"blocks": [{"type": "markdown", "text": "x" * 250_000}]}, "view_too_large", ""),
    ],
)
async def test_a_view_that_slack_refuses(pair: Pair, fields: View, error: str, message: str) -> None:
    with pytest.raises(SlackApiError) as caught:
        await opened(pair, asking("one", **fields))
    answer = caught.value.response
    assert answer["error"] == error
    assert message in str(answer.get("response_metadata"))
    assert await shown(pair) == []


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
    await pair.control.request("POST", "/control/actions", press)
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
    state = await pair.control.request("GET", "/control/state")
    assert [(each["channel"], each["text"]) for each in state["messages"]] == [("C0SUPPORT1", "filed")]
