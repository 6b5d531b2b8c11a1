"""Slack's rules for blocks and views, as data: fields, lengths and counts.

They are facts of Slack's Block Kit reference (https://docs.slack.dev/reference/block-kit, with its pages for blocks,
block elements and composition objects, and https://docs.slack.dev/reference/views), read in November 2026. Those of
``auth_provider`` and ``call`` are of slack-sdk for Python, the place and length of ``alert`` are of slack-sdk for Java.
Where they give no bound, there is none here.
"""

from collections.abc import Sequence

from surelane_dev.simulator.workspace.block_rules import (
    ANY_TEXT,
    Fields,
    Rule,
    anything,
    array,
    decimal,
    flag,
    string,
    text,
    typed,
    whole,
)

MOST_BLOCKS = {"message": 50, "modal": 100, "home": 100}
"""Most blocks on each surface."""
LONGEST_MARKDOWN = 12_000
"""Characters of all markdown blocks of a message."""
_ID = string(255)
_URL = string(3000)
_PLACEHOLDER = text(150)
_STYLE = string(values=("primary", "danger"))
_SELECTS = ("static_select", "external_select", "users_select", "conversations_select", "channels_select")
_MENUS = (*_SELECTS, *(f"multi_{name}" for name in _SELECTS))
_PICKERS = ("checkboxes", "datepicker", "radio_buttons", "timepicker")
_TYPED = ("plain_text_input", "email_text_input", "url_text_input", "number_input", "rich_text_input")
IN_ACTIONS = ("button", "datetimepicker", "overflow", "workflow_button", *_MENUS, *_PICKERS)
IN_SECTION = ("button", "image", "overflow", "workflow_button", *_MENUS, *_PICKERS)
IN_INPUT = ("datetimepicker", "file_input", *_TYPED, *_MENUS, *_PICKERS)
_RICH = ("rich_text_section", "rich_text_list", "rich_text_preformatted", "rich_text_quote")
_NAMED = {"text": "text", "link": "url", "emoji": "name", "color": "value"}
_NAMED |= {name: f"{name}_id" for name in ("user", "channel", "usergroup", "team")}
"""The parts of rich text that need one field, and the field."""
_INLINE = (*_NAMED, "broadcast", "date")


def part(types: Sequence[str]) -> Rule:
    """Return the rule for an object whose type is one of these in ``ELEMENTS``."""
    return lambda value, at: typed(value, {name: ELEMENTS[name] for name in types}, at, ("type",))


def nested(types: Sequence[str]) -> Rule:
    """Return the rule for a block whose type is one of these in ``BLOCKS``."""
    return lambda value, at: typed(value, {name: BLOCKS[name] for name in types}, at, ("type", "block_id"))


_OPTION = Fields({"text": text(75), "value": string(150)}, {"description": text(75)})
_CHOICE = Fields(  # of checkboxes and radio buttons
    {"text": text(75, ANY_TEXT), "value": string(150)}, {"description": text(75, ANY_TEXT)}
)
_OVERFLOW_OPTION = Fields({"text": text(75), "value": string(150)}, {"description": text(75), "url": _URL})
_OPTION_GROUP = Fields({"label": text(75), "options": array(_OPTION, 100)})
_CONFIRM = Fields(
    {"title": text(100), "text": text(300, ANY_TEXT), "confirm": text(30), "deny": text(30)},
    {"style": _STYLE},
)
_FEEDBACK_BUTTON = Fields({"text": text(75), "value": string(2000)}, {"accessibility_label": string(75)})
_EXCLUDED: dict[str, Rule] = dict.fromkeys(("exclude_external_shared_channels", "exclude_bot_users"), flag)
_FILTER = Fields({}, {"include": array(string(values=("im", "mpim", "private", "public"))), **_EXCLUDED})
_DISPATCH_ACTION = Fields(
    {"trigger_actions_on": array(string(values=("on_enter_pressed", "on_character_entered")))}
)
_SLACK_FILE = Fields({}, {"id": string(), "url": string()}, ("id", "url"))


def _interactive(required: dict[str, Rule] | None = None, /, **optional: Rule) -> Fields:
    either = ("options", "option_groups") if "option_groups" in optional else ()
    return Fields(required or {}, {"action_id": _ID, **optional}, either)


def _input(required: dict[str, Rule] | None = None, /, **optional: Rule) -> Fields:
    return _interactive(required, placeholder=_PLACEHOLDER, focus_on_load=flag, **optional)


def _menu(**optional: Rule) -> Fields:
    return _input(confirm=_CONFIRM, **optional)


_LISTED: dict[str, Rule] = {"options": array(_OPTION, 100), "option_groups": array(_OPTION_GROUP, 100)}
_CHOICES: dict[str, Rule] = {"options": array(_CHOICE, 10)}
_CHOSEN: dict[str, Rule] = {"confirm": _CONFIRM, "focus_on_load": flag}
_INITIAL: dict[str, Rule] = {"initial_option": _OPTION}
_INITIALS: dict[str, Rule] = {"initial_options": array(_OPTION), "max_selected_items": whole(1)}
_MOST: dict[str, Rule] = {"max_selected_items": whole(1)}
_DISPATCHED: dict[str, Rule] = {"dispatch_action_config": _DISPATCH_ACTION}
_PRESSED: dict[str, Rule] = {"value": string(2000, least=0), "confirm": _CONFIRM}
_PRESSED |= {"accessibility_label": string(75), "visible_to_user_ids": array(string())}
_PROMPT: dict[str, Rule] = {"agent_prompt": string(4000), "agent_prompt_display": anything}
_CONVERSATIONS: dict[str, Rule] = {"default_to_current_conversation": flag, "filter": _FILTER}
_RESPONSE: dict[str, Rule] = {"response_url_enabled": flag}
_PARTS: dict[str, Rule] = {"elements": array(part(_INLINE), least=0)}
_TEXTS: dict[str, Rule] = {"text": text(3000, ANY_TEXT), "fields": array(text(2000, ANY_TEXT), 10)}
_IMAGE: dict[str, Rule] = {"image_url": _URL, "slack_file": _SLACK_FILE}

ELEMENTS: dict[str, Fields] = {
    "plain_text": Fields({"text": string(3000)}, {"emoji": flag}),
    "mrkdwn": Fields({"text": string(3000)}, {"verbatim": flag}),
    "image": Fields({"alt_text": string(2000)}, _IMAGE, tuple(_IMAGE)),
    "button": _interactive({"text": text(75)}, url=_URL, style=_STYLE, **_PRESSED, **_PROMPT),
    "icon_button": _interactive({"icon": string(), "text": text(75)}, **_PRESSED),
    "feedback_buttons": _interactive(
        {"positive_button": _FEEDBACK_BUTTON, "negative_button": _FEEDBACK_BUTTON}
    ),
    "workflow_button": _interactive(
        {"text": text(75), "workflow": anything}, style=_STYLE, accessibility_label=string(75)
    ),
    "overflow": _interactive({"options": array(_OVERFLOW_OPTION, 5)}, confirm=_CONFIRM),
    "checkboxes": _interactive(_CHOICES, initial_options=array(_CHOICE, 10), **_CHOSEN),
    "radio_buttons": _interactive(_CHOICES, initial_option=_CHOICE, **_CHOSEN),
    "static_select": _menu(**_LISTED, **_INITIAL),
    "external_select": _menu(**_INITIAL, min_query_length=whole()),
    "users_select": _menu(initial_user=string()),
    "conversations_select": _menu(initial_conversation=string(), **_CONVERSATIONS, **_RESPONSE),
    "channels_select": _menu(initial_channel=string(), **_RESPONSE),
    "multi_static_select": _menu(**_LISTED, **_INITIALS),
    "multi_external_select": _menu(**_INITIALS, min_query_length=whole()),
    "multi_users_select": _menu(initial_users=array(string()), **_MOST),
    "multi_conversations_select": _menu(initial_conversations=array(string()), **_CONVERSATIONS, **_MOST),
    "multi_channels_select": _menu(initial_channels=array(string()), **_MOST),
    "datepicker": _menu(initial_date=string()),
    "timepicker": _menu(initial_time=string(), timezone=string()),
    "datetimepicker": _interactive(initial_date_time=whole(), **_CHOSEN),
    "plain_text_input": _input(
        initial_value=string(3000, least=0),
        multiline=flag,
        min_length=whole(0, 3000),
        max_length=whole(1, 3000),
        **_DISPATCHED,
    ),
    "email_text_input": _input(initial_value=string(), **_DISPATCHED),
    "url_text_input": _input(initial_value=string(), **_DISPATCHED),
    "number_input": _input(
        {"is_decimal_allowed": flag},
        **dict.fromkeys(("initial_value", "min_value", "max_value"), decimal),
        **_DISPATCHED,
    ),
    "rich_text_input": _input(initial_value=anything, min_lines=whole(), max_lines=whole(), **_DISPATCHED),
    "file_input": _interactive(filetypes=array(string()), max_files=whole(1, 10)),
    "rich_text_section": Fields(_PARTS),
    "rich_text_preformatted": Fields(_PARTS, {"border": whole(), "language": string()}),
    "rich_text_quote": Fields(_PARTS, {"border": whole()}),
    "rich_text_list": Fields(
        {"elements": array(part(_RICH[:1])), "style": string(values=("bullet", "ordered"))},
        {"indent": whole(), "offset": whole(), "border": whole()},
    ),
    **{name: Fields({needed: string()}, open=True) for name, needed in _NAMED.items()},
    "broadcast": Fields({"range": string(values=("here", "channel", "everyone"))}, open=True),
    "date": Fields({"timestamp": whole(), "format": string()}, open=True),
}

_MESSAGES = ("message",)
_LEVEL = string(values=("default", "info", "warning", "error", "success"))
_IN_CONTAINER = (
    *("actions", "context", "divider", "file", "header", "image", "input", "rich_text", "section"),
    *("table", "video"),
)

BLOCKS: dict[str, Fields] = {
    "actions": Fields({"elements": array(part(IN_ACTIONS), 25)}),
    "context": Fields({"elements": array(part(("image", *ANY_TEXT)), 10)}),
    "context_actions": Fields(
        {"elements": array(part(("feedback_buttons", "icon_button")), 5)}, surfaces=_MESSAGES
    ),
    "divider": Fields(),
    "file": Fields({"external_id": string(), "source": string(values=("remote",))}, surfaces=_MESSAGES),
    "header": Fields({"text": text(150)}, {"level": whole(1, 4)}),
    "image": Fields({"alt_text": string(2000)}, {"title": text(2000), **_IMAGE}, tuple(_IMAGE)),
    "input": Fields(
        {"label": text(2000), "element": part(IN_INPUT)},
        {"hint": text(2000), "optional": flag, "dispatch_action": flag},
    ),
    "markdown": Fields({"text": string()}, surfaces=_MESSAGES),
    "rich_text": Fields({"elements": array(part(_RICH))}),
    "section": Fields({}, {**_TEXTS, "accessory": part(IN_SECTION), "expand": flag}, tuple(_TEXTS)),
    "video": Fields(
        {"alt_text": string(), "title": text(200), "thumbnail_url": string(), "video_url": string()},
        {
            "author_name": string(50),
            "description": text(200),
            **dict.fromkeys(("provider_icon_url", "provider_name", "title_url"), string()),
        },
    ),
    **dict.fromkeys(
        ("table", "data_visualization", "plan", "task_card"), Fields(open=True, surfaces=_MESSAGES)
    ),
    "alert": Fields({"text": text(200, ANY_TEXT)}, {"level": _LEVEL}, surfaces=("modal",)),
    "auth_provider": Fields(
        {"value": string(150), "name": text(75), "is_connected": flag},
        {
            "description": text(150),
            **dict.fromkeys(("connected_identity", "connected_context"), text(75)),
            **dict.fromkeys(("icon_url", "auth_url", "disconnect_url"), _URL),
            "accessory": part(("overflow",)),
            "fallback": array(anything),
        },
    ),
    "call": Fields({"call_id": string()}, {"api_decoration_available": flag, "call": anything}),
    "card": Fields(
        {},
        {
            **dict.fromkeys(("hero_image", "icon"), part(("image",))),
            "slack_icon": anything,
            **dict.fromkeys(("title", "subtitle"), text(150, ANY_TEXT)),
            "body": text(200, ANY_TEXT),
            "actions": array(part(("button",))),
        },
        ("hero_image", "title", "actions", "body"),
    ),
    "carousel": Fields({"elements": array(nested(("card",)), 10)}),
    "container": Fields(
        {"child_blocks": array(nested(_IN_CONTAINER), 10)},
        {
            "title": text(150),
            "rich_text_title": nested(("rich_text",)),
            "subtitle": text(150, ANY_TEXT),
            "width": string(values=("narrow", "standard", "wide", "full")),
            "icon": part(("image",)),
            **dict.fromkeys(("is_collapsible", "default_collapsed", "has_header_divider"), flag),
        },
        ("title", "rich_text_title"),
    ),
    "data_table": Fields(
        {"caption": string(), "rows": array(array(anything, 20), 101, 2)},
        {"page_size": whole(1, 100), "row_header_column_index": whole()},
    ),
}
"""The open ones show data. Another module checks them, and the cells of data tables."""

_FRAME: dict[str, Rule] = {
    "private_metadata": string(3000, least=0),
    **dict.fromkeys(("callback_id", "external_id"), string(255, least=0)),
}
VIEWS: dict[str, Fields] = {
    "modal": Fields(
        {"title": text(24), "blocks": anything},
        {
            **dict.fromkeys(("submit", "close"), text(24)),
            **dict.fromkeys(("clear_on_close", "notify_on_close", "submit_disabled"), flag),
            **_FRAME,
        },
    ),
    "home": Fields({"blocks": anything}, _FRAME),
}
"""The fields of views, beside their ``type``."""
