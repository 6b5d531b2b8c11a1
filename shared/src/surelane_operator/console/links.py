"""Links out of the page: to a message in Slack, and to a trace."""

from dataclasses import dataclass
from urllib.parse import quote

SLACK_MESSAGE = "https://slack.com/app_redirect?team={team}&channel={channel}&message_ts={ts}"


@dataclass(frozen=True, slots=True)
class Links:
    """The templates of links.

    Attributes:
        message: has ``{team}``, ``{channel}`` and ``{ts}``; empty: messages have no link.
        trace: has ``{trace_id}``; empty: traces have no link.
    """

    message: str = SLACK_MESSAGE
    trace: str = ""

    def to_message(self, team: str | None, channel: str | None, ts: str | None) -> str | None:
        """Return the link to a message, if its place is known."""
        if not (self.message and channel and ts):
            return None
        return _filled(self.message, {"team": team or "", "channel": channel, "ts": ts})

    def to_trace(self, trace_id: str) -> str | None:
        """Return the link to a trace, if there is a template."""
        return _filled(self.trace, {"trace_id": trace_id}) if self.trace else None


def _filled(template: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        template = template.replace("{" + name + "}", quote(value, safe=""))
    return template
