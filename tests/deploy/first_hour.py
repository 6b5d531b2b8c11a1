"""What a developer tries in a first hour, with the commands and files that the documentation names."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dev.tests.system.up import Up
from surelane_dev.simulator.client import SimulatorClient
from tests.deploy.commands import run
from tests.processes import until

HANDLERS = '''"""A first hour's handlers."""

import time

from surelane_worker import Context, Event, Handlers

handlers = Handlers()
ENTRY = {"type": "plain_text_input", "action_id": "text"}
LABEL = {"type": "plain_text", "text": "What"}
FORM = {
    "type": "modal",
    "callback_id": "order",
    "title": {"type": "plain_text", "text": "Order"},
    "submit": {"type": "plain_text", "text": "Send"},
    "blocks": [{"type": "input", "block_id": "what", "label": LABEL, "element": ENTRY}],
}


@handlers.on("slack.app_mention", max_attempts=1)
async def answer(event: Event, ctx: Context) -> None:
    text = event.slack["text"]
    if "approve" in text:
        chosen = await ctx.ask(event, "Shall it be deployed?", ["Yes", "No"], timeout="1h")
        await ctx.slack.reply(event, f"decided: {chosen and chosen.choice}")
    elif "remind" in text:
        await ctx.sleep("2s")
        await ctx.slack.reply(event, "it is time")
    elif "fail" in text:
        raise ValueError("no such order")
    elif "swap" in text:
        await ctx.slack.reply("swapped", event)
    elif "slow" in text:
        time.sleep(2)
    else:
        await ctx.slack.reply(event, "at your service")


@handlers.command("/order")
async def order(event: Event, ctx: Context) -> None:
    await ctx.slack.open_view(event, FORM | {"private_metadata": event.payload["channel_id"]})


@handlers.view("order")
async def ordered(event: Event, ctx: Context) -> None:
    view = event.payload["view"]
    what = view["state"]["values"]["what"]["text"]["value"]
    await ctx.slack.reply(event, f"ordered: {what}", channel=view["private_metadata"])


@handlers.event("reaction_added")
async def reacted(event: Event, ctx: Context) -> None: ...
'''


async def first_hour(system: Up, slack: SimulatorClient, project: Path, command: Path) -> None:
    """Change the handlers of a running project, and try a mention, a form, an approval, a reminder and mistakes."""
    (project / project.name / "handlers.py").write_text(HANDLERS)
    await until(lambda: "worker reloaded" in system.shown, within=90, what="the reload")
    assert await answered(slack, "hello") == "at your service"

    await slack.request("POST", "/control/commands", {"command": "/order"})
    (view,) = await poll(lambda: views(slack))
    typed = {"what": {"text": {"type": "plain_text_input", "value": "bread"}}}
    await slack.request("POST", f"/control/views/{view['id']}", {"values": typed})
    await poll(lambda: saying(slack, "ordered: bread"))

    question = await ask(slack, "please approve")
    buttons = next(block for block in question["blocks"] if block["type"] == "actions")
    press = {"channel": question["channel"], "ts": question["ts"]}
    press |= {"action_id": buttons["elements"][0]["action_id"], "value": buttons["elements"][0]["value"]}
    await slack.request("POST", "/control/actions", press)
    await poll(lambda: saying(slack, "decided: Yes"))
    assert await answered(slack, "remind me") == "it is time"

    # Mistakes are named where one looks.
    assert "a handler's events can never arrive" in system.shown
    await slack.say("swap", mention=True)
    await slack.say("slow", mention=True)
    await slack.say("fail", mention=True)
    await until(lambda: "blocks the event loop" in system.shown, within=60, what="the blocked loop")
    keys = await poll(lambda: failures(project, command))
    reasons = [await told(project, command, "events", "history", key) for key in keys]
    assert any("no such order" in reason for reason in reasons)
    assert any("its first argument is a str" in reason for reason in reasons)


async def ask(slack: SimulatorClient, text: str) -> dict[str, Any]:
    message = (await slack.say(text, mention=True))["message"]
    return dict(await slack.reply(message, 90))


async def answered(slack: SimulatorClient, text: str) -> str:
    return str((await ask(slack, text))["text"])


async def views(slack: SimulatorClient) -> list[dict[str, Any]]:
    people = (await slack.request("GET", "/control/state"))["views"]
    return [view for person in people for view in person["modals"]]


async def saying(slack: SimulatorClient, text: str) -> bool:
    return text in str(await slack.request("GET", "/control/state"))


async def told(project: Path, command: Path, *words: str) -> str:
    done = await asyncio.to_thread(run, command, *words, where=project)
    return done.stdout


async def failures(project: Path, command: Path) -> list[str]:
    keys = re.findall(r"Ev\w+", await told(project, command, "events", "list", "--status", "failed"))
    return keys if len(keys) == 2 else []


async def poll(look: Callable[[], Any], within: float = 60) -> Any:
    """Look until something is there."""
    async with asyncio.timeout(within):
        while not (seen := await look()):  # noqa: ASYNC110 - a process or a page that nothing announces
            await asyncio.sleep(0.2)
        return seen
