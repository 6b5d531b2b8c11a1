"""Connect the simulator's parts, so that changes of the workspace reach the app and the open pages."""

import asyncio
from functools import partial

from surelane_dev.simulator.faults import Faults
from surelane_dev.simulator.feed import Feed
from surelane_dev.simulator.installs import Installs
from surelane_dev.simulator.interactions import Interactions
from surelane_dev.simulator.manifest import read_manifest
from surelane_dev.simulator.posting.delivery import Delivery, delivery_json, event_delivery
from surelane_dev.simulator.posting.events import envelope, events_of
from surelane_dev.simulator.posting.post import Post
from surelane_dev.simulator.posting.sender import Sender
from surelane_dev.simulator.posting.sockets import AppConnections
from surelane_dev.simulator.simulator_settings import SimulatorSettings
from surelane_dev.simulator.state import Offered
from surelane_dev.simulator.webapi.call import SlackState
from surelane_dev.simulator.webapi.dispatch import WebApi
from surelane_dev.simulator.webapi.tiers import RateLimits
from surelane_dev.simulator.workspace.demo import demo_workspace, name_bot, other_workspaces
from surelane_dev.simulator.workspace.model import JSON, Change, Deleted, Joined, Message, StatusSet
from surelane_dev.simulator.workspace.shapes import message_json
from surelane_dev.simulator.workspace.workspace import Workspace


class Simulator:
    """Connect workspace, Web API, delivery and feed. This needs a running event loop."""

    def __init__(self, settings: SimulatorSettings, public_url: str) -> None:
        self.settings = settings
        self.feed = feed = Feed()
        self.workspace = demo_workspace()
        self.interactions = Interactions(public_url)
        self.interactions.views.changed = lambda user: feed.publish("views", self.views_json(user))
        self.manifest = read_manifest(settings.manifest)
        given = settings.subscriptions
        self.subscriptions = self.manifest.events if given is None else given
        workspaces = (self.workspace, *other_workspaces(self.workspace.app_id))
        without = None if settings.installs else self.workspace
        self.installs = Installs(workspaces, token_lives=settings.token_lives, without=without)
        self.installs.removed = self._removed
        self.installs.listeners.append(
            lambda: feed.publish("workspaces", {"workspaces": self.workspaces_json()})
        )
        self.offered, self.sockets = Offered(), AppConnections(settings.timeout)
        self.sockets.changed = lambda: feed.publish("sockets", {"sockets": self.sockets.json()})
        self.faults = Faults(lambda: feed.publish("faults", {"faults": self.faults_json()}))
        known = (self.workspace, self.interactions, self.manifest, self.subscriptions)
        slack = SlackState(*known, installs=self.installs, sockets=self.sockets)
        self.sessions, self.files = slack.sessions, slack.files
        self.scheduled, self.executions = slack.scheduled, slack.executions
        self.sessions.changed = lambda: feed.publish("sessions", {"sessions": self.sessions.json()})
        scopes = self.manifest.scopes if settings.scopes is None else settings.scopes
        self.rate_limits = RateLimits(settings.tiers)
        self.api = WebApi(slack, self.faults, scopes, self.rate_limits, partial(feed.publish, "call"))
        post = Post(settings.ingest_url, settings.timeout, posting=settings.posting)
        retry_delays = settings.retry_delays if settings.posting else ()
        self.sender = Sender(post, self.sockets, retry_delays, self.faults, self.delivery_changed)
        for workspace in workspaces:
            workspace.unfurl_domains = self.manifest.unfurl_domains
            name_bot(workspace, self.manifest.bot_name, self.manifest.name)
            workspace.listeners += [partial(self._show, workspace), partial(self._send_events, workspace)]
        self.waits_for: str | None = None
        """What must happen before the app answers in the demo workspace; ``None``: nothing."""
        self.problem = ""
        """Why the app answers nothing, as `surelane dev` knows it."""
        self.closing = asyncio.Event()
        """Set when the simulator ends, so that every wait ends."""

    async def close(self) -> None:
        """End deliveries, feeds and waits; may be called again."""
        self.closing.set()
        self.scheduled.close()
        self.api.closing.set()
        self.feed.close()
        await self.sender.close()

    def message(self, workspace: Workspace, message: Message) -> JSON:
        """Return a message for a workspace's page: Slack's JSON, with details that Slack hides from apps."""
        shown = ("channel", "in_channel", "visible_to", "streaming", "streamed", "tasks", "plan")
        details = {name: getattr(message, name) for name in shown}
        return message_json(workspace, message, metadata=True) | {"team_id": workspace.team_id, **details}

    def delivery_changed(self, delivery: Delivery) -> None:
        """Show a delivery's progress on the pages."""
        self.feed.publish("delivery", delivery_json(delivery))

    def _send_events(self, workspace: Workspace, change: Change) -> None:
        """Send the events of a change. Of a shared channel, each of its workspaces that has the app sends them."""
        for each in workspace.audience(change):
            if self.installs.has_app(each):
                for inner in events_of(each, change, self.subscriptions):
                    self._send(each, inner)

    def _send(self, workspace: Workspace, inner: JSON) -> Delivery:
        wide = self.installs.is_wide(workspace)
        delivery = event_delivery(envelope(workspace, inner, wide=wide))
        self.sender.send(delivery)
        return delivery

    def _removed(self, workspace: Workspace, inner: JSON, wide: bool) -> None:
        removal = inner | {"event_ts": workspace.next_ts()}
        self.sender.send(event_delivery(envelope(workspace, removal, wide=wide)))

    def send_event(self, workspace: Workspace, inner: JSON) -> JSON | None:
        """Send an event if the app is subscribed to it. Return its delivery."""
        if inner["type"] not in self.subscriptions or not self.installs.has_app(workspace):
            return None
        return delivery_json(self._send(workspace, inner))

    def _show(self, workspace: Workspace, change: Change) -> None:
        """Show a change on the pages, in each workspace that sees it."""
        for each in workspace.audience(change):
            where = {"team_id": each.team_id}
            match change:
                case StatusSet():
                    self.feed.publish("statuses", where | {"statuses": each.statuses()})
                case Joined(channel, user):
                    self.feed.publish("joined", where | {"channel": channel.id, "user": user})
                case Deleted(message, None):
                    self.feed.publish("deleted", where | {"channel": message.channel, "ts": message.ts})
                    self._show_parent(each, message)
                case Deleted(_, tombstone) if tombstone is not None:
                    self.feed.publish("message", self.message(each, tombstone))
                case _:
                    self.feed.publish("message", self.message(each, change.message))
                    self._show_parent(each, change.message)

    def _show_parent(self, workspace: Workspace, message: Message) -> None:
        parent = workspace.message(message.channel, message.thread_ts or "")
        if message.is_reply and parent is not None:
            self.feed.publish("message", self.message(workspace, parent))

    def workspaces_json(self) -> list[JSON]:
        """Return the workspaces, which of them have the app, and where to install it. The demo workspace is first."""
        owners = self.installs.owners()  # once: thousands may be installed
        return [
            {
                "id": workspace.team_id,
                "name": workspace.name,
                "enterprise_id": workspace.enterprise_id,
                "installed": workspace is self.installs.without or removable,
                "removable": removable,
                "install_url": f"{self.settings.install_url}?team={workspace.team_id}",
            }
            for workspace in self.installs.workspaces.values()
            for removable in [not owners.isdisjoint((workspace.team_id, workspace.enterprise_id))]
        ]

    def views_json(self, user: str) -> JSON:
        """Return what a user has open of the app."""
        home, modals = self.interactions.views.home(user), self.interactions.views.stack(user)
        contents = [view.content for view in modals]
        return {"user": user, "modals": contents, "home": home.content if home else None}

    def faults_json(self) -> list[JSON]:
        return [fault.model_dump(mode="json") for fault in self.faults.active]
