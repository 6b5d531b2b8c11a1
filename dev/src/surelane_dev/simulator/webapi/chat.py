"""Serve ``chat.*``, except streams."""

import json

from surelane_dev.simulator.webapi.call import ApiError, Arguments, MethodCall, invalid_blocks
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


def post_message(call: MethodCall) -> JSON:
    """Post as the bot, in a thread if ``thread_ts`` is given."""
    channel = call.joined_channel()
    content = content_of(call)
    thread_ts = thread_of(call, channel)
    metadata = metadata_of(call)
    broadcast = thread_ts is not None and call.flag("reply_broadcast")
    more: JSON = {"username": call.text("username") or None, "thread_ts": thread_ts, "metadata": metadata}
    more["subtype"] = "thread_broadcast" if broadcast else None
    message = call.workspace.speak(channel, **content, **more)
    shape = message_json(call.workspace, message, metadata=True)
    return {"channel": channel.id, "ts": message.ts, "message": shape}


def update(call: MethodCall) -> JSON:
    channel = call.channel()
    message = call.message(channel)
    if not message.by_app:
        raise ApiError("cant_update_message")
    if message.streaming:
        raise ApiError("streaming_state_conflict")
    content = content_of(call, MAX_UPDATE)
    metadata = metadata_of(call)
    kept = {} if metadata is None else {"metadata": metadata}
    call.workspace.edit(message, **content, **kept, streamed=False)
    shape = message_json(call.workspace, message, metadata=True)
    return {"channel": channel.id, "ts": message.ts, "text": message.text, "message": shape}


def delete(call: MethodCall) -> JSON:
    channel = call.channel()
    message = call.message(channel)
    if not message.by_app:
        raise ApiError("cant_delete_message")
    call.workspace.delete(message)
    return {"channel": channel.id, "ts": message.ts}


def post_ephemeral(call: MethodCall) -> JSON:
    channel = call.joined_channel()
    user = call.workspace.users.get(call.text("user"))
    if user is None or user.id not in channel.members:
        raise ApiError("user_not_in_channel")
    content = content_of(call)
    place: JSON = {"visible_to": user.id, "thread_ts": thread_of(call, channel)}
    return {"message_ts": call.workspace.speak(channel, **content, **place).ts}


def get_permalink(call: MethodCall) -> JSON:
    channel = call.channel()
    message = call.message(channel, "message_ts")
    return {"channel": channel.id, "permalink": call.permalink(message)}


def content_of(call: Arguments, longest: int = MAX_TEXT) -> JSON:
    """Return the text, of at most ``longest`` characters, the blocks and the attachments of a call."""
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


def blocks_of(call: Arguments, name: str = "blocks", error: str = "invalid_blocks_format") -> list[JSON]:
    """Return the blocks of a call. Add ids, as Slack does, if the app gave none. ``error``: they are no blocks."""
    try:
        blocks = identified(call.typed_objects(name, error))
    except BadBlocksError as problems:
        raise invalid_blocks(*problems.args) from None
    if sum(len(block["text"]) for block in blocks if block["type"] == "markdown") > LONGEST_MARKDOWN:
        raise ApiError("msg_blocks_too_long")
    check_tables(blocks)
    return blocks


def attachments_of(call: Arguments) -> list[JSON]:
    """Return the attachments of a call, with ids for their blocks."""
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


def thread_of(call: Arguments, channel: Channel) -> str | None:
    """Return the thread that a call posts to; ``None``: the channel.

    As Slack does, post a reply to the channel if its ``thread_ts`` is none, or its first message was deleted.
    """
    first = channel.messages.get(call.text("thread_ts"))
    return None if first is None or first.visible_to else first.ts


def metadata_of(call: Arguments) -> JSON | None:
    """Return the metadata of a call: an event type with its payload."""
    metadata = call.mapping("metadata", "invalid_metadata_format")
    if metadata is None:
        return None
    if not (isinstance(metadata.get("event_type"), str) and isinstance(metadata.get("event_payload"), dict)):
        raise ApiError("invalid_metadata_schema")
    if len(json.dumps(metadata)) > MAX_METADATA:
        raise ApiError("metadata_too_large")
    return metadata


def owned(message: Message) -> Message:
    """Return the message if it is the app's own, or raise ``message_not_owned_by_app``."""
    if not message.by_app:
        raise ApiError("message_not_owned_by_app")
    return message
