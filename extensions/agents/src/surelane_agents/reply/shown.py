"""Show people what the model wants to do, so that they see all of it."""

import json
import re

from pydantic_ai import ToolCallPart

from surelane.text import escaped
from surelane_agents.tools.functions import UNSAFE

LONGEST_NAME = 64
"""Characters of a tool's name in the name of a step."""
BLANK = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Letters, marks and symbols that fonts show as nothing, and that Python calls printable."""


def shown_arguments(call: ToolCallPart) -> str:
    """Return a call's arguments for a question. What would hide or imitate something is shown as its code."""
    text = json.dumps(call.args_as_dict(), indent=1, ensure_ascii=False)
    return escaped(visible(text)).replace("`", "\u02cb")


def visible(text: str) -> str:
    """Return a text with what would hide or imitate something as its code."""
    return "".join(each if _is_seen(each) else f"\\u{ord(each):04x}" for each in text)


def safe_name(name: str) -> str:
    """Return a tool's name as the name of a step: the model, or an MCP server, has chosen it."""
    return UNSAFE.sub("_", name)[:LONGEST_NAME]


def _is_seen(character: str) -> bool:
    return character == "\n" or (character.isprintable() and not BLANK.match(character))


def is_blank(text: str) -> bool:
    """Whether a text shows nothing."""
    return not any(_is_seen(each) and not each.isspace() for each in text)
