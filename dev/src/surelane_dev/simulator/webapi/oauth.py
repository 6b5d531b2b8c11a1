"""Serve ``oauth.v2.access``, ``auth.revoke`` and ``apps.uninstall``."""

from surelane_dev.simulator.installs import Grant, RefusedGrantError
from surelane_dev.simulator.webapi.call import ApiError, Method, MethodCall, SlackState
from surelane_dev.simulator.workspace.model import JSON


def access(call: MethodCall, slack: SlackState) -> JSON:
    """Exchange a code or a refresh token for tokens."""
    try:
        slack.installs.check_client(call.text("client_id"), call.text("client_secret"))
        if call.text("grant_type") == "refresh_token":
            return slack.installs.refresh(call.text("refresh_token"))
        return slack.installs.exchange(call.text("code"), call.text("redirect_uri"))
    except RefusedGrantError as error:
        raise ApiError(str(error)) from None


def revoke(call: MethodCall, slack: SlackState) -> JSON:
    """Revoke the token of the call."""
    if not call.flag("test"):
        slack.installs.revoke(_grant(call, slack))
    return {"revoked": not call.flag("test")}


def uninstall(call: MethodCall, slack: SlackState) -> JSON:
    """Remove the installation of the call's token."""
    grant = _grant(call, slack)
    try:
        slack.installs.check_client(call.text("client_id"), call.text("client_secret"))
    except RefusedGrantError as error:
        raise ApiError(str(error)) from None
    slack.installs.uninstall(grant.workspace, wide=grant.wide)
    return {}


def _grant(call: MethodCall, slack: SlackState) -> Grant:
    grant = slack.installs.grant_of(call.token)
    if grant is None:
        raise ApiError("invalid_auth")
    return grant


METHODS = {
    "oauth.v2.access": Method(access, needs_token=False, reads_json=False),
    "auth.revoke": Method(revoke, reads_json=False, takes_user_token=True),
    "apps.uninstall": Method(
        uninstall, ("client_id", "client_secret"), reads_json=False, takes_user_token=True
    ),
}
