"""Say how often Slack lets an app call each method of its Web API in one workspace.

The numbers are the minimums that Slack documents. For "several hundred per minute" and "short bursts", we chose careful
numbers.
"""

from dataclasses import dataclass
from typing import Literal

MINUTE = 60.0

Apps = Literal["on", "non-marketplace"]
"""The limits of an app: the usual ones, or those of apps that are sold outside of Slack's Marketplace."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A limit on the calls in any window of ``seconds``, per workspace or per channel."""

    calls: int
    seconds: float = MINUTE
    per_channel: bool = False


TIER_1, TIER_2, TIER_3, TIER_4 = (Rule(calls) for calls in (1, 20, 50, 100))
SPECIAL = Rule(100, 10.0)
"""Hundreds per minute."""
CHANNEL = Rule(4, 4.0, per_channel=True)
"""One per second in a channel, with short bursts."""
POSTS = Rule(100, 20.0)
"""Several hundred messages per minute in a workspace."""

_METHODS = {
    TIER_1: """
        admin.apps.uninstall admin.conversations.restrictAccess.removeGroup admin.teams.create
        admin.usergroups.addChannels admin.users.unsupportedVersions.export
        apps.connections.open apps.manifest.create apps.manifest.delete apps.manifest.update apps.uninstall
        conversations.acceptSharedInvite conversations.approveSharedInvite conversations.declineSharedInvite
        conversations.listConnectInvites rtm.connect rtm.start team.externalTeams.disconnect tooling.tokens.rotate
    """,
    TIER_3: """
        admin.apps.activities.list admin.apps.config.set admin.functions.permissions.lookup
        admin.functions.permissions.set admin.roles.listAssignments admin.teams.admins.list admin.teams.list
        admin.teams.owners.list admin.teams.settings.info admin.teams.settings.setName admin.users.list
        apps.manifest.export apps.manifest.validate assistant.threads.setSuggestedPrompts assistant.threads.setTitle
        auth.revoke bookmarks.list bots.info canvases.access.delete canvases.access.set canvases.delete canvases.edit
        canvases.sections.lookup chat.delete chat.deleteScheduledMessage chat.meMessage chat.scheduleMessage
        chat.scheduledMessages.list chat.unfurl chat.update conversations.history conversations.info
        conversations.invite conversations.join conversations.kick conversations.leave conversations.mark
        conversations.open conversations.replies dnd.info files.delete files.list files.revokePublicURL
        files.sharedPublicURL functions.completeError functions.completeSuccess oauth.v2.exchange
        openid.connect.userInfo reactions.add reactions.get slackLists.access.delete slackLists.access.set
        slackLists.items.create slackLists.items.update stars.list team.billing.info team.info team.preferences.list
        team.profile.get users.getPresence users.identity users.lookupByEmail users.profile.set
    """,
    TIER_4: """
        admin.auth.policy.assignEntities admin.auth.policy.getEntities admin.auth.policy.removeEntities
        admin.users.getExpiration admin.users.session.clearSettings admin.users.session.getSettings
        admin.users.session.setSettings api.test apps.event.authorizations.list chat.appendStream chat.postEphemeral
        conversations.members dialog.open files.completeUploadExternal files.getUploadURLExternal files.info
        oauth.access oauth.token oauth.v2.access openid.connect.token slackLists.download.get users.info
        users.profile.get views.open views.publish views.push views.update
    """,
    SPECIAL: "auth.test blocks.validate chat.getPermalink",
}
_RULES: dict[str, tuple[Rule, ...]] = {
    **{method: (rule,) for rule, methods in _METHODS.items() for method in methods.split()},
    "chat.postMessage": (CHANNEL, POSTS),
    "assistant.threads.setStatus": (CHANNEL,),
}
_NON_MARKETPLACE = {"conversations.history": (TIER_1,), "conversations.replies": (TIER_1,)}


def rules_of(method: str, apps: Apps = "on") -> tuple[Rule, ...]:
    """Return the rules of a method. Methods that are not listed have Tier 2, like most of Slack's methods."""
    if apps == "non-marketplace" and method in _NON_MARKETPLACE:
        return _NON_MARKETPLACE[method]
    return _RULES.get(method, (TIER_2,))
