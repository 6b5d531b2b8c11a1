"""Convert typed text to Slack's notation."""

import re

from surelane_dev.simulator.workspace.workspace import Workspace

_NAMED = re.compile(r"(?<![\w@#&;])([@#])([a-z0-9][a-z0-9_-]*)", re.IGNORECASE)


def slack_text(workspace: Workspace, typed: str) -> str:
    """Escape ``&``, ``<`` and ``>``. Turn ``@name`` and ``#name`` of known users, groups and channels into mentions."""

    def mention(match: re.Match[str]) -> str:
        sign, name = match.groups()
        if sign == "@":
            user = workspace.user(name)
            group = next((each for each in workspace.groups.values() if each.handle == name), None)
            return f"<@{user.id}>" if user else f"<!subteam^{group.id}|@{name}>" if group else match[0]
        channel = workspace.channel(name.lower())
        return f"<#{channel.id}|{channel.name}>" if channel else match[0]

    escaped = typed.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _NAMED.sub(mention, escaped)
