"""The simulated Slack opens, pushes, updates, submits and closes modals as Slack does."""

from typing import Any

import pytest
from slack_sdk.webhook.async_client import AsyncWebhookClient

from dev.tests.simulator.calls import ADA, failing, plain
from surelane_dev.simulator.app_answers import TROUBLE
from surelane_dev.simulator.client import SimulatorError
from tests.system.slack_app import Answer, Pair, simulated

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
    (hers,) = [views for views in state["views"] if views["user"] == ADA]
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


async def test_errors_leave_it_open_update_replaces_push_covers_and_clear_closes_all(pair: Pair) -> None:
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


async def test_an_answer_that_slack_cannot_use_is_shown_as_trouble(pair: Pair) -> None:
    view_id = await opened(pair)
    for answer in (
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
        pair.app.answers.append(answer)
        done = await submit(pair, view_id)
        assert (done["message"], done["errors"], await shown(pair)) == (TROUBLE, {}, ["one"]), answer


async def test_an_answer_that_comes_too_late_is_trouble() -> None:
    async with simulated(timeout="300ms") as pair:
        view_id = await opened(pair)
        pair.app.answers.append(Answer(after=300))
        done = await submit(pair, view_id)
        assert (done["problem"], done["message"]) == ("http_timeout", TROUBLE)


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


async def test_an_old_hash_conflicts_and_an_external_id_is_used_once(pair: Pair) -> None:
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


async def test_a_view_has_a_bound(pair: Pair) -> None:
    blocks = [{"type": "markdown", "text": "x" * 250_000}]
    assert await failing(opened(pair, asking("one", blocks=blocks))) == "view_too_large"
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
