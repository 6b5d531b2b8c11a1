"""Offer what to try in the demonstration: each button shows one thing that a handler can do."""

import asyncio
import os

from surelane_worker import Context, Event, Handlers, builtin

handlers, offers = Handlers(), Handlers()
handlers.include(builtin.extended)  # if a model is set, it answers
handlers.include(offers)
handlers.include(builtin.handlers)

OFFERS = {
    "try_approval": "Ask for approval",
    "try_form": "Open a form",
    "try_stream": "Stream an answer",
    "try_reminder": "Remind me in a minute",
    "try_failure": "Fail",
}
BUTTONS = [
    {"type": "button", "action_id": name, "text": {"type": "plain_text", "text": words}}
    for name, words in OFFERS.items()
]
FORM = {
    "type": "modal",
    "callback_id": "wish",
    "title": {"type": "plain_text", "text": "A form"},
    "submit": {"type": "plain_text", "text": "Send"},
    "blocks": [
        {
            "type": "input",
            "block_id": "wish",
            "label": {"type": "plain_text", "text": "What do you wish for?"},
            "element": {"type": "plain_text_input", "action_id": "text"},
        }
    ],
}


@offers.on("slack.app_mention", "slack.message.im", timeout="10m")
async def offer(event: Event, ctx: Context) -> None:
    """Answer with a button for each thing to try."""
    said = f"You said: {str(event.slack.get('text') or 'nothing')[:1000]}\nTry what a handler can do:"
    section = {"type": "section", "text": {"type": "mrkdwn", "text": said}}
    await ctx.slack.reply(event, said, blocks=[section, {"type": "actions", "elements": BUTTONS}])


def thread(event: Event) -> dict[str, str]:
    """Return the thread of the message whose button was pressed."""
    message = event.payload["message"]
    return {"channel": event.payload["channel"]["id"], "thread_ts": message.get("thread_ts", message["ts"])}


@handlers.action("try_approval")
async def approve(event: Event, ctx: Context) -> None:
    """Wait for a person for up to a day, without a slot. The question outlives a restart."""
    answer = await ctx.ask(event, "Deploy version 2?", ["Approve", "Reject"], timeout="1d")
    said = "There was no answer." if answer is None else f"<@{answer.user}> chose {answer.choice}."
    await ctx.slack.reply(event, said, **thread(event))


@handlers.action("try_form")
async def form(event: Event, ctx: Context) -> None:
    """Open a form. It keeps the thread, because a submitted form does not say where it came from."""
    await ctx.slack.open_view(event, {**FORM, "private_metadata": " ".join(thread(event).values())})


@handlers.view("wish")
async def submitted(event: Event, ctx: Context) -> None:
    """Answer a submitted form in the thread."""
    view, person = event.payload["view"], event.payload["user"]["id"]
    channel, ts = view["private_metadata"].split()
    wish = view["state"]["values"]["wish"]["text"]["value"]
    await ctx.slack.reply(event, f"<@{person}> wishes for {wish}.", channel=channel, thread_ts=ts)


@handlers.action("try_stream")
async def stream(event: Event, ctx: Context) -> None:
    """Write an answer piece by piece. An attempt after a crash goes on in the same message."""
    async with ctx.slack.stream(event) as answer:
        for piece in ("This answer ", "grows piece by piece, ", "as that of ", "a model does."):
            await answer.append(piece)
            await asyncio.sleep(0.5)


@handlers.action("try_reminder")
async def remind(event: Event, ctx: Context) -> None:
    """Sleep for a minute, without a slot. The reminder comes even if Surelane restarts meanwhile."""
    await ctx.slack.reply(event, "I will be back in a minute, also after a restart.", **thread(event))
    await ctx.sleep("1m")
    await ctx.slack.reply(event, "The minute is over.", **thread(event))


@handlers.action("try_failure")
async def fail(event: Event, ctx: Context) -> None:
    """Fail in each of three attempts. The reply is posted once all the same."""
    page = f"{os.environ.get('SURELANE_CONSOLE_URL', '')}/console/events/{event.id}"
    said = f"I fail now, and twice more within a minute. The operator's page shows each error: {page}"
    await ctx.slack.reply(event, said, **thread(event))
    raise RuntimeError("this handler fails on purpose")
