"""A conversation on the simulator's page: people, an answer with every part of Block Kit, and the page's views."""

from collections.abc import Awaitable, Callable
from typing import Any

from tests.browser.slack_page import SlackPage
from tests.system.slack_app import Pair

ADA, GRACE = "U0ADA00001", "U0GRACE001"


def plain(text: str) -> dict[str, str]:
    """Return a plain text object."""
    return {"type": "plain_text", "text": text}


def button(label: str, **more: Any) -> dict[str, Any]:
    """Return a button."""
    return {"type": "button", "action_id": label, "text": plain(label), **more}


CHOICES = [{"text": plain(name), "value": name} for name in ("small", "large")]
DEPLOY: list[dict[str, Any]] = [
    {"type": "section", "text": {"type": "mrkdwn", "text": "Deploy *checkout 7.1* to production?"}},
    {
        "type": "section",
        "fields": [
            {"type": "mrkdwn", "text": "*Changes*\n14 commits, 2 migrations"},
            {"type": "mrkdwn", "text": "*Checks*\nall passed"},
        ],
    },
    {
        "type": "actions",
        "block_id": "deploy",
        "elements": [
            button("Approve", style="primary"),
            button("Reject", style="danger"),
            {"type": "static_select", "action_id": "size", "placeholder": plain("Size"), "options": CHOICES},
        ],
    },
    {"type": "context", "elements": [{"type": "mrkdwn", "text": "Asked by <@U0ADA00001>"}]},
]
TABLE = {
    "type": "table",
    "rows": [
        [{"type": "raw_text", "text": word} for word in row]
        for row in (
            ("Service", "p99", "Errors"),
            ("checkout", "180 ms", "0.02 %"),
            ("search", "95 ms", "0 %"),
        )
    ],
}
MODAL = {
    "type": "modal",
    "title": plain("Open a ticket"),
    "submit": plain("Open it"),
    "blocks": [
        {
            "type": "input",
            "label": plain(label),
            "optional": label == "How large is it?",
            "element": {"action_id": "x", **element},
        }
        for label, element in (
            ("What is wrong?", {"type": "plain_text_input", "multiline": True}),
            ("How large is it?", {"type": "static_select", "options": CHOICES}),
            ("Who should look?", {"type": "multi_users_select"}),
            ("Until when?", {"type": "datepicker"}),
            ("Notify", {"type": "checkboxes", "options": CHOICES}),
        )
    ],
}


async def converse(pair: Pair) -> dict[str, Any]:
    """Let people and the bot talk in #general; return the message whose thread has most."""
    web, where = pair.web, dict[str, Any](channel="C0GENERAL1")
    said = await pair.said("how is checkout doing, and can we deploy?")
    ts = said["ts"]
    await web.reactions_add(channel=said["channel"], timestamp=ts, name="eyes")
    for text in (
        "It was slow yesterday, see https://example.com/status.",
        "Now it is fine.",
    ):
        await pair.said(text, user=GRACE, mention=False)
    table = "Both are *well* today. `checkout` has _more_ traffic than usual:"
    await web.chat_postMessage(
        text=table,
        thread_ts=ts,
        blocks=[{"type": "section", "text": {"type": "mrkdwn", "text": table}}, TABLE],
        **where,
    )
    await web.chat_postMessage(text="Deploy checkout 7.1?", thread_ts=ts, blocks=DEPLOY, **where)
    stream = await web.chat_startStream(
        channel=said["channel"], thread_ts=ts, recipient_team_id="T0SURELANE", recipient_user_id=ADA
    )
    tasks = [
        {"type": "task_update", "id": "1", "title": "Read the release notes", "status": "complete"},
        {"type": "task_update", "id": "2", "title": "Compare the figures", "status": "in_progress"},
    ]
    await web.chat_appendStream(
        channel=said["channel"],
        ts=stream["ts"],
        chunks=[{"type": "markdown_text", "text": "I am looking at"}, *tasks],
    )
    return said


async def _home(slack: SlackPage, pair: Pair) -> None:
    view = {"type": "home", "blocks": [{"type": "header", "text": plain("Your week")}, *DEPLOY]}
    await pair.web.views_publish(user_id=ADA, view=view)
    await _channel(slack, "Surelane")
    await slack.page.get_by_role("tab", name="Home").click()
    await slack.expect(slack.page.get_by_text("Your week")).to_be_visible()


async def _channel(slack: SlackPage, name: str) -> None:
    menu = slack.page.get_by_role("button", name="Channels")
    if await menu.is_visible():
        await menu.click()
    await slack.open_channel(name)


async def _modal(slack: SlackPage, pair: Pair) -> None:
    shortcut = {"callback_id": "ask", "user": "ada"}
    trigger = (await pair.control.request("POST", "/control/shortcuts", shortcut))["trigger_id"]
    await pair.web.views_open(trigger_id=trigger, view=MODAL)
    await slack.expect(slack.page.get_by_label("What is wrong?")).to_be_visible()


async def _close_modal(slack: SlackPage, _: Pair) -> None:
    await slack.page.get_by_role("button", name="Cancel").click()
    await slack.expect(slack.modal).to_be_hidden()


async def _channels(slack: SlackPage, _: Pair) -> None:
    menu = slack.page.get_by_role("button", name="Channels")
    if await menu.is_visible():
        await menu.click()
        await slack.expect(slack.page.get_by_role("button", name="support")).to_be_in_viewport()


async def _closed_channels(slack: SlackPage, _: Pair) -> None:
    await slack.page.keyboard.press("Escape")


async def _thread(slack: SlackPage, _: Pair) -> None:
    await slack.channel.get_by_role("button", name="replies").click()
    await slack.expect(slack.thread).to_contain_text("Compare the figures")


async def _no_thread(slack: SlackPage, _: Pair) -> None:
    await slack.page.get_by_role("button", name="Close the thread").click()


async def _shortcuts(slack: SlackPage, _: Pair) -> None:
    await slack.page.locator("#composer").get_by_role("button", name="Shortcuts").click()
    await slack.expect(slack.page.get_by_role("menuitem", name="Ask")).to_be_visible()


async def _hovered(slack: SlackPage, _: Pair) -> None:
    await slack.page.keyboard.press("Escape")
    await slack.message("Now it is fine").hover()


async def _faults(slack: SlackPage, _: Pair) -> None:
    await slack.switch_on("500", "chat.update")


def _tab(name: str) -> Callable[[SlackPage, Pair], Awaitable[None]]:
    async def opens(slack: SlackPage, _: Pair) -> None:
        await slack.open_tools(name)

    return opens


async def _no_tools(slack: SlackPage, _: Pair) -> None:
    await slack.page.get_by_role("button", name="Close faults and activity").click()


async def _empty(slack: SlackPage, _: Pair) -> None:
    await _channel(slack, "lounge")


VIEWS: dict[str, tuple[Callable[[SlackPage, Pair], Awaitable[None]], ...]] = {
    "channel": (),
    "hovered": (_hovered,),
    "shortcuts": (_shortcuts,),
    "channels": (_closed_channels, _channels),
    "thread": (_closed_channels, _thread),
    "faults": (_no_thread, _faults),
    "deliveries": (_tab("Deliveries"),),
    "calls": (_tab("Calls"),),
    "workspaces": (_tab("Workspaces"),),
    "modal": (_no_tools, _modal),
    "empty": (_close_modal, _empty),
    "home": (_home,),
}
"""How a person comes from each view to the next."""
