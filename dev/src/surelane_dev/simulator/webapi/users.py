"""Serve ``users.*``, ``auth.test`` and ``api.test``."""

import time

from surelane_dev.simulator.webapi.call import ApiError, Method, MethodCall, SlackState
from surelane_dev.simulator.webapi.conversations import page_of
from surelane_dev.simulator.workspace.model import JSON
from surelane_dev.simulator.workspace.shapes import user_json


def auth_test(call: MethodCall, slack: SlackState) -> JSON:
    """Return the token's user and workspace."""
    workspace, grant = slack.workspace, slack.installs.grant_of(call.token)
    user = workspace.bot if grant is None else workspace.users[grant.user_id]
    return {
        "url": f"{slack.interactions.public_url}/",
        "team": workspace.name,
        "user": user.name,
        "team_id": workspace.team_id,
        "user_id": user.id,
        **({"bot_id": workspace.bot_id} if user.is_bot else {}),
        **({"enterprise_id": workspace.enterprise_id} if workspace.enterprise_id else {}),
        "is_enterprise_install": grant is not None and grant.wide,
    }


def api_test(call: MethodCall, _: SlackState) -> JSON:
    """Answer with the call's arguments, or with the error that it names."""
    if error := call.text("error"):
        raise ApiError(error, args=dict(call.arguments))
    return {"args": dict(call.arguments)}


def info(call: MethodCall, slack: SlackState) -> JSON:
    """Return a user."""
    found = slack.workspace.member(call.text("user"))
    if found is None:
        raise ApiError("user_not_found")
    return {"user": user_json(*found)}


def lookup_by_email(call: MethodCall, slack: SlackState) -> JSON:
    """Return the person with an e-mail address."""
    address = call.text("email").lower()
    for user in slack.workspace.people():
        shape = user_json(slack.workspace, user)
        if shape["profile"]["email"] == address:
            return {"user": shape}
    raise ApiError("users_not_found")


def bot_info(call: MethodCall, slack: SlackState) -> JSON:
    """Return the app's bot, or that of another app that has written here."""
    bot_id = call.text("bot") or slack.workspace.bot_id
    found = {"id": bot_id, "deleted": False, "updated": 1700000000, "icons": {}}
    if bot_id == slack.workspace.bot_id:
        bot = slack.workspace.bot
        return {"bot": found | {"name": bot.real_name, "app_id": slack.workspace.app_id, "user_id": bot.id}}
    for channel in slack.workspace.channels.values():
        for message in channel.messages.values():
            if message.bot_id == bot_id:
                profile = message.sender.get("bot_profile", {"name": message.username})
                return {"bot": found | {"name": profile["name"]}}
    raise ApiError("bot_not_found")


def list_users(call: MethodCall, slack: SlackState) -> JSON:
    """Return all users."""
    page, cursor = page_of(list(slack.workspace.users.values()), call, default=1000, key="user")
    return {
        "members": [user_json(slack.workspace, user) for user in page],
        "cache_ts": int(time.time()),
        "response_metadata": {"next_cursor": cursor},
    }


METHODS = {
    "auth.test": Method(auth_test, takes_user_token=True),
    "api.test": Method(api_test, needs_token=False),
    "users.info": Method(info, ("user",), "users:read", reads_json=False),
    "users.lookupByEmail": Method(lookup_by_email, ("email",), "users:read.email", reads_json=False),
    "bots.info": Method(bot_info, (), "users:read", reads_json=False),
    "users.list": Method(list_users, (), "users:read", reads_json=False),
}
