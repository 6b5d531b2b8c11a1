"""Check what the bot replied. A failed check tells what it replied, and where the events are."""

import re
from collections.abc import Sequence

from surelane_dev.simulator.workspace.model import Message
from surelane_dev.testing.slack import Sent


def assert_replied(sent: Sent, *expected: str | re.Pattern[str]) -> None:
    """Check that the bot's replies are exactly these, in this order; without any: that there is at least one.

    Args:
        sent: what a person did, as the methods of ``slack`` return it.
        expected: a text is the whole reply; a pattern is searched in it.

    Raises:
        AssertionError: they are not. The message tells where each event of the test is.
    """
    __tracebackhide__ = True
    replies = sent.replies
    if replies and not expected:
        return
    if len(replies) == len(expected) and all(map(_fits, replies, expected)) and expected:
        return
    raise AssertionError(_message(sent, replies, expected))


def _fits(reply: Message, expected: str | re.Pattern[str]) -> bool:
    return reply.text == expected if isinstance(expected, str) else bool(expected.search(reply.text))


def _message(sent: Sent, replies: Sequence[Message], expected: Sequence[str | re.Pattern[str]]) -> str:
    wanted = [repr(each) if isinstance(each, str) else f"/{each.pattern}/" for each in expected]
    return "\n".join(
        [
            f"after {sent.what}, the bot was to reply",
            *(f"  {each}" for each in wanted or ["anything"]),
            "and it replied",
            *(f"  {reply.text!r}" for reply in replies),
            *([] if replies else ["  nothing"]),
            *(f"outside the thread it wrote {message.text!r}" for message in sent.beside),
            *(str(story) for story in sent.stories()),
        ]
    )
