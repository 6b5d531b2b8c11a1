"""Serve ``apps.*``, ``oauth.v2.access``, ``openid.connect.*`` and ``auth.revoke``."""

from surelane_dev.simulator.installs import Grant
from surelane_dev.simulator.webapi.call import ApiError, MethodCall
from surelane_dev.simulator.workspace.model import JSON

PATH = "/link"
"""Where the WebSocket of Socket Mode is."""


def connections_open(call: MethodCall) -> JSON:
    """Return an address that opens one connection of Socket Mode."""
    at = call.slack.interactions.public_url.replace("http", "ws", 1)
    return {"url": f"{at}{PATH}?ticket={call.slack.sockets.ticket()}&app_id={call.workspace.app_id}"}


def access(call: MethodCall) -> JSON:
    """Exchange a code or a refresh token for tokens."""
    call.slack.installs.check_client(call.text("client_id"), call.text("client_secret"))
    if call.text("grant_type") == "refresh_token":
        return call.slack.installs.refresh(call.text("refresh_token"))
    return call.slack.installs.exchange(call.text("code"), call.text("redirect_uri"))


def sign_in(call: MethodCall) -> JSON:
    """Exchange the code of a person who signed in, for a token that tells who it is."""
    person = access(call)["authed_user"]
    return {"access_token": person["access_token"], "token_type": "Bearer"}


def user_info(call: MethodCall) -> JSON:
    """Say who signed in."""
    grant = _grant(call)
    about = {"user_id": grant.user_id, "team_id": grant.workspace.team_id}
    return {"sub": grant.user_id, **{f"https://slack.com/{name}": value for name, value in about.items()}}


def revoke(call: MethodCall) -> JSON:
    if not call.flag("test"):
        call.slack.installs.revoke(_grant(call))
    return {"revoked": not call.flag("test")}


def uninstall(call: MethodCall) -> JSON:
    grant = _grant(call)
    call.slack.installs.check_client(call.text("client_id"), call.text("client_secret"))
    call.slack.installs.uninstall(grant.workspace, wide=grant.wide)
    return {}


def _grant(call: MethodCall) -> Grant:
    grant = call.slack.installs.grant_of(call.token)
    if grant is None:
        raise ApiError("invalid_auth")
    return grant
