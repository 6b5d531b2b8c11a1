"""Serve ``chat.startStream``, ``appendStream`` and ``stopStream``: messages that arrive in parts."""

from collections.abc import Sequence

from surelane_dev.simulator.sessions import STATUSES
from surelane_dev.simulator.webapi.call import ApiError, Arguments, MethodCall
from surelane_dev.simulator.webapi.chat import (
    MAX_MARKDOWN,
    blocks_of,
    check_tables,
    metadata_of,
    owned,
    thread_of,
)
from surelane_dev.simulator.workspace.data_blocks import BadBlocksError, check_task
from surelane_dev.simulator.workspace.model import JSON, Message
from surelane_dev.simulator.workspace.shapes import message_json

MAX_BYTES = 10_800
"""Of text and tasks in a whole message, as apps have measured: in UTF-8, what a task found counted twice."""
MOST_TASKS = 50
CHUNKS = {"markdown_text": "text", "task_update": "id", "plan_update": "title", "blocks": "blocks"}


def start(call: MethodCall) -> JSON:
    """Start a streamed reply. In a channel the call must name the user that it answers."""
    channel = call.joined_channel()
    thread_ts = thread_of(call, channel)
    if thread_ts is None:
        raise ApiError("invalid_thread_ts")
    if not channel.is_im:
        for name in ("recipient_team_id", "recipient_user_id"):
            if not call.text(name):
                raise ApiError(f"missing_{name}")
    if recipient := call.text("recipient_user_id"):
        known = call.workspace.member(recipient)
        if known is None or known[1].is_bot:
            raise ApiError("user_not_found")
    if call.text("task_display_mode") not in ("", "timeline", "plan"):
        raise ApiError("invalid_arguments")
    chunks = _chunks(call)
    _check_size("", [], chunks)
    message = call.workspace.speak(channel, thread_ts=thread_ts, streaming=True, streamed=True)
    _append(call, message, chunks)
    return {"channel": channel.id, "ts": message.ts}


def append(call: MethodCall) -> JSON:
    message = _running(call)
    chunks = _chunks(call, message.text, message.blocks)
    if not chunks:
        raise ApiError("no_text")
    _check_size(message.text, message.tasks, chunks)
    _append(call, message, chunks)
    return {"channel": message.channel, "ts": message.ts}


def stop(call: MethodCall) -> JSON:
    """End a stream. Only this call takes metadata and closing blocks."""
    message = _running(call)
    below = blocks_of(call)
    chunks, metadata = _chunks(call, message.text, [*message.blocks, *below]), metadata_of(call)
    _check_size(message.text, message.tasks, chunks)
    message.metadata = metadata or message.metadata
    _append(call, message, chunks)
    if message.blocks:
        _show_text(message)
    message.blocks += below
    call.workspace.stream(message, "", ended=True)
    _end_session(call, message)
    shape = message_json(call.workspace, message, metadata=True)
    return {"channel": message.channel, "ts": message.ts, "message": shape}


def _end_session(call: MethodCall, message: Message) -> None:
    """Give the thread's session, if there is one, the call's ``session_status``, by default ``active``."""
    thread_ts = message.thread_ts or message.ts
    wanted = call.text("session_status") or "active"
    status = next((status for status in STATUSES if status == wanted), None)
    if status and call.slack.sessions.find(message.channel, thread_ts):
        call.slack.sessions.set_status(message.channel, thread_ts, status)


def _running(call: MethodCall) -> Message:
    message = owned(call.message(call.joined_channel()))
    if not message.streaming:
        raise ApiError("message_not_in_streaming_state")
    return message


def _chunks(call: MethodCall, said: str = "", shown: Sequence[JSON] = ()) -> list[JSON]:
    """Return the chunks of a call. Slack bounds the whole text of a message, with what it ``said`` before, as a call's.

    ``shown``: the message's other blocks. It may have one table.
    """
    chunks = call.typed_objects("chunks", "invalid_chunks")
    if not all(chunk["type"] in CHUNKS and CHUNKS[chunk["type"]] in chunk for chunk in chunks):
        raise ApiError("invalid_chunks")
    for chunk in chunks:
        if chunk["type"] == "blocks":
            chunk["blocks"] = blocks_of(Arguments(chunk), error="invalid_chunks")
            shown = [*shown, *chunk["blocks"]]
        elif chunk["type"] != "markdown_text":
            _check_task(chunk)
    check_tables(list(shown))
    if text := call.text("markdown_text"):
        chunks = [{"type": "markdown_text", "text": text}, *chunks]
    texts = [said, *(str(chunk["text"]) for chunk in chunks if chunk["type"] == "markdown_text")]
    if sum(map(len, texts)) > MAX_MARKDOWN:
        raise ApiError("msg_too_long")
    return chunks


def _check_size(said: str, shown: Sequence[JSON], chunks: list[JSON]) -> None:
    updates = (each for each in chunks if each["type"] == "task_update")
    tasks = {task["id"]: task for task in (*shown, *updates)}
    text = said + "".join(str(each["text"]) for each in chunks if each["type"] == "markdown_text")
    parts = [text, *(str(task.get("title", "")) for task in tasks.values())]
    parts += [str(task.get(name) or "") * 2 for task in tasks.values() for name in ("details", "output")]
    if len(tasks) > MOST_TASKS or (text and len("".join(parts).encode(errors="replace")) > MAX_BYTES):
        raise ApiError("msg_too_long")


def _check_task(chunk: JSON) -> None:
    try:
        check_task({"title": chunk.get("title") or chunk["id"], **chunk})
    except (BadBlocksError, KeyError, TypeError):
        raise ApiError("invalid_chunks") from None


def _append(call: MethodCall, message: Message, chunks: list[JSON]) -> None:
    for chunk in chunks:
        match chunk["type"]:
            case "markdown_text":
                message.text += str(chunk["text"])
            case "task_update":
                _note_task(message, chunk)
            case "plan_update":
                message.plan = str(chunk["title"])
            case "blocks":
                _show_text(message)
                message.blocks += chunk["blocks"]
    if chunks:
        call.workspace.stream(message, "")


def _said(message: Message) -> int:
    """Return how many characters of the text its blocks show."""
    return sum(len(block["text"]) for block in message.blocks if block["type"] == "markdown")


def _show_text(message: Message) -> None:
    """Show as a block what was said since the last blocks, which come below it."""
    if text := message.text[_said(message) :]:
        message.blocks.append({"type": "markdown", "text": text})


def _note_task(message: Message, chunk: JSON) -> None:
    known = next((task for task in message.tasks if task["id"] == chunk["id"]), None)
    if known is None:
        message.tasks.append(dict(chunk))
    else:
        known.update(chunk)
