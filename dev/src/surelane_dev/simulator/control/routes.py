"""List the routes of the control API."""

from aiohttp import web

from surelane_dev.simulator.control import commands, elements, inputs, modals, operations, people
from surelane_dev.simulator.control.acts import act
from surelane_dev.simulator.faults import Fault
from surelane_dev.simulator.webapi.tiers import Tiers

ROUTES = (
    act("POST", "messages", people.say, inputs.MessageInput),
    act("PUT", "messages", people.rewrite, inputs.Rewrite),
    act("DELETE", "messages", people.delete, inputs.Pointed),
    act("POST", "reactions", people.react, inputs.Reaction),
    act("POST", "channels/{channel}/members", people.join, inputs.Joining),
    act("POST", "commands", commands.command, inputs.CommandInput, app=True),
    act("POST", "shortcuts", commands.shortcut, inputs.ShortcutInput, app=True),
    act("POST", "home", commands.home, inputs.Home, app=True),
    act("POST", "context", commands.look, inputs.Look, app=True),
    act("POST", "actions", elements.press, inputs.Press),
    act("POST", "options", elements.options, inputs.Typed),
    act("POST", "stop", elements.stop, inputs.Stop, app=True),
    act("POST", "entities", elements.entity, inputs.Entity, app=True),
    act("POST", "functions", elements.run, inputs.FunctionInput, app=True),
    act("GET", "functions/{execution}", elements.show_run),
    act("POST", "views/{view}", modals.submit, inputs.Submission),
    act("DELETE", "views/{view}", modals.close, inputs.Closing),
    act("GET", "state", operations.state),
    act("PUT", "problem", operations.show_problem, inputs.Unanswered),
    web.get("/control/feed", operations.feed),
    web.get("/control/reply", operations.reply),
    act("GET", "faults", operations.list_faults),
    act("POST", "faults", operations.add_fault, Fault),
    act("DELETE", "faults", operations.remove_faults),
    act("DELETE", "faults/{fault:\\d+}", operations.remove_faults),
    act("GET", "tiers", operations.show_tiers),
    act("PUT", "tiers", operations.set_tiers, Tiers),
    act("GET", "deliveries", operations.list_deliveries),
    act("GET", "deliveries/{event}", operations.one_delivery),
    act("POST", "deliveries/{event}/resend", operations.resend),
    act("GET", "calls", operations.list_calls),
    act("GET", "sockets", operations.show_sockets),
    act("POST", "sockets/disconnect", operations.disconnect, inputs.DisconnectInput),
    act("GET", "workspaces", operations.list_workspaces),
    act("DELETE", "workspaces/{team}", operations.uninstall),
    act("GET", "workspaces/{team}/messages", operations.list_messages),
    act("POST", "workspaces/{team}/messages", people.mention, inputs.Mention),
)
