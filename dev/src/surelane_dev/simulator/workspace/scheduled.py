"""Keep the messages that an app has scheduled."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from surelane_dev.simulator.workspace.model import Channel
from surelane_dev.simulator.workspace.workspace import Workspace


@dataclass(frozen=True, slots=True)
class Later:
    """A message that waits for its time."""

    id: str
    workspace: Workspace
    channel: Channel
    post_at: int
    created: int
    text: str
    post: Callable[[], object]


class Scheduled:
    """The messages that wait for their time, by id. Each is posted when the workspace's clock has reached it."""

    def __init__(self) -> None:
        self.messages: dict[str, Later] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, later: Later) -> None:
        self.messages[later.id] = later
        self.post_due()

    def post_due(self) -> None:
        """Post what is due now. Look again when the next one is due."""
        for later in sorted(self.messages.values(), key=lambda each: each.post_at):
            if later.post_at <= later.workspace.now():
                del self.messages[later.id]
                later.post()
        self.close()
        waits = [later.post_at - later.workspace.now() for later in self.messages.values()]
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(min(waits), 0.01), self.post_due) if waits else None

    def close(self) -> None:
        """Post nothing more by itself."""
        if self._timer is not None:
            self._timer.cancel()
