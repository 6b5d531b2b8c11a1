"""Serve ``chat.*``, except streams."""

import json

from surelane_dev.simulator.webapi.call import (
    ApiError,
    Method,
    MethodCall,
    SlackState,
    channel_of,
    invalid_blocks,
    joined_channel,
    message_of,
    permalink,
)
from surelane_dev.simulator.workspace.block_kit import LONGEST_MARKDOWN
from surelane_dev.simulator.workspace.blocks import identified
from surelane_dev.simulator.workspace.data_blocks import BadBlocksError, tables
from surelane_dev.simulator.workspace.model import JSON, Channel, Message
from surelane_dev.simulator.workspace.shapes import message_json

MAX_TEXT = 40_000
MAX_UPDATE = 4_000
"""Characters of the text that replaces another one."""
MAX_MARKDOWN = 12_000
MAX_METADATA = 16_000
MOST_ATTACHMENTS = 100


def post_message(call: MethodCall, slack: SlackState) -> JSON:
    """Post as the bot, in a thread if ``thread_ts`` is given."""
    channel = joined_channel(call, slack)
    content = content_of(call)
    thread_ts = thread_of(call, channel)
    metadata = metadata_of(call)
    broadcast = thread_ts is not None and call.flag("reply_broadcast")
    message = slack.workspace.post(
        channel,
        slack.workspace.bot.id,
        **content,
        by_app=True,
        thread_ts=thread_ts,
        metadata=metadata,
        username=call.text("username") or None,
        subtype="thread_broadcast" if broadcast else None,
    )
    shape = message_json(slack.workspace, message, metadata=True)
    return {"channel": channel.id, "ts": message.ts, "message": shape}


def update(call: MethodCall, slack: SlackState) -> JSON:
    """Replace a message of the bot's own."""
    channel = channel_of(call, slack)
    message = message_of(call, channel)
    if not message.by_app:
        raise ApiError("cant_update_message")
    if message.streaming:
        raise ApiError("streaming_state_conflict")
    content = content_of(call, MAX_UPDATE)
    metadata = metadata_of(call)
    kept = {} if metadata is None else {"metadata": metadata}
    slack.workspace.edit(message, **content, **kept, streamed=False)
    shape = message_json(slack.workspace, message, metadata=True)
    return {"channel": channel.id, "ts": message.ts, "text": message.text, "message": shape}


def delete(call: MethodCall, slack: SlackState) -> JSON:
    """Delete a message of the bot's own."""
    channel = channel_of(call, slack)
    message = message_of(call, channel)
    if not message.by_app:
        raise ApiError("cant_delete_message")
    slack.workspace.delete(message)
    return {"channel": channel.id, "ts": message.ts}


def post_ephemeral(call: MethodCall, slack: SlackState) -> JSON:
    """Post a message that only one user sees."""
    channel = joined_channel(call, slack)
    user = slack.workspace.users.get(call.text("user"))
    if user is None or user.id not in channel.members:
        raise ApiError("user_not_in_channel")
    content = content_of(call)
    message = slack.workspace.post(
        channel,
        slack.workspace.bot.id,
        **content,
        by_app=True,
        visible_to=user.id,
        thread_ts=thread_of(call, channel),
    )
    return {"message_ts": message.ts}


def get_permalink(call: MethodCall, slack: SlackState) -> JSON:
    """Return the address of a message."""
    channel = channel_of(call, slack)
    message = message_of(call, channel, "message_ts")
    return {"channel": channel.id, "permalink": permalink(slack, message)}


def content_of(call: MethodCall, longest: int = MAX_TEXT) -> JSON:
    """Return the text, blocks and attachments of a call.

    Args:
        call: the call.
        longest: characters that its text may have.

    Raises:
        ApiError: the content is missing, too large or malformed.
    """
    blocks = blocks_of(call)
    attachments = attachments_of(call)
    text, markdown = call.text("text"), call.text("markdown_text")
    if markdown and (text or blocks):
        raise ApiError("markdown_text_conflict")
    if not (text or markdown or blocks or attachments):
        raise ApiError("no_text")
    if len(text) > longest or len(markdown) > MAX_MARKDOWN:
        raise ApiError("msg_too_long")
    if markdown:
        blocks = [{"type": "markdown", "text": markdown}]
    return {"text": text or markdown, "blocks": blocks, "attachments": attachments}


def blocks_of(call: MethodCall, name: str = "blocks", error: str = "invalid_blocks_format") -> list[JSON]:
    """Return the blocks of a call. Add ids, as Slack does, if the app gave none.

    Raises:
        ApiError: ``error``, if they are not blocks; ``invalid_blocks``, if their content is invalid;
            ``msg_blocks_too_long``, if they have too much markdown.
    """
    try:
        blocks = identified(call.typed_objects(name, error))
    except BadBlocksError as problems:
        raise invalid_blocks(*problems.args) from None
    if sum(len(block["text"]) for block in blocks if block["type"] == "markdown") > LONGEST_MARKDOWN:
        raise ApiError("msg_blocks_too_long")
    check_tables(blocks)
    return blocks


def attachments_of(call: MethodCall) -> list[JSON]:
    """Return the attachments of a call, with ids for their blocks.

    Raises:
        ApiError: ``too_many_attachments``, or ``invalid_attachments``, with one line for each mistake in a block.
    """
    attachments = call.objects("attachments", "invalid_attachments")
    if len(attachments) > MOST_ATTACHMENTS:
        raise ApiError("too_many_attachments")
    return [_identified(each, f"/attachments/{n}/blocks") for n, each in enumerate(attachments)]


def _identified(attachment: JSON, at: str) -> JSON:
    blocks, problems = attachment.get("blocks"), (f"must provide an array [json-pointer:{at}]",)
    if not blocks:
        return attachment
    if isinstance(blocks, list):
        try:
            return attachment | {"blocks": identified(blocks, at=at)}
        except BadBlocksError as error:
            problems = error.args
    lines = [f"[ERROR] {problem}" for problem in problems]
    raise ApiError("invalid_attachments", response_metadata={"messages": lines})


def check_tables(blocks: list[JSON]) -> None:
    """Raise ``invalid_attachments`` if a message would have several tables."""
    if tables(blocks) > 1:
        raise ApiError("invalid_attachments", response_metadata={"messages": ["only_one_table_allowed"]})


def thread_of(call: MethodCall, channel: Channel) -> str | None:
    """Return the thread that a call posts to; ``None``: the channel.

    As Slack does, post a reply to the channel if its ``thread_ts`` is none, or its first message was deleted.
    """
    first = channel.messages.get(call.text("thread_ts"))
    return None if first is None or first.visible_to else first.ts


def metadata_of(call: MethodCall) -> JSON | None:
    """Return the metadata of a call.

    Raises:
        ApiError: it has no event type with a payload, or is too large.
    """
    metadata = call.mapping("metadata", "invalid_metadata_format")
    if metadata is None:
        return None
    if not (isinstance(metadata.get("event_type"), str) and isinstance(metadata.get("event_payload"), dict)):
        raise ApiError("invalid_metadata_schema")
    if len(json.dumps(metadata)) > MAX_METADATA:
        raise ApiError("metadata_too_large")
    return metadata


def owned(message: Message) -> Message:
    """Return the message if it is the app's own.

    Raises:
        ApiError: ``message_not_owned_by_app``.
    """
    if not message.by_app:
        raise ApiError("message_not_owned_by_app")
    return message


METHODS = {
    "chat.postMessage": Method(post_message, ("channel",), "chat:write"),
    "chat.update": Method(update, ("channel", "ts"), "chat:write"),
    "chat.delete": Method(delete, ("channel", "ts"), "chat:write"),
    "chat.getPermalink": Method(get_permalink, ("channel", "message_ts"), reads_json=False),
    "chat.postEphemeral": Method(post_ephemeral, ("channel", "user"), "chat:write"),
}
