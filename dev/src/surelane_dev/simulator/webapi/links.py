"""Serve ``chat.unfurl`` and ``entity.presentDetails``: what an app shows of its links."""

from dataclasses import replace

from surelane_dev.simulator.posting.events import links_of
from surelane_dev.simulator.webapi.call import ApiError, MethodCall, invalid_arguments
from surelane_dev.simulator.workspace.model import JSON


def unfurl(call: MethodCall) -> JSON:
    """Show links below their message. A link that is shown already is replaced."""
    if (unfurl_id := call.text("unfurl_id")) and call.text("source"):
        where = dict(zip(("channel", "ts"), unfurl_id.rsplit("-", 1)[0].split(":"), strict=False))
        call = replace(call, arguments={**call.arguments, **where})
    elif not (call.text("channel") and call.text("ts")):
        raise invalid_arguments("give channel and ts, or unfurl_id and source")
    message = call.message(call.channel())
    shown = {
        url: {**part, "from_url": url}
        for url, part in (call.mapping("unfurls", "invalid_unfurls") or {}).items()
    }
    for entity in (call.mapping("metadata", "invalid_metadata") or {}).get("entities", []):
        url, title = entity["app_unfurl_url"], entity["entity_payload"]["attributes"]["title"]["text"]
        shown[url] = {"fallback": title, "title_link": entity["url"], "from_url": url, "entity": entity}
    if not shown:
        raise ApiError("missing_unfurls")
    if unknown := shown.keys() - {link["url"] for link in links_of(call.workspace, message.text)}:
        raise ApiError("cannot_unfurl_url", urls=sorted(unknown))
    call.workspace.show_links(message, shown)
    return {}


def present_details(call: MethodCall) -> JSON:
    """Show a person the details of a Work Object that they have clicked on, or an error."""
    state, user = call.slack.interactions.trigger(call.text("trigger_id"))
    if state == "unknown":
        raise ApiError("invalid_trigger_id")
    found = {name: call.mapping(name, f"invalid_{name}") for name in ("metadata", "error")}
    call.slack.interactions.details[user] = {name: value for name, value in found.items() if value}
    return {}
