"""Read text in Slack's notation as a person typed it, and write text so that Slack shows it as it is.

Slack escapes ``&``, ``<`` and ``>``. What stands between ``<`` and ``>`` is a link, a date, or a reference to a person,
a channel or a group. A reference keeps its id here: a tool may need it, and Slack shows it again when it is written.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from surelane.slack import Payload, edited_message, inner_event, object_in, text_in

REFERENCE = (
    r"<(?:@[UWB]\w+|#[CDG]\w+)(?:\|[^<>\n]{0,200})?>"
    r"|<!date\^\d+\^[^<>\n]{1,500}>"
    r"|<(?:https?://|mailto:|tel:)[^<>\s|]{1,3000}(?:\|[^<>\n]{0,500})?>"
)
"""A pattern for a person, a channel, a date or a link. Alarms, such as ``<!here>``, are left out."""
_READ = re.compile(
    r"<(?:@(?P<user>[UWB]\w+)|#(?P<channel>[CDG]\w+)|!(?P<special>[\w^]+)[^<>|]*"
    r"|(?P<link>[a-z][a-z0-9+.-]*:[^<>|\s]+))(?:\|(?P<label>[^<>]*))?>|(?P<escape>&(?:amp|lt|gt);)",
    re.ASCII | re.IGNORECASE,
)
_WRITTEN = re.compile(
    rf"{REFERENCE}|(?P<alarm><![^<>\n]{{1,200}}>)|&(?:amp|lt|gt);|^>+|(?P<bare>[&<>])",
    re.ASCII | re.IGNORECASE | re.MULTILINE,
)
_RICH = {
    "user": "<@{user_id}>",
    "channel": "<#{channel_id}>",
    "usergroup": "<!subteam^{usergroup_id}>",
    "broadcast": "@{range}",
    "emoji": ":{name}:",
}
"""How elements of rich text are written in a text."""
_SCHEME = re.compile(r"(https?://|mailto:|tel:)", re.IGNORECASE)


def typed(text: str) -> str:
    """Return a text of Slack's as a person typed it: ``R&amp;D`` is ``R&D``.

    A link is its address, or ``[label](address)``. A date is its text, a group its name, and ``<!here>`` is ``@here``.
    """
    return _READ.sub(_as_typed, text)


def escaped(text: str) -> str:
    """Return any text so that Slack shows it as it is: it makes no link, no reference and no alarm."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def escaped_once(text: str, *, alarms: bool = False) -> str:
    """Escape a text for Slack but for what means something there: references, links, quotations and escapes.

    ``alarms``: also leave what notifies a channel or a group, such as ``<!here>``.
    """
    escapes = ("bare",) if alarms else ("bare", "alarm")
    return _WRITTEN.sub(lambda found: escaped(found[0]) if found.lastgroup in escapes else found[0], text)


def _as_typed(found: re.Match[str]) -> str:
    if escape := found["escape"]:
        return _unescaped(escape)
    label = _unescaped(found["label"] or "")
    if user := found["user"]:
        return f"<@{user}>"
    if channel := found["channel"]:
        return f"<#{channel}|{label}>" if label else f"<#{channel}>"
    if special := found["special"]:
        return f"@{special}" if "^" not in special else label or f"<!{special}>"
    return _link(_unescaped(found["link"]), label)


def _link(url: str, label: str) -> str:
    address = _SCHEME.sub("", url, count=1)
    if not label:
        return url if url.lower().startswith("http") else address
    return label if label.rstrip("/") in (url.rstrip("/"), address.rstrip("/")) else f"[{label}]({url})"


def _unescaped(text: str) -> str:
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def typed_in(kind: str, payload: Payload) -> str:
    """Return what the person typed who caused an event of Slack's. A job's ``text`` is as its producer wrote it."""
    inner = inner_event(payload)
    if not kind.removeprefix("surelane.failed:").startswith("slack."):
        return text_in(inner.get("text")) or ""
    return text_of(edited_message(inner) or inner)


def text_of(message: Payload) -> str:
    """Return what the author of a message typed: by its ``text``, or its rich text where that is empty."""
    text = text_in(message.get("text"))
    return typed(text) if text else "\n".join(_blocks(message.get("blocks")))


def _blocks(blocks: object) -> Iterable[str]:
    for block in map(object_in, blocks if isinstance(blocks, list) else ()):
        if block.get("type") == "rich_text":
            yield from (_rich(each) for each in map(object_in, _elements(block)))


def _elements(holder: Payload) -> list[Any]:
    found = holder.get("elements")
    return found if isinstance(found, list) else []


def _rich(element: Payload) -> str:
    """Return an element of rich text, with what it holds."""
    kind, parts = element.get("type"), [_rich(each) for each in map(object_in, _elements(element))]
    if kind == "rich_text_list":
        return "\n".join(f"• {part}" for part in parts)
    if kind == "rich_text_quote":
        return "\n".join(f"> {line}" for line in "".join(parts).split("\n"))
    if kind == "rich_text_preformatted":
        return f"```\n{''.join(parts)}\n```"
    said = {name: _unescaped(str(element.get(name) or "")) for name in ("text", "url", "fallback", "value")}
    if kind == "link":
        return _link(said["url"], said["text"])
    if kind in _RICH:
        return _RICH[kind].format_map(defaultdict(str, element))
    return "".join(parts) or said["text"] or said["fallback"] or said["value"]
