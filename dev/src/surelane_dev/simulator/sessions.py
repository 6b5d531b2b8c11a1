"""Keep the agent's sessions: a lifecycle status and a title per thread."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Literal

from surelane_dev.simulator.workspace.model import JSON

SessionStatus = Literal["active", "processing", "suspended", "closed"]
STATUSES: tuple[SessionStatus, ...] = ("active", "processing", "suspended", "closed")


@dataclass(slots=True)
class AgentSession:
    """An agent's session. While it is ``processing``, a person may stop the agent."""

    channel: str
    thread_ts: str
    status: SessionStatus
    title: str = ""


class AgentSessions:
    """The sessions by channel and thread."""

    def __init__(self) -> None:
        self.changed: Callable[[], None] = lambda: None
        self._sessions: dict[tuple[str, str], AgentSession] = {}

    def find(self, channel: str, thread_ts: str) -> AgentSession | None:
        return self._sessions.get((channel, thread_ts))

    def set_status(
        self, channel: str, thread_ts: str, status: SessionStatus, title: str = ""
    ) -> AgentSession:
        """Set a session's status. Begin it, with this title, if there is none."""
        new = AgentSession(channel, thread_ts, status, title)
        session = self._sessions.setdefault((channel, thread_ts), new)
        session.status = status
        self.changed()
        return session

    def rename(self, channel: str, thread_ts: str, title: str) -> AgentSession:
        """Give a thread's session a title. Begin it if there is none."""
        session = self._sessions.setdefault((channel, thread_ts), AgentSession(channel, thread_ts, "active"))
        session.title = title
        self.changed()
        return session

    def all(self) -> list[AgentSession]:
        return list(self._sessions.values())

    def restore(self, sessions: Iterable[AgentSession]) -> None:
        self._sessions |= {(session.channel, session.thread_ts): session for session in sessions}

    def json(self) -> list[JSON]:
        return [asdict(session) for session in self._sessions.values()]
