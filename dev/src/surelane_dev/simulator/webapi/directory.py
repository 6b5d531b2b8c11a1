"""Serve what tells who is where: ``team.info``, members, profiles, and user groups."""

from surelane_dev.simulator.webapi.call import ApiError, Method, MethodCall, SlackState, channel_of
from surelane_dev.simulator.webapi.conversations import DEFAULT_LIMIT, channels_of, page_of
from surelane_dev.simulator.workspace.model import JSON, Group, User
from surelane_dev.simulator.workspace.shapes import channel_json, user_json


def members(call: MethodCall, slack: SlackState) -> JSON:
    """Return the ids of a channel's members."""
    found = sorted(channel_of(call, slack).members)
    page, cursor = page_of(found, call, default=DEFAULT_LIMIT, key="user")
    return {"members": page, "response_metadata": {"next_cursor": cursor}}


def conversations(call: MethodCall, slack: SlackState) -> JSON:
    """Return the channels in which a user is, by default the token's, of the given ``types``."""
    user = _user(call, slack)
    wanted = [each for each in channels_of(call, slack) if user.id in each.members]
    page, cursor = page_of(wanted, call, default=DEFAULT_LIMIT, key="channel")
    shown = [channel_json(slack.workspace, channel) for channel in page]
    for each in shown:
        each.pop("num_members", None)
        each.pop("is_member", None)
    return {"channels": shown, "response_metadata": {"next_cursor": cursor}}


def team_info(call: MethodCall, slack: SlackState) -> JSON:
    """Return the workspace of the token, or one with which it shares a channel."""
    here = slack.workspace
    team = {here.team_id: here, **here.partners}.get(call.text("team") or here.team_id)
    if team is None:
        raise ApiError("team_not_found")
    domain = team.name.lower().replace(" ", "-")
    shape = {"id": team.team_id, "name": team.name, "domain": domain, "url": f"https://{domain}.slack.com/"}
    organization = {"enterprise_id": team.enterprise_id} if team.enterprise_id else {}
    return {"team": {**shape, "email_domain": "", "icon": {"image_default": True}, **organization}}


def profile(call: MethodCall, slack: SlackState) -> JSON:
    """Return a user's profile, by default the token's."""
    home, user = slack.workspace.member(_user(call, slack).id) or (slack.workspace, slack.workspace.bot)
    return {"profile": {"title": "", "phone": "", "fields": {}, **user_json(home, user)["profile"]}}


def groups(call: MethodCall, slack: SlackState) -> JSON:
    """Return the user groups."""
    listed = call.flag("include_users")
    return {"usergroups": [_group(slack, each, users=listed) for each in slack.workspace.groups.values()]}


def users_of_group(call: MethodCall, slack: SlackState) -> JSON:
    """Return the ids of a user group's members."""
    group = slack.workspace.groups.get(call.text("usergroup"))
    if group is None:
        raise ApiError("no_such_subteam")
    return {"users": list(group.users)}


def _user(call: MethodCall, slack: SlackState) -> User:
    grant = slack.installs.grant_of(call.token)
    own = slack.workspace.bot.id if grant is None else grant.user_id
    found = slack.workspace.member(call.text("user") or own)
    if found is None:
        raise ApiError("user_not_found")
    return found[1]


def _group(slack: SlackState, group: Group, *, users: bool) -> JSON:
    shape = {
        "id": group.id,
        "team_id": slack.workspace.team_id,
        "is_usergroup": True,
        "is_external": False,
        "name": group.name,
        "handle": group.handle,
        "description": "",
        "date_delete": 0,
        "user_count": len(group.users),
    }
    return shape | ({"users": list(group.users)} if users else {})


METHODS = {
    "conversations.members": Method(members, ("channel",), "channels:read", reads_json=False),
    "users.conversations": Method(conversations, (), "channels:read", reads_json=False),
    "team.info": Method(team_info, (), "team:read", reads_json=False),
    "users.profile.get": Method(profile, (), "users.profile:read", reads_json=False),
    "usergroups.list": Method(groups, (), "usergroups:read", reads_json=False),
    "usergroups.users.list": Method(users_of_group, ("usergroup",), "usergroups:read", reads_json=False),
}
