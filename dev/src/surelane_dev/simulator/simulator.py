"""Connect the simulator's parts, so that changes of the workspace reach the app and the open pages."""

import asyncio
from functools import partial

from surelane_dev.simulator.faults import Faults
from surelane_dev.simulator.feed import Feed
from surelane_dev.simulator.files import Files
from surelane_dev.simulator.installs import Installs
from surelane_dev.simulator.interactions import Interactions
from surelane_dev.simulator.manifest import read_manifest
from surelane_dev.simulator.offered import Offered
from surelane_dev.simulator.posting.delivery import Delivery, delivery_json, event_delivery
from surelane_dev.simulator.posting.events import envelope, events_of
from surelane_dev.simulator.posting.post import Post
from surelane_dev.simulator.posting.sender import Sender
from surelane_dev.simulator.posting.sockets import Sockets
from surelane_dev.simulator.sessions import Sessions
from surelane_dev.simulator.settings import SimulatorSettings
from surelane_dev.simulator.webapi.call import Slack
from surelane_dev.simulator.webapi.dispatch import WebApi
from surelane_dev.simulator.webapi.tiers import RateLimits
from surelane_dev.simulator.workspace.demo import demo_workspace, other_workspaces
from surelane_dev.simulator.workspace.model import JSON, Change, Deleted, Joined, Message, StatusSet
from surelane_dev.simulator.workspace.shapes import message_json, talk_json
from surelane_dev.simulator.workspace.workspace import Workspace


class Simulator:
    """Connect workspace, Web API, delivery and feed. This needs a running event loop."""

    def __init__(self, settings: SimulatorSettings, public_url: str) -> None:
        self.settings = settings
        self.feed = Feed()
        self.workspace = demo_workspace()
        self.interactions = Interactions(public_url)
        self.interactions.views.changed = self._views_changed
        self.manifest = read_manifest(settings.manifest)
        given = settings.subscriptions
        self.subscriptions = self.manifest.events if given is None else given
        self.sessions, self.files, self.offered = Sessions(), Files(), Offered()
        self.sockets = Sockets(settings.timeout)
        self.sessions.changed = self._sessions_changed
        self.faults = Faults(self._faults_changed)
        others = other_workspaces(self.workspace.app_id)
        self.installs = Installs((self.workspace, *others), token_lives=settings.token_lives)
        self.installs.removed = self._removed
        self.installs.changed = self._workspaces_changed
        self.sockets.changed = self._sockets_changed
        slack = Slack(
            self.workspace,
            self.interactions,
            self.manifest,
            self.subscriptions,
            self.sessions,
            self.files,
            self.installs,
            self.sockets,
        )
        scopes = self.manifest.scopes if settings.scopes is None else settings.scopes
        self.rate_limits = RateLimits(settings.tiers)
        self.api = WebApi(
            slack, self.faults, scopes, self.rate_limits, lambda call: self.feed.publish("call", call)
        )
        post = Post(settings.ingest_url, settings.timeout, posting=settings.posting)
        retry_delays = settings.retry_delays if settings.posting else ()
        self.sender = Sender(post, self.sockets, retry_delays, self.faults, self.delivery_changed)
        self.workspace.listeners += [self._show, self._send_events]
        for workspace in others:
            workspace.listeners += [
                partial(self._send_events_of, workspace),
                lambda _: self._workspaces_changed(),
            ]
        self.closing = asyncio.Event()
        """Set when the simulator ends, so that every wait ends."""

    async def close(self) -> None:
        """End deliveries, feeds and waits; may be called again."""
        self.closing.set()
        self.api.closing.set()
        self.feed.close()
        await self.sender.close()

    def message(self, message: Message) -> JSON:
        """Return a message for the page: Slack's JSON, with details that Slack hides from apps."""
        return message_json(self.workspace, message, metadata=True) | {
            "channel": message.channel,
            "in_channel": message.in_channel,
            "visible_to": message.visible_to,
            "streaming": message.streaming,
            "streamed": message.streamed,
            "tasks": message.tasks,
        }

    def delivery_changed(self, delivery: Delivery) -> None:
        """Show a delivery's progress on the pages."""
        self.feed.publish("delivery", delivery_json(delivery))

    def _send_events(self, change: Change) -> None:
        for inner in events_of(self.workspace, change, self.subscriptions):
            self.sender.send(event_delivery(envelope(self.workspace, inner)))

    def _send_events_of(self, workspace: Workspace, change: Change) -> None:
        """Send another workspace's events. It has the app once it, or its organization, has installed it.

        Of a shared channel, each of its workspaces that has the app sends them.
        """
        for each in workspace.audience(change):
            grant = self.installs.installed(each)
            if grant is not None:
                for inner in events_of(each, change, self.subscriptions):
                    self.sender.send(event_delivery(envelope(each, inner, wide=grant.wide)))

    def _removed(self, workspace: Workspace, inner: JSON, wide: bool) -> None:
        removal = inner | {"event_ts": workspace.next_ts()}
        self.sender.send(event_delivery(envelope(workspace, removal, wide=wide)))

    def send_event(self, inner: JSON) -> JSON | None:
        """Send an event if the app is subscribed to it. Return its delivery."""
        if inner["type"] not in self.subscriptions:
            return None
        delivery = event_delivery(envelope(self.workspace, inner))
        self.sender.send(delivery)
        return delivery_json(delivery)

    def _show(self, change: Change) -> None:
        match change:
            case StatusSet():
                self.feed.publish("statuses", {"statuses": self.workspace.statuses()})
            case Joined(channel, user):
                self.feed.publish("joined", {"channel": channel.id, "user": user})
            case Deleted(message, None):
                self.feed.publish("deleted", {"channel": message.channel, "ts": message.ts})
                self._show_parent(message)
            case Deleted(_, tombstone) if tombstone is not None:
                self.feed.publish("message", self.message(tombstone))
            case _:
                self.feed.publish("message", self.message(change.message))
                self._show_parent(change.message)

    def _show_parent(self, message: Message) -> None:
        parent = self.workspace.message(message.channel, message.thread_ts or "")
        if message.is_reply and parent is not None:
            self.feed.publish("message", self.message(parent))

    def _views_changed(self, user: str) -> None:
        self.feed.publish("views", self.views_json(user))

    def _sessions_changed(self) -> None:
        self.feed.publish("sessions", {"sessions": self.sessions.json()})

    def _faults_changed(self) -> None:
        self.feed.publish("faults", {"faults": self.faults_json()})

    def _workspaces_changed(self) -> None:
        self.feed.publish("workspaces", {"workspaces": self.workspaces_json()})

    def _sockets_changed(self) -> None:
        self.feed.publish("sockets", {"sockets": self.sockets.json()})

    def workspaces_json(self) -> list[JSON]:
        """Return the workspaces, who writes in each, and what was written last in those beside the demo workspace."""
        return [
            {
                "id": workspace.team_id,
                "name": workspace.name,
                "enterprise_id": workspace.enterprise_id,
                "installed": workspace is self.workspace or self.installs.installed(workspace) is not None,
                **({} if workspace is self.workspace else talk_json(workspace)),
            }
            for workspace in self.installs.workspaces.values()
        ]

    def views_json(self, user: str) -> JSON:
        """Return what a user has open of the app."""
        views = self.interactions.views
        home = views.home(user)
        return {
            "user": user,
            "modals": [view.content for view in views.stack(user)],
            "home": home.content if home else None,
        }

    def faults_json(self) -> list[JSON]:
        """Return the faults that are on."""
        return [fault.model_dump(mode="json") for fault in self.faults.active]
