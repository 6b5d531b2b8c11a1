"""A bot of a team, for the tests of `surelane.testing`."""

from datetime import timedelta
from typing import Any

from surelane_worker import Context, Discard, Event, Handlers

handlers = Handlers()
calls: list[str] = []
"""What the handlers called, also in attempts that were killed."""


def build(what: str) -> str:
    calls.append(f"build {what}")
    return f"{what}-1"


def deploy(build: str) -> str:
    calls.append(f"deploy {build}")
    return build


@handlers.on("slack.app_mention")
async def mentioned(event: Event, ctx: Context) -> Discard | None:
    match event.slack["text"].split()[1:]:
        case ["deploy", what]:
            built = await ctx.step("build", build, what)
            deployed = await ctx.step("deploy", deploy, built)
            await ctx.slack.reply(event, f"{deployed} is out")
        case ["fail", _]:
            if ctx.attempt == 1:
                raise LookupError("no such figure")
            await ctx.slack.reply(event, "found it")
        case ["give", "up"]:
            return Discard("no_luck")
        case ["nap", pause]:
            await ctx.sleep(pause)
            await ctx.slack.reply(event, "awake")
        case ["later", pause]:
            await ctx.queue.enqueue(
                "later",
                {"channel": event.slack["channel"]},
                run_at=event.event_ts + timedelta(minutes=int(pause)),
            )
        case ["ask", what]:
            answer = await ctx.ask(event, f"{what}?", ["yes", "no"])
            await ctx.slack.reply(event, f"you said {answer.choice if answer else 'nothing'}")
        case ["pick"]:
            for number in (1, 2):
                await ctx.slack.reply(event, f"menu {number}", blocks=[_menu(number)])
        case words:
            await ctx.slack.reply(event, f"You said: {' '.join(words)}")
    return None


def _menu(number: int) -> dict[str, Any]:
    hint = {"type": "plain_text", "text": "City"}
    menu = {"type": "external_select", "action_id": "city", "placeholder": hint, "min_query_length": 2}
    button = {"type": "button", "action_id": "number", "text": hint, "value": str(number)}
    return {"type": "actions", "elements": [menu, button]}


@handlers.options("city")
async def cities(event: Event, ctx: Context) -> None:
    text = {"type": "plain_text", "text": f"{event.payload['value']}burg"}
    await ctx.ack(options=[{"text": text, "value": text["text"].lower()}])


@handlers.action("city", "number")
async def chosen(event: Event, ctx: Context) -> None:
    action = event.payload["actions"][0]
    await ctx.slack.reply(event, action.get("value") or action["selected_option"]["value"])


@handlers.command("/broken")
async def broken(event: Event, ctx: Context) -> Discard:  # noqa: ARG001 - a handler takes both arguments
    return Discard("no_luck")


@handlers.command("/slow")
async def slow(event: Event, ctx: Context) -> None:
    await ctx.slack.reply(event, "It begins.")
    await ctx.sleep("2h")
    await ctx.slack.reply(event, "It is done.")


@handlers.on_failure()
async def failed(event: Event, ctx: Context) -> None:
    failure = event.payload["failure"]
    await ctx.slack.reply(event, f"{event.kind} {failure['outcome']}: {failure['reason']}")


@handlers.on("slack.message.im")
async def written(event: Event, ctx: Context) -> None:
    await ctx.slack.reply(event, str(event.slack["text"]))


@handlers.on("later")
async def later(event: Event, ctx: Context) -> None:
    await ctx.slack.reply(event, "it is later", **event.payload)


handlers.cron("report", "0 * * * *", kind="report")


@handlers.on("report")
async def report(_: Event, ctx: Context) -> None:
    await ctx.slack.client.chat_postMessage(channel="C0GENERAL1", text="the report")


@handlers.on("slack.app_home_opened")
async def opened(event: Event, ctx: Context) -> None:
    button = {"type": "button", "action_id": "open", "text": {"type": "plain_text", "text": "Form"}}
    view = {"type": "home", "blocks": [{"type": "actions", "elements": [button]}]}
    await ctx.slack.client.views_publish(user_id=event.slack["user"], view=view)


@handlers.on("slack.assistant_thread_started", "slack.assistant_thread_context_changed")
async def looked(event: Event, ctx: Context) -> None:
    thread = event.slack["assistant_thread"]
    channel, ts = thread["channel_id"], thread["thread_ts"]
    prompts = [{"title": "A summary", "message": "Sum up the channel"}]
    await ctx.slack.client.assistant_threads_setSuggestedPrompts(
        channel_id=channel, thread_ts=ts, prompts=prompts
    )
    about = thread["context"].get("channel_id", "nothing")
    await ctx.slack.client.chat_postMessage(channel=channel, thread_ts=ts, text=f"about {about}")


@handlers.on("slack.function_executed")
async def ran(event: Event, ctx: Context) -> None:
    run, inputs = event.slack["function_execution_id"], event.slack["inputs"]
    if "error" in inputs:
        await ctx.slack.client.functions_completeError(function_execution_id=run, error=inputs["error"])
    else:
        await ctx.slack.client.functions_completeSuccess(function_execution_id=run, outputs=inputs)


@handlers.action("open")
@handlers.command("/form")
async def form(event: Event, ctx: Context) -> None:
    title = {"type": "plain_text", "text": "Form"}
    element = {"type": "plain_text_input", "action_id": "name"}
    block = {"type": "input", "block_id": "b", "label": title, "element": element}
    view = {"type": "modal", "callback_id": "form", "title": title, "submit": title, "blocks": [block]}
    await ctx.slack.client.views_open(trigger_id=event.payload["trigger_id"], view=view)
    if "command" in event.payload:
        await ctx.slack.reply(event, "fill it in")


@handlers.view("form")
async def filled(event: Event, ctx: Context) -> None:
    name = event.payload["view"]["state"]["values"]["b"]["name"]["value"]
    await ctx.slack.client.chat_postMessage(channel=event.payload["user"]["id"], text=f"Hello {name}")


@handlers.on("slack.reaction_added")
async def reacted(event: Event, ctx: Context) -> None:
    item, name = event.slack["item"], event.slack["reaction"]
    await ctx.slack.client.chat_postMessage(channel=item["channel"], thread_ts=item["ts"], text=name)


@handlers.shortcut("page")
@handlers.on("trigger-fire")
async def noted(event: Event, _: Context) -> None:
    calls.append(event.kind)
