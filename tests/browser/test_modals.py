"""A person in Chromium fills in the app's modals and menus, by mouse and by keyboard, wide and on a phone."""

from typing import Any

import pytest

from tests.browser.looks import ugly
from tests.browser.slack_page import Browser, SlackPage, go, open_page
from tests.processes import until
from tests.system.slack_app import Answer, Pair, Received

pytestmark = pytest.mark.browser


def plain(text: str) -> dict[str, str]:
    return {"type": "plain_text", "text": text}


def option(value: str) -> dict[str, Any]:
    return {"text": plain(value.title()), "value": value}


def asking(block_id: str, label: str, **element: Any) -> dict[str, Any]:
    element["action_id"] = "x"
    return {"type": "input", "block_id": block_id, "label": plain(label), "element": element}


WHAT = asking("what", "What is wrong?", type="plain_text_input")
CITY = asking("city", "City", type="external_select", min_query_length=2)
TICKET = {
    "type": "modal",
    "callback_id": "ticket",
    "title": plain("File a ticket"),
    "submit": plain("File it"),
    "notify_on_close": True,
    "blocks": [WHAT, CITY],
}
SURE = {
    "type": "modal",
    "title": plain("Are you sure?"),
    "submit": plain("Yes"),
    "blocks": [{"type": "section", "text": plain("All will see it.")}],
}
CITIES = {"options": [option("berlin"), option("bergen")]}


async def forms(pair: Pair, kind: str, number: int = 1) -> list[Received]:
    """Wait until that many interactions of a kind have arrived."""

    def of_kind() -> list[Received]:
        return [each for each in pair.app.received if each.form and each.payload["type"] == kind]

    await until(lambda: len(of_kind()) >= number, what=f"{number} of {kind}")
    return of_kind()


async def opened(slack: SlackPage, pair: Pair, view: dict[str, Any] = TICKET) -> str:
    """Open a modal by the shortcut; return its id."""
    await slack.use_shortcut("Ask")
    trigger = (await forms(pair, "shortcut"))[-1].payload["trigger_id"]
    answer = await pair.web.views_open(trigger_id=trigger, view=view)
    return str(answer["view"]["id"])


async def test_a_modal_shows_errors_and_closes_when_all_is_well(slack: SlackPage, pair: Pair) -> None:
    view_id = await opened(slack, pair)
    what, city = slack.page.get_by_label("What is wrong?"), slack.page.get_by_role("combobox", name="City")
    await slack.expect(what).to_be_focused()
    await slack.page.get_by_role("button", name="File it").click()
    await slack.expect(slack.modal.get_by_text("Please complete this required field.")).to_have_count(2)
    await what.fill("the door")
    pair.app.answer(CITIES)
    await city.press_sequentially("be")
    await slack.modal.get_by_role("option", name="Bergen").click()
    await slack.expect(city).to_have_value("Bergen")
    await slack.expect(slack.modal.locator(".input-error:visible")).to_have_count(0)
    pair.app.answer({"response_action": "errors", "errors": {"what": "Name the door."}})
    await slack.page.get_by_role("button", name="File it").click()
    await slack.expect(slack.modal.get_by_text("Name the door.")).to_be_visible()
    await slack.expect(what).to_have_attribute("aria-invalid", "true")
    await slack.expect(what).to_be_focused()
    pair.app.answers.append(Answer(500))
    await slack.page.get_by_role("button", name="File it").click()
    trouble = slack.modal.get_by_role("alert")
    await slack.expect(trouble).to_have_text("We had some trouble connecting. Try again?")
    await slack.page.get_by_role("button", name="File it").click()
    await slack.expect(slack.modal).to_have_count(0)
    submitted = (await forms(pair, "view_submission", 3))[-1].payload["view"]
    assert submitted["id"] == view_id
    assert submitted["state"]["values"]["what"]["x"]["value"] == "the door"
    assert submitted["state"]["values"]["city"]["x"]["selected_option"] == option("bergen")


async def test_an_update_keeps_the_input_and_a_push_goes_back(slack: SlackPage, pair: Pair) -> None:
    view_id = await opened(slack, pair)
    await slack.page.get_by_label("What is wrong?").fill("the door")
    more = asking("who", "Who?", type="users_select")
    await pair.web.views_update(view_id=view_id, view={**TICKET, "blocks": [WHAT, more]})
    await slack.page.get_by_label("Who?").select_option("Grace Murray")
    await slack.expect(slack.page.get_by_label("What is wrong?")).to_have_value("the door")
    pair.app.answer({"response_action": "push", "view": SURE})
    await slack.page.get_by_role("button", name="File it").click()
    await slack.expect(slack.modal).to_have_accessible_name("Are you sure?")
    await slack.page.get_by_role("button", name="Back").click()
    await slack.expect(slack.page.get_by_label("What is wrong?")).to_have_value("the door")
    await slack.page.get_by_role("button", name="Close", exact=True).click()
    await slack.expect(slack.modal).to_have_count(0)
    (closed,) = await forms(pair, "view_closed")
    assert (closed.payload["view"]["id"], closed.payload["is_cleared"]) == (view_id, True)


async def test_a_modal_is_filled_in_by_keyboard(slack: SlackPage, pair: Pair) -> None:
    tags = asking("tags", "Tags", type="multi_static_select", options=[option("door"), option("roof")])
    radio = asking("when", "When?", type="radio_buttons", options=[option("today"), option("later")])
    await opened(slack, pair, {**TICKET, "blocks": [WHAT, CITY, tags, radio]})
    await slack.expect(slack.page.get_by_label("When?")).to_be_visible()
    assert await ugly(slack.page, axe=False) == []
    keyboard = slack.page.keyboard
    await keyboard.type("the door")
    await keyboard.press("Tab")
    pair.app.answer(CITIES)
    await keyboard.type("be")
    await slack.expect(slack.modal.get_by_role("option")).to_have_count(2)
    await keyboard.press("Escape")
    await slack.expect(slack.modal.get_by_role("option", name="Berlin")).to_be_hidden()
    await slack.expect(slack.modal).to_be_visible()
    pair.app.answer(CITIES)
    await keyboard.type("be")
    await slack.expect(slack.modal.get_by_role("option", name="Berlin")).to_be_visible()
    for key in ("ArrowDown", "Enter", "Tab", "ArrowDown"):
        await keyboard.press(key)
    await slack.expect(slack.modal.get_by_role("option", name="Roof")).to_be_visible()
    for key in ("ArrowUp", "Enter"):
        await keyboard.press(key)
    await slack.expect(slack.modal.get_by_role("button", name="Remove Roof")).to_be_visible()
    for key in ("Tab", "Space"):
        await keyboard.press(key)
    await slack.page.get_by_role("button", name="File it").press("Enter")
    values = (await forms(pair, "view_submission"))[0].payload["view"]["state"]["values"]
    assert values["city"]["x"]["selected_option"]["value"] == "berlin"
    assert [each["value"] for each in values["tags"]["x"]["selected_options"]] == ["roof"]
    assert values["when"]["x"]["selected_option"]["value"] == "today"


async def test_a_phone_shows_a_modal_on_the_whole_screen(phone: SlackPage, pair: Pair) -> None:
    await opened(phone, pair)
    await phone.expect(phone.page.get_by_role("button", name="File it")).to_be_in_viewport()
    box = await phone.modal.bounding_box()
    assert box is not None
    assert (round(box["width"]), round(box["height"])) == (390, 780)
    assert not await phone.scrolls_sideways()
    await phone.page.get_by_role("button", name="Cancel").tap()
    await phone.expect(phone.modal).to_have_count(0)


async def test_each_person_has_their_own_modals(slack: SlackPage, pair: Pair, browser: Browser) -> None:
    await opened(slack, pair)
    async with open_page(browser, pair.url, width=900, height=700) as other:
        await other.expect(other.modal).to_be_visible()  # Ada, in another window
        await other.page.evaluate("localStorage.setItem('user T0SURELANE', 'U0GRACE001')")
        await go(other.page)
        await other.expect(other.page.get_by_label("You are")).to_have_value("U0GRACE001")
        await other.expect(other.modal).to_have_count(0)
