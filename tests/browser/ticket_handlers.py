"""Answer modals and menus beside the built-in handlers, for the page of the whole system."""

from typing import Any

from surelane_worker import Context, Event, Handlers
from surelane_worker.builtin import handlers as builtin

handlers = Handlers()
handlers.include(builtin)

CITIES = {"Germany": ("Berlin", "Bremen"), "Norway": ("Bergen", "Oslo")}


def plain(text: str) -> dict[str, str]:
    return {"type": "plain_text", "text": text}


def asking(block_id: str, label: str, **element: Any) -> dict[str, Any]:
    element["action_id"] = block_id
    return {"type": "input", "block_id": block_id, "label": plain(label), "element": element}


TICKET = {
    "type": "modal",
    "callback_id": "ticket",
    "title": plain("File a ticket"),
    "submit": plain("File it"),
    "blocks": [
        asking("what", "What is wrong?", type="plain_text_input"),
        asking("city", "City", type="external_select", min_query_length=1),
    ],
}


def thanking(city: str) -> dict[str, Any]:
    section = {"type": "section", "text": plain(f"Somebody in {city} looks at it.")}
    return {"type": "modal", "title": plain("Thank you"), "blocks": [section]}


@handlers.shortcut("ask")
async def ask(event: Event, ctx: Context) -> None:
    """Open the modal."""
    await ctx.slack.open_view(event, TICKET)


@handlers.options("city")
async def cities(event: Event, ctx: Context) -> None:
    """Offer the cities that begin with the typed letters."""
    typed = str(event.payload["value"]).lower()
    groups = []
    for country, names in CITIES.items():
        found = [name for name in names if name.lower().startswith(typed)]
        options = [{"text": plain(name), "value": name} for name in found]
        if options:
            groups.append({"label": plain(country), "options": options})
    await ctx.ack(option_groups=groups)


@handlers.view("ticket", answers=True)
async def filed(event: Event, ctx: Context) -> None:
    """Take a ticket that names the door."""
    values = event.payload["view"]["state"]["values"]
    if "door" not in values["what"]["what"]["value"]:
        await ctx.ack(response_action="errors", errors={"what": "Name the door."})
    else:
        city = values["city"]["city"]["selected_option"]["value"]
        await ctx.ack(response_action="update", view=thanking(city))
