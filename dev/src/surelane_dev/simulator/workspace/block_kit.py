"""Slack's rules for blocks and views, as data: fields, lengths and counts.

They are facts of Slack's Block Kit reference (https://docs.slack.dev/reference/block-kit, with its pages for blocks,
block elements and composition objects, and https://docs.slack.dev/reference/views), read in November 2026. Those of
``auth_provider`` and ``call`` are of slack-sdk for Python, the place and length of ``alert`` are of slack-sdk for Java.
Where they give no bound, there is none here.
"""

from dataclasses import dataclass, field

PLAIN = ("plain_text",)
ANY_TEXT = ("plain_text", "mrkdwn")
MOST_BLOCKS = {"message": 50, "modal": 100, "home": 100}
"""Most blocks on each surface."""
LONGEST_MARKDOWN = 12_000
"""Characters of all markdown blocks of a message."""


@dataclass(frozen=True, slots=True)
class String:
    """A text of ``least`` to ``most`` characters, or one of ``values``."""

    most: int | None = None
    least: int = 1
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Text:
    """A text object."""

    most: int = 3000
    kinds: tuple[str, ...] = PLAIN


@dataclass(frozen=True, slots=True)
class Flag:
    """True or false."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number."""

    least: int = 0
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Decimal:
    """A number as text."""


@dataclass(frozen=True, slots=True)
class Anything:
    """A value of any form: Slack's rules for it are not known here."""


@dataclass(frozen=True, slots=True)
class Named:
    """An object without a type, by its name in ``SHAPES``."""

    name: str


@dataclass(frozen=True, slots=True)
class Part:
    """An object whose type is one of these in ``ELEMENTS``."""

    types: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Nested:
    """A block whose type is one of these in ``BLOCKS``."""

    types: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Array:
    """A list."""

    of: "Rule"
    most: int | None = None
    least: int = 1


Rule = String | Text | Flag | Whole | Decimal | Anything | Named | Part | Nested | Array


@dataclass(frozen=True, slots=True)
class Fields:
    """An object's fields."""

    required: dict[str, Rule] = field(default_factory=dict)
    optional: dict[str, Rule] = field(default_factory=dict)
    either: tuple[str, ...] = ()
    """Names of fields. At least one of them is needed."""
    open: bool = False
    """Whether it may have fields that are not named here."""
    surfaces: tuple[str, ...] = ("message", "modal", "home")


_ID = String(255)
_URL = String(3000)
_PLACEHOLDER = Text(150)
_STYLE = String(values=("primary", "danger"))
_SELECTS = ("static_select", "external_select", "users_select", "conversations_select", "channels_select")
_MENUS = (*_SELECTS, *(f"multi_{name}" for name in _SELECTS))
_PICKERS = ("checkboxes", "datepicker", "radio_buttons", "timepicker")
_TYPED = ("plain_text_input", "email_text_input", "url_text_input", "number_input", "rich_text_input")
IN_ACTIONS = ("button", "datetimepicker", "overflow", "workflow_button", *_MENUS, *_PICKERS)
IN_SECTION = ("button", "image", "overflow", "workflow_button", *_MENUS, *_PICKERS)
IN_INPUT = ("datetimepicker", "file_input", *_TYPED, *_MENUS, *_PICKERS)
_RICH = ("rich_text_section", "rich_text_list", "rich_text_preformatted", "rich_text_quote")
_INLINE = (
    *("text", "link", "emoji", "user", "channel", "usergroup"),
    *("broadcast", "date", "color", "team"),
)

SHAPES: dict[str, Fields] = {
    "option": Fields({"text": Text(75), "value": String(150)}, {"description": Text(75)}),
    "choice": Fields(  # of checkboxes and radio buttons
        {"text": Text(75, ANY_TEXT), "value": String(150)}, {"description": Text(75, ANY_TEXT)}
    ),
    "overflow option": Fields(
        {"text": Text(75), "value": String(150)}, {"description": Text(75), "url": _URL}
    ),
    "option group": Fields({"label": Text(75), "options": Array(Named("option"), 100)}),
    "confirm": Fields(
        {"title": Text(100), "text": Text(300, ANY_TEXT), "confirm": Text(30), "deny": Text(30)},
        {"style": _STYLE},
    ),
    "feedback button": Fields({"text": Text(75), "value": String(2000)}, {"accessibility_label": String(75)}),
    "filter": Fields(
        {},
        {
            "include": Array(String(values=("im", "mpim", "private", "public"))),
            "exclude_external_shared_channels": Flag(),
            "exclude_bot_users": Flag(),
        },
    ),
    "dispatch action": Fields(
        {"trigger_actions_on": Array(String(values=("on_enter_pressed", "on_character_entered")))}
    ),
    "slack file": Fields({}, {"id": String(), "url": String()}, ("id", "url")),
}


def _interactive(required: dict[str, Rule] | None = None, /, **optional: Rule) -> Fields:
    either = ("options", "option_groups") if "option_groups" in optional else ()
    return Fields(required or {}, {"action_id": _ID, **optional}, either)


def _input(required: dict[str, Rule] | None = None, /, **optional: Rule) -> Fields:
    return _interactive(required, placeholder=_PLACEHOLDER, focus_on_load=Flag(), **optional)


def _menu(**optional: Rule) -> Fields:
    return _input(confirm=Named("confirm"), **optional)


_LISTED: dict[str, Rule] = {
    "options": Array(Named("option"), 100),
    "option_groups": Array(Named("option group"), 100),
}
_INITIAL: dict[str, Rule] = {"initial_option": Named("option")}
_INITIALS: dict[str, Rule] = {"initial_options": Array(Named("option")), "max_selected_items": Whole(1)}
_MOST: dict[str, Rule] = {"max_selected_items": Whole(1)}
_DISPATCHED: dict[str, Rule] = {"dispatch_action_config": Named("dispatch action")}
_CONVERSATIONS: dict[str, Rule] = {"default_to_current_conversation": Flag(), "filter": Named("filter")}
_RESPONSE: dict[str, Rule] = {"response_url_enabled": Flag()}
_IMAGE: dict[str, Rule] = {"image_url": _URL, "slack_file": Named("slack file")}

ELEMENTS: dict[str, Fields] = {
    "plain_text": Fields({"text": String(3000)}, {"emoji": Flag()}),
    "mrkdwn": Fields({"text": String(3000)}, {"verbatim": Flag()}),
    "image": Fields({"alt_text": String(2000)}, _IMAGE, tuple(_IMAGE)),
    "button": _interactive(
        {"text": Text(75)},
        url=_URL,
        value=String(2000, least=0),
        style=_STYLE,
        confirm=Named("confirm"),
        accessibility_label=String(75),
        agent_prompt=String(4000),
        agent_prompt_display=Anything(),
        visible_to_user_ids=Array(String()),
    ),
    "icon_button": _interactive(
        {"icon": String(), "text": Text(75)},
        value=String(2000, least=0),
        confirm=Named("confirm"),
        accessibility_label=String(75),
        visible_to_user_ids=Array(String()),
    ),
    "feedback_buttons": _interactive(
        {"positive_button": Named("feedback button"), "negative_button": Named("feedback button")}
    ),
    "workflow_button": _interactive(
        {"text": Text(75), "workflow": Anything()}, style=_STYLE, accessibility_label=String(75)
    ),
    "overflow": _interactive({"options": Array(Named("overflow option"), 5)}, confirm=Named("confirm")),
    "checkboxes": _interactive(
        {"options": Array(Named("choice"), 10)},
        initial_options=Array(Named("choice"), 10),
        confirm=Named("confirm"),
        focus_on_load=Flag(),
    ),
    "radio_buttons": _interactive(
        {"options": Array(Named("choice"), 10)},
        initial_option=Named("choice"),
        confirm=Named("confirm"),
        focus_on_load=Flag(),
    ),
    "static_select": _menu(**_LISTED, **_INITIAL),
    "external_select": _menu(**_INITIAL, min_query_length=Whole()),
    "users_select": _menu(initial_user=String()),
    "conversations_select": _menu(initial_conversation=String(), **_CONVERSATIONS, **_RESPONSE),
    "channels_select": _menu(initial_channel=String(), **_RESPONSE),
    "multi_static_select": _menu(**_LISTED, **_INITIALS),
    "multi_external_select": _menu(**_INITIALS, min_query_length=Whole()),
    "multi_users_select": _menu(initial_users=Array(String()), **_MOST),
    "multi_conversations_select": _menu(initial_conversations=Array(String()), **_CONVERSATIONS, **_MOST),
    "multi_channels_select": _menu(initial_channels=Array(String()), **_MOST),
    "datepicker": _menu(initial_date=String()),
    "timepicker": _menu(initial_time=String(), timezone=String()),
    "datetimepicker": _interactive(initial_date_time=Whole(), confirm=Named("confirm"), focus_on_load=Flag()),
    "plain_text_input": _input(
        initial_value=String(3000, least=0),
        multiline=Flag(),
        min_length=Whole(0, 3000),
        max_length=Whole(1, 3000),
        **_DISPATCHED,
    ),
    "email_text_input": _input(initial_value=String(), **_DISPATCHED),
    "url_text_input": _input(initial_value=String(), **_DISPATCHED),
    "number_input": _input(
        {"is_decimal_allowed": Flag()},
        initial_value=Decimal(),
        min_value=Decimal(),
        max_value=Decimal(),
        **_DISPATCHED,
    ),
    "rich_text_input": _input(initial_value=Anything(), min_lines=Whole(), max_lines=Whole(), **_DISPATCHED),
    "file_input": _interactive(filetypes=Array(String()), max_files=Whole(1, 10)),
    "rich_text_section": Fields({"elements": Array(Part(_INLINE), least=0)}),
    "rich_text_preformatted": Fields(
        {"elements": Array(Part(_INLINE), least=0)}, {"border": Whole(), "language": String()}
    ),
    "rich_text_quote": Fields({"elements": Array(Part(_INLINE), least=0)}, {"border": Whole()}),
    "rich_text_list": Fields(
        {"elements": Array(Part(_RICH[:1])), "style": String(values=("bullet", "ordered"))},
        {"indent": Whole(), "offset": Whole(), "border": Whole()},
    ),
    "text": Fields({"text": String()}, open=True),
    "link": Fields({"url": String()}, open=True),
    "emoji": Fields({"name": String()}, open=True),
    "user": Fields({"user_id": String()}, open=True),
    "channel": Fields({"channel_id": String()}, open=True),
    "usergroup": Fields({"usergroup_id": String()}, open=True),
    "broadcast": Fields({"range": String(values=("here", "channel", "everyone"))}, open=True),
    "date": Fields({"timestamp": Whole(), "format": String()}, open=True),
    "color": Fields({"value": String()}, open=True),
    "team": Fields({"team_id": String()}, open=True),
}

_MESSAGES = ("message",)
_IN_CONTAINER = (
    *("actions", "context", "divider", "file", "header", "image", "input", "rich_text", "section"),
    *("table", "video"),
)

BLOCKS: dict[str, Fields] = {
    "actions": Fields({"elements": Array(Part(IN_ACTIONS), 25)}),
    "context": Fields({"elements": Array(Part(("image", *ANY_TEXT)), 10)}),
    "context_actions": Fields(
        {"elements": Array(Part(("feedback_buttons", "icon_button")), 5)}, surfaces=_MESSAGES
    ),
    "divider": Fields(),
    "file": Fields({"external_id": String(), "source": String(values=("remote",))}, surfaces=_MESSAGES),
    "header": Fields({"text": Text(150)}, {"level": Whole(1, 4)}),
    "image": Fields({"alt_text": String(2000)}, {"title": Text(2000), **_IMAGE}, tuple(_IMAGE)),
    "input": Fields(
        {"label": Text(2000), "element": Part(IN_INPUT)},
        {"hint": Text(2000), "optional": Flag(), "dispatch_action": Flag()},
    ),
    "markdown": Fields({"text": String()}, surfaces=_MESSAGES),
    "rich_text": Fields({"elements": Array(Part(_RICH))}),
    "section": Fields(
        {},
        {
            "text": Text(3000, ANY_TEXT),
            "fields": Array(Text(2000, ANY_TEXT), 10),
            "accessory": Part(IN_SECTION),
            "expand": Flag(),
        },
        ("text", "fields"),
    ),
    "video": Fields(
        {"alt_text": String(), "title": Text(200), "thumbnail_url": String(), "video_url": String()},
        {
            "author_name": String(50),
            "description": Text(200),
            "provider_icon_url": String(),
            "provider_name": String(),
            "title_url": String(),
        },
    ),
    "table": Fields(open=True, surfaces=_MESSAGES),
    "data_visualization": Fields(open=True, surfaces=_MESSAGES),
    "plan": Fields(open=True, surfaces=_MESSAGES),
    "task_card": Fields(open=True, surfaces=_MESSAGES),
    "alert": Fields(
        {"text": Text(200, ANY_TEXT)},
        {"level": String(values=("default", "info", "warning", "error", "success"))},
        surfaces=("modal",),
    ),
    "auth_provider": Fields(
        {"value": String(150), "name": Text(75), "is_connected": Flag()},
        {
            "description": Text(150),
            **dict.fromkeys(("connected_identity", "connected_context"), Text(75)),
            **dict.fromkeys(("icon_url", "auth_url", "disconnect_url"), _URL),
            "accessory": Part(("overflow",)),
            "fallback": Array(Anything()),
        },
    ),
    "call": Fields({"call_id": String()}, {"api_decoration_available": Flag(), "call": Anything()}),
    "card": Fields(
        {},
        {
            **dict.fromkeys(("hero_image", "icon"), Part(("image",))),
            "slack_icon": Anything(),
            **dict.fromkeys(("title", "subtitle"), Text(150, ANY_TEXT)),
            "body": Text(200, ANY_TEXT),
            "actions": Array(Part(("button",))),
        },
        ("hero_image", "title", "actions", "body"),
    ),
    "carousel": Fields({"elements": Array(Nested(("card",)), 10)}),
    "container": Fields(
        {"child_blocks": Array(Nested(_IN_CONTAINER), 10)},
        {
            "title": Text(150),
            "rich_text_title": Nested(("rich_text",)),
            "subtitle": Text(150, ANY_TEXT),
            "width": String(values=("narrow", "standard", "wide", "full")),
            "icon": Part(("image",)),
            **dict.fromkeys(("is_collapsible", "default_collapsed", "has_header_divider"), Flag()),
        },
        ("title", "rich_text_title"),
    ),
    "data_table": Fields(
        {"caption": String(), "rows": Array(Array(Anything(), 20), 101, 2)},
        {"page_size": Whole(1, 100), "row_header_column_index": Whole()},
    ),
}
"""The open ones show data. Another module checks them, and the cells of data tables."""

_FRAME: dict[str, Rule] = {
    "private_metadata": String(3000, least=0),
    "callback_id": String(255, least=0),
    "external_id": String(255, least=0),
}
VIEWS: dict[str, Fields] = {
    "modal": Fields(
        {"title": Text(24), "blocks": Anything()},
        {
            "submit": Text(24),
            "close": Text(24),
            "clear_on_close": Flag(),
            "notify_on_close": Flag(),
            "submit_disabled": Flag(),
            **_FRAME,
        },
    ),
    "home": Fields({"blocks": Anything()}, _FRAME),
}
"""The fields of views, beside their ``type``."""
