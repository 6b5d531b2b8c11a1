"""Serve who is where: ``users.*``, ``team.info``, members, user groups; and ``auth.test`` and ``api.test``."""

import time

from surelane_dev.simulator.webapi.call import ApiError, MethodCall
from surelane_dev.simulator.webapi.conversations import DEFAULT_LIMIT, channels_of, page_of
from surelane_dev.simulator.workspace.model import JSON, Group, User
from surelane_dev.simulator.workspace.shapes import channel_json, user_json


def auth_test(call: MethodCall) -> JSON:
    """Return the token's user and workspace."""
    workspace, grant = call.workspace, call.slack.installs.grant_of(call.token)
    user = workspace.bot if grant is None else workspace.users[grant.user_id]
    answer: JSON = {
        "url": f"{call.slack.interactions.public_url}/",
        "team": workspace.name,
        "user": user.name,
    }
    answer |= {"team_id": workspace.team_id, "user_id": user.id}
    answer |= {"bot_id": workspace.bot_id} if user.is_bot else {}
    answer |= {"enterprise_id": workspace.enterprise_id} if workspace.enterprise_id else {}
    return answer | {"is_enterprise_install": grant is not None and grant.wide}


def api_test(call: MethodCall) -> JSON:
    """Answer with the call's arguments, or with the error that it names."""
    if error := call.text("error"):
        raise ApiError(error, args=dict(call.arguments))
    return {"args": dict(call.arguments)}


def info(call: MethodCall) -> JSON:
    found = call.workspace.member(call.text("user"))
    if found is None:
        raise ApiError("user_not_found")
    return {"user": user_json(*found)}


def lookup_by_email(call: MethodCall) -> JSON:
    address = call.text("email").lower()
    for user in call.workspace.people():
        shape = user_json(call.workspace, user)
        if shape["profile"]["email"] == address:
            return {"user": shape}
    raise ApiError("users_not_found")


def bot_info(call: MethodCall) -> JSON:
    """Return the app's bot, or that of another app that has written here."""
    bot_id = call.text("bot") or call.workspace.bot_id
    found = {"id": bot_id, "deleted": False, "updated": 1700000000, "icons": {}}
    if bot_id == call.workspace.bot_id:
        bot = call.workspace.bot
        return {"bot": found | {"name": bot.real_name, "app_id": call.workspace.app_id, "user_id": bot.id}}
    for channel in call.workspace.channels.values():
        for message in channel.messages.values():
            if message.bot_id == bot_id:
                profile = message.sender.get("bot_profile", {"name": message.username})
                return {"bot": found | {"name": profile["name"]}}
    raise ApiError("bot_not_found")


def list_users(call: MethodCall) -> JSON:
    page, cursor = page_of(list(call.workspace.users.values()), call, default=1000, key="user")
    shown = [user_json(call.workspace, user) for user in page]
    return {"members": shown, "cache_ts": int(time.time()), "response_metadata": {"next_cursor": cursor}}


def members(call: MethodCall) -> JSON:
    found = sorted(call.channel().members)
    page, cursor = page_of(found, call, default=DEFAULT_LIMIT, key="user")
    return {"members": page, "response_metadata": {"next_cursor": cursor}}


def conversations(call: MethodCall) -> JSON:
    """Return the channels in which a user is, by default the token's, of the given ``types``."""
    user = _user(call)
    wanted = [each for each in channels_of(call) if user.id in each.members]
    page, cursor = page_of(wanted, call, default=DEFAULT_LIMIT, key="channel")
    shown = [channel_json(call.workspace, channel) for channel in page]
    for each in shown:
        each.pop("num_members", None)
        each.pop("is_member", None)
    return {"channels": shown, "response_metadata": {"next_cursor": cursor}}


def team_info(call: MethodCall) -> JSON:
    """Return the workspace of the token, or one with which it shares a channel."""
    here = call.workspace
    team = {here.team_id: here, **here.partners}.get(call.text("team") or here.team_id)
    if team is None:
        raise ApiError("team_not_found")
    domain = team.name.lower().replace(" ", "-")
    shape = {"id": team.team_id, "name": team.name, "domain": domain, "url": f"https://{domain}.slack.com/"}
    organization = {"enterprise_id": team.enterprise_id} if team.enterprise_id else {}
    return {"team": {**shape, "email_domain": "", "icon": {"image_default": True}, **organization}}


def profile(call: MethodCall) -> JSON:
    """Return a user's profile, by default the token's."""
    home, user = call.workspace.member(_user(call).id) or (call.workspace, call.workspace.bot)
    return {"profile": {"title": "", "phone": "", "fields": {}, **user_json(home, user)["profile"]}}


def groups(call: MethodCall) -> JSON:
    listed = call.flag("include_users")
    return {"usergroups": [_group(call, each, users=listed) for each in call.workspace.groups.values()]}


def users_of_group(call: MethodCall) -> JSON:
    group = call.workspace.groups.get(call.text("usergroup"))
    if group is None:
        raise ApiError("no_such_subteam")
    return {"users": list(group.users)}


def _user(call: MethodCall) -> User:
    grant = call.slack.installs.grant_of(call.token)
    own = call.workspace.bot.id if grant is None else grant.user_id
    found = call.workspace.member(call.text("user") or own)
    if found is None:
        raise ApiError("user_not_found")
    return found[1]


def _group(call: MethodCall, group: Group, *, users: bool) -> JSON:
    shape: JSON = {"id": group.id, "team_id": call.workspace.team_id, "name": group.name}
    shape |= {"is_usergroup": True, "is_external": False, "description": "", "date_delete": 0}
    shape |= {"handle": group.handle, "user_count": len(group.users)}
    return shape | ({"users": list(group.users)} if users else {})
