"""Write the objects of a workspace as JSON, as Slack's Web API and events do."""

from surelane_dev.simulator.workspace.model import JSON, Channel, Message, User
from surelane_dev.simulator.workspace.workspace import Workspace

ITS_OWN = (
    *("subtype", "bot_id", "text", "ts", "client_msg_id", "blocks", "attachments", "files"),
    *("thread_ts", "username"),
)
"""The fields of a message that are as Slack names them."""


def message_json(workspace: Workspace, message: Message, *, metadata: bool = False) -> JSON:
    """Return a message as JSON, with its metadata only if asked for."""
    parent = workspace.message(message.channel, message.thread_ts or "")
    author = workspace.author_of(message)
    broadcast = message.subtype == "thread_broadcast" and parent
    fields: JSON = {
        "type": "message",
        **{name: getattr(message, name) for name in ITS_OWN},
        "user": message.user or None,
        "team": author.team_id,
        **dict.fromkeys(("user_team", "source_team"), message.team),
        "parent_user_id": parent.user if message.is_reply and parent else None,
        "root": message_json(workspace, parent) if broadcast and parent else None,
        "metadata": message.metadata if metadata else None,
        "streaming_state": _streaming_state(message),
        "edited": {"user": message.user, "ts": message.edited_ts} if message.edited_ts else None,
        "reactions": reactions_json(message),
        **message.sender,
        **_app_fields(author, message),
        **_thread_fields(workspace, message),
    }
    return present(fields)


def _streaming_state(message: Message) -> str | None:
    if not message.streamed:
        return None
    return "in_progress" if message.streaming else "completed"


def present(fields: JSON) -> JSON:
    """Return the fields with a value. Slack leaves the others out."""
    return {name: value for name, value in fields.items() if value is not None and value != []}


def reactions_json(message: Message) -> list[JSON]:
    return [{"name": name, "users": users, "count": len(users)} for name, users in message.reactions.items()]


def _app_fields(workspace: Workspace, message: Message) -> JSON:
    if not message.by_app:
        return {}
    bot, app = workspace.bot, {"app_id": workspace.app_id}
    profile = {"id": workspace.bot_id, "user_id": bot.id, "name": bot.real_name, "team_id": workspace.team_id}
    return {"bot_id": workspace.bot_id, **app, "bot_profile": {**profile, **app, "deleted": False}}


def _thread_fields(workspace: Workspace, message: Message) -> JSON:
    replies = [] if message.is_reply else workspace.channels[message.channel].replies(message.ts)
    if not replies:
        return {}
    users = list(dict.fromkeys(reply.user for reply in replies))
    shape = {"reply_count": len(replies), "latest_reply": replies[-1].ts, "reply_users": users}
    return shape | {"reply_users_count": len(users), "is_locked": False, "subscribed": True}


def channel_json(workspace: Workspace, channel: Channel) -> JSON:
    shared: JSON = {"id": channel.id, "created": 1700000000, "is_archived": False, "is_im": channel.is_im}
    shared |= {"is_org_shared": False, "context_team_id": workspace.team_id, "updated": 1700000000000}
    if channel.is_im:
        return shared | {"user": channel.peer, "is_user_deleted": False, "is_open": True, "priority": 0}
    note, name = {"creator": "", "last_set": 0}, channel.name
    shared |= {"name": name, "name_normalized": name, "is_channel": True, "is_general": name == "general"}
    shared |= dict.fromkeys(("is_group", "is_mpim", "is_private"), False)
    shared |= dict.fromkeys(("is_shared", "is_ext_shared"), channel.shared)
    shared |= {"is_member": workspace.bot.id in channel.members, "num_members": len(channel.members)}
    shared |= {"creator": next(iter(workspace.users)), "unlinked": 0, "previous_names": []}
    return shared | {"topic": {"value": channel.topic, **note}, "purpose": {"value": "", **note}}


def user_json(workspace: Workspace, user: User) -> JSON:
    profile: JSON = {
        **dict.fromkeys(("real_name", "real_name_normalized"), user.real_name),
        **dict.fromkeys(("display_name", "display_name_normalized"), user.name),
        "team": workspace.team_id,
        "title": user.title,
    }
    if user.is_bot:
        profile |= {"api_app_id": workspace.app_id, "bot_id": workspace.bot_id}
    else:
        profile["email"] = f"{user.name}@example.com"
    names = ("id", "name", "real_name", "deleted", "is_admin", "is_bot", "is_restricted", "tz", "tz_offset")
    shape: JSON = {name: getattr(user, name) for name in names} | {"team_id": workspace.team_id}
    shape |= dict.fromkeys(("is_owner", "is_app_user", "is_ultra_restricted"), False)
    if workspace.enterprise_id:
        shape["enterprise_user"] = {"enterprise_id": workspace.enterprise_id, "teams": [workspace.team_id]}
    shape |= {"tz_label": "Coordinated Universal Time" if user.tz == "Etc/UTC" else user.tz}
    return shape | {"updated": 1700000000, "profile": profile}
