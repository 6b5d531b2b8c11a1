"""List the methods of the Web API. The rate limits are those of Slack's pages on each method."""

from collections.abc import Mapping
from functools import partial

from surelane_dev.simulator.webapi import (
    apps,
    assistant,
    chat,
    conversations,
    files,
    functions,
    links,
    pins,
    reactions,
    scheduled,
    streams,
    users,
    views,
)
from surelane_dev.simulator.webapi.call import Method

_form = partial(Method, reads_json=False)
_FUNCTION, _VIEW = "function_execution_id", ("trigger_id", "view")

METHODS: Mapping[str, Method] = {
    "chat.postMessage": Method(chat.post_message, ("channel",), "chat:write", 300),
    "chat.update": Method(chat.update, ("channel", "ts"), "chat:write", 50),
    "chat.delete": Method(chat.delete, ("channel", "ts"), "chat:write", 50),
    "chat.getPermalink": _form(chat.get_permalink, ("channel", "message_ts"), None, 600),
    "chat.postEphemeral": Method(chat.post_ephemeral, ("channel", "user"), "chat:write", 100),
    "chat.scheduleMessage": Method(scheduled.schedule, ("channel", "post_at"), "chat:write", 50),
    "chat.deleteScheduledMessage": Method(
        scheduled.delete_scheduled, ("channel", "scheduled_message_id"), "chat:write", 50
    ),
    "chat.scheduledMessages.list": Method(scheduled.list_scheduled, per_minute=50),
    "chat.startStream": Method(streams.start, ("channel", "thread_ts"), "chat:write"),
    "chat.appendStream": Method(streams.append, ("channel", "ts"), "chat:write", 100),
    "chat.stopStream": Method(streams.stop, ("channel", "ts"), "chat:write"),
    "chat.unfurl": Method(links.unfurl, (), "links:write", 50),
    "entity.presentDetails": Method(links.present_details, ("trigger_id",)),
    "functions.completeSuccess": Method(functions.complete_success, (_FUNCTION, "outputs"), None, 50),
    "functions.completeError": Method(functions.complete_error, (_FUNCTION, "error"), None, 50),
    "reactions.add": Method(reactions.add, ("channel", "timestamp", "name"), "reactions:write", 50),
    "reactions.remove": Method(reactions.remove, ("name",), "reactions:write"),
    "reactions.get": _form(reactions.get, (), "reactions:read", 50),
    "conversations.replies": _form(conversations.replies, ("channel", "ts"), "channels:history", 50),
    "conversations.history": _form(conversations.history, ("channel",), "channels:history", 50),
    "conversations.info": _form(conversations.info, ("channel",), "channels:read", 50),
    "conversations.list": _form(conversations.list_channels, (), "channels:read"),
    "conversations.members": _form(users.members, ("channel",), "channels:read", 100),
    "conversations.join": Method(conversations.join, ("channel",), "channels:join", 50),
    "conversations.open": Method(conversations.open_conversation, (), "im:write", 50),
    "conversations.mark": Method(pins.mark, ("channel", "ts"), "channels:manage", 50),
    "auth.test": Method(users.auth_test, per_minute=600, takes_user_token=True),
    "api.test": Method(users.api_test, per_minute=100, needs_token=False),
    "users.info": _form(users.info, ("user",), "users:read", 100),
    "users.lookupByEmail": _form(users.lookup_by_email, ("email",), "users:read.email", 50),
    "users.list": _form(users.list_users, (), "users:read"),
    "users.conversations": _form(users.conversations, (), "channels:read", 50),
    "users.profile.get": _form(users.profile, (), "users.profile:read", 100),
    "bots.info": _form(users.bot_info, (), "users:read", 50),
    "team.info": _form(users.team_info, (), "team:read", 50),
    "usergroups.list": _form(users.groups, (), "usergroups:read"),
    "usergroups.users.list": _form(users.users_of_group, ("usergroup",), "usergroups:read"),
    "assistant.search.context": Method(assistant.search, ("query",), "search:read.public", 10),
    "assistant.threads.setStatus": Method(
        assistant.set_status, ("channel_id", "thread_ts", "status"), "chat:write", None
    ),
    "assistant.threads.setTitle": Method(
        assistant.set_title, ("channel_id", "thread_ts", "title"), "chat:write", 50
    ),
    "assistant.threads.setSuggestedPrompts": Method(
        assistant.set_suggested_prompts, ("channel_id", "prompts"), "chat:write", 50
    ),
    "agents.sessions.setStatus": Method(
        assistant.set_session_status, ("channel_id", "status"), "chat:write", 50
    ),
    "agents.sessions.rename": Method(assistant.rename_session, ("channel_id", "title"), "chat:write", 50),
    "views.open": Method(views.open_view, _VIEW, None, 100),
    "views.push": Method(views.push_view, _VIEW, None, 100),
    "views.update": Method(views.update_view, ("view",), None, 100),
    "views.publish": Method(views.publish_view, ("user_id", "view"), None, 100),
    "files.info": _form(files.info, ("file",), "files:read", 100),
    "files.getUploadURLExternal": _form(files.get_upload_url, ("filename", "length"), "files:write", 100),
    "files.completeUploadExternal": Method(files.complete_upload, ("files",), "files:write", 100),
    "pins.add": Method(pins.pin, ("channel",), "pins:write"),
    "pins.remove": Method(pins.unpin, ("channel",), "pins:write"),
    "pins.list": _form(pins.list_pins, ("channel",), "pins:read"),
    "bookmarks.add": Method(pins.add_bookmark, ("channel_id", "title", "type"), "bookmarks:write"),
    "bookmarks.edit": Method(pins.edit_bookmark, ("bookmark_id", "channel_id"), "bookmarks:write"),
    "bookmarks.remove": Method(pins.remove_bookmark, ("bookmark_id", "channel_id"), "bookmarks:write"),
    "bookmarks.list": Method(pins.list_bookmarks, ("channel_id",), "bookmarks:read", 50),
    "oauth.v2.access": _form(apps.access, per_minute=100, needs_token=False),
    "openid.connect.token": _form(apps.sign_in, per_minute=100, needs_token=False),
    "openid.connect.userInfo": _form(apps.user_info, per_minute=100, takes_user_token=True),
    "auth.revoke": _form(apps.revoke, per_minute=50, takes_user_token=True),
    "apps.uninstall": _form(apps.uninstall, ("client_id", "client_secret"), None, 1, takes_user_token=True),
    "apps.connections.open": Method(apps.connections_open, takes_app_token=True),
}
