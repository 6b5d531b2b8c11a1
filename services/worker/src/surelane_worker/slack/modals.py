"""Show a handler's answer in its modal when Slack's request no longer waits for it.

Ingest then let the modal say that its input has arrived. Slack takes ``errors`` in the response alone, so the modal is
shown again with what the person entered, and with the errors below the inputs.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from slack_sdk.errors import SlackApiError

from surelane.events import Event
from surelane.slack import object_in
from surelane_service.modals import replaced, said
from surelane_worker.slack.chunks import LONGEST_SECTION
from surelane_worker.slack.client import final_reason
from surelane_worker.slack.notes import Notebook
from surelane_worker.slack.replies import Replies

ACKNOWLEDGED = "ack"
"""The note that an attempt has answered a modal. A later attempt leaves the modal alone."""
ACCEPTED = "Your input was accepted. You may close this window."
UNHANDLED = "Nothing took your input. Please tell the people who run this app."
ERROR = "surelane.error:"
"""What the id of a block with an error begins with. The block's own id follows."""


async def answer_modal(
    replies: Replies, notebook: Notebook, event: Event, answer: str, *, taken: bool
) -> bool:
    """Show an answer (JSON) that Slack's request has not ``taken``, once. Return whether the person sees it."""
    if not taken:
        if notebook.call(ACKNOWLEDGED):
            return False
        try:
            await replies.update_view(event, late_view(event.payload["view"], json.loads(answer)))
        except SlackApiError as error:
            if final_reason(error) is None:
                raise
            return False
    await notebook.note_call(ACKNOWLEDGED, "yes")
    return True


def late_view(view: Mapping[str, Any], answer: object) -> dict[str, Any]:
    if answer is False:
        return said(view, UNHANDLED)
    given = object_in(answer)
    match given.get("response_action"):
        case "errors":
            return replaced(view, blocks=list(_with_errors(view, given["errors"])))
        case "update" | "push":
            shown: dict[str, Any] = given["view"]
            return shown
    return said(view, ACCEPTED)


def _with_errors(view: Mapping[str, Any], errors: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    values = object_in(object_in(view.get("state")).get("values"))
    for block in view["blocks"]:
        name = block.get("block_id", "")
        if name.startswith(ERROR):
            continue
        yield _filled(block, object_in(values.get(name)))
        if name in errors:
            told = f":warning: {errors[name]}"[:LONGEST_SECTION]
            text = {"type": "plain_text", "text": told, "emoji": True}
            yield {"type": "context", "block_id": f"{ERROR}{name}"[:255], "elements": [text]}


def _filled(block: dict[str, Any], entered: Mapping[str, Any]) -> dict[str, Any]:
    """Return an input with what was entered as its initial value."""
    element = object_in(block.get("element"))
    if block["type"] != "input" or not element:
        return block
    given = object_in(entered.get(element.get("action_id", "")))
    bare = {name: part for name, part in element.items() if not name.startswith("initial_")}
    initial = {_initial(name): value for name, value in given.items() if value and _initial(name)}
    return block | {"element": bare | initial}


def _initial(name: str) -> str:
    """Return the name of an element's initial value by the name of its value in a view's state."""
    if name.startswith("selected_"):
        return name.replace("selected", "initial", 1)
    return "initial_value" if name in ("value", "rich_text_value") else ""
