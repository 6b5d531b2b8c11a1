"""Listeners that fail and die where a test wants it, for both sorts of apps."""

import inspect
import os
import signal
from collections.abc import Awaitable, Callable
from functools import wraps
from pathlib import Path
from typing import Any

from slack_sdk import WebClient
from slack_sdk.errors import SlackApiError

FOLDER = Path(os.environ.get("SURELANE_TEST_FOLDER", "."))
Sleep = Callable[[float], Awaitable[None] | None]
Listener = Callable[..., Any]


async def done(value: Any) -> Any:
    """Wait for what an asynchronous app gives. A synchronous one gives it at once."""
    return await value if inspect.isawaitable(value) else value


def synchronous(listener: Listener) -> Listener:
    """Return the function of a listener that never waits."""

    @wraps(listener)
    def listen(**given: Any) -> Any:
        try:
            listener(**given).send(None)
        except StopIteration as ended:
            return ended.value
        raise AssertionError("it waits")

    return listen


def same(listener: Listener) -> Listener:
    return listener


class Failing:
    """Registers the listeners at an app."""

    def __init__(
        self, app: Any, sleep: Sleep, called: Listener, as_: Callable[[Listener], Listener] = same
    ) -> None:
        self.app, self.sleep, self.called = app, sleep, called
        app.event("app_mention")(as_(self.mentioned))
        app.event("reaction_added")(as_(self.reacted))
        lazy = [as_(self.lazy_one), as_(self.lazy_two)]
        app.event("reaction_removed")(ack=as_(self.noted), lazy=lazy)
        app.shortcut("open")(as_(self.opened))
        app.command("/work")(as_(self.work))
        app.command("/nobody", matchers=[as_(self.never)])(as_(self.reacted))
        app.error(as_(self.failed))

    async def fail(self, text: str, where: str) -> None:
        """Fail or die here if the text says so, once in all processes."""
        for how in ("fail", "die"):
            if f"{how}-{where}" in text and not (FOLDER / f"{how}-{where}").exists():
                (FOLDER / f"{how}-{where}").touch()
                if how == "fail":
                    raise RuntimeError(where)
                os.kill(os.getpid(), signal.SIGKILL)
        while f"wait-{where}" in text and not (FOLDER / "go").exists():
            await done(self.sleep(0.01))

    async def mentioned(self, event: dict[str, Any], say: Any, client: Any) -> None:
        text, thread, channel = event["text"], event["ts"], event["channel"]
        for _ in range(text.count("react")):
            try:
                await done(client.reactions_add(channel=channel, timestamp=thread, name="hourglass"))
            except SlackApiError as error:
                await done(say(f"warning: {error.response['error']}", thread_ts=thread))
                return
        if "alone" in text:
            alone = WebClient(token=os.environ["SLACK_BOT_TOKEN"]).chat_postMessage
            own = {"channel": channel, "text": "by a client of its own", "thread_ts": thread}
            await done(self.called(alone, **own))
        elif "stream" in text:
            to = {"channel": channel, "thread_ts": thread, "recipient_user_id": event["user"]}
            stream = await done(client.chat_stream(**to, recipient_team_id="T"))
            await done(stream.append(markdown_text="one " * 100))
            await self.fail(text, "within")
            await done(stream.stop(markdown_text="end"))
        else:
            said = await done(say("first answer", thread_ts=thread))
            await self.fail(text, "between")
            if "wait-between" in text:
                await done(client.reactions_add(channel=channel, timestamp=thread, name="eyes"))
            post, own = client.chat_postMessage, self.app.client.chat_postMessage
            await done(post(channel=channel, text=f"after {said['ts']}", thread_ts=thread))
            await done(own(channel=channel, text="by the app", thread_ts=thread))
        await self.fail(text, "last")

    async def reacted(self) -> None: ...

    async def noted(self, event: dict[str, Any]) -> None:
        (FOLDER / f"listener {event['reaction']}").touch()
        await self.fail(event["reaction"], "listener")

    async def lazy_one(self, event: dict[str, Any], say: Any) -> None:
        await done(say(f"one {event['reaction']}", channel=event["item"]["channel"]))
        await self.fail(event["reaction"], "one")
        (FOLDER / f"one {event['reaction']}").touch()

    async def lazy_two(self, event: dict[str, Any], say: Any) -> None:
        await self.fail(event["reaction"], "two")
        await done(say(f"two {event['reaction']}", channel=event["item"]["channel"]))
        (FOLDER / f"two {event['reaction']}").touch()

    async def opened(self, ack: Any, shortcut: dict[str, Any], client: Any) -> None:
        await done(ack())
        title = {"type": "plain_text", "text": "V"}
        view = {"type": "modal", "callback_id": "v", "title": title, "blocks": []}
        answer = await done(client.views_open(trigger_id=shortcut["trigger_id"], view=view))
        await self.fail("fail-opened", "opened")
        text = f"opened {answer['view']['id']}"
        await done(client.chat_postMessage(channel=shortcut["user"]["id"], text=text))

    async def work(self, ack: Any, respond: Any, command: dict[str, Any]) -> None:
        await done(ack("working"))
        await done(respond("first response"))
        await self.fail(command["text"], "between")
        await done(respond("second response"))

    async def never(self) -> bool:
        return False

    async def failed(self, error: Exception, body: dict[str, Any], client: Any) -> None:
        event = body.get("event", {})
        if "sorry" in event.get("text", ""):
            place = {"channel": event["channel"], "thread_ts": event["ts"]}
            await done(client.chat_postMessage(text=f"sorry: {error}", **place))
