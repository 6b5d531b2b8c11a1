"""Read text in Slack's notation as a person typed it, and write text so that Slack shows it as it is.

Slack escapes ``&``, ``<`` and ``>``. What stands between ``<`` and ``>`` is a link, a date, or a reference to a person,
a channel or a group. A reference keeps its id here: a tool may need it, and Slack shows it again when it is written.
"""

import re
from collections import defaultdict
from collections.abc import Iterable

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
_SHOWN = (
    *("pretext", "author_name", "title", "title_link", "text", "url"),
    *("fields", "elements", "accessory", "rows", "blocks"),
)
"""Where blocks and attachments have what they show."""
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


def shown_beside(message: Payload) -> str:
    """Return what a message shows beside its text: what an app put in blocks and attachments, and what was forwarded.

    What Slack shows of links, such as a preview, is left out.
    """
    said, by_app = text_of(message), message.get("bot_id") is not None
    blocks = [each for each in _objects(message.get("blocks")) if by_app or each.get("type") != "rich_text"]
    beside = list(_parts(blocks))
    for each in _objects(message.get("attachments")):
        if each.get("is_share") is True:
            author = text_in(each.get("author_id"))
            whose = f"<@{author}>" if author else text_in(each.get("author_name")) or "somebody"
            beside.append("\n".join([f"(Forwarded, by {whose}:)", *_parts({**each, "author_name": None})]))
        elif not (each.get("from_url") or each.get("original_url")):
            beside += list(_parts(each)) or [typed(text_in(each.get("fallback")) or "")]
    known = {"", said, *said.split("\n")}
    return "\n".join(part for part in dict.fromkeys(beside) if part.strip() not in known)


def _parts(part: object) -> Iterable[str]:
    """Yield the texts of blocks and attachments, as deep as they are."""
    given = object_in(part)
    if given.get("type") == "rich_text":
        yield from _blocks([given])
        return
    named = _SHOWN if "type" in given else (*_SHOWN, "value")  # the value of a button is none for people
    for each in part if isinstance(part, list) else map(given.get, named):
        yield from [typed(each)] if isinstance(each, str) else _parts(each) if each else ()


def _objects(given: object) -> list[Payload]:
    return list(map(object_in, given)) if isinstance(given, list) else []


def _blocks(blocks: object) -> Iterable[str]:
    for block in _objects(blocks):
        if block.get("type") == "rich_text":
            yield from map(_rich, _objects(block.get("elements")))


def _rich(element: Payload) -> str:
    """Return an element of rich text, with what it holds."""
    kind, parts = element.get("type"), list(map(_rich, _objects(element.get("elements"))))
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
