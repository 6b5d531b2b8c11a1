"""Serve ``files.*``: an app asks for a URL, uploads, and then shares the file."""

from dataclasses import replace

from surelane_dev.simulator.files import File, file_json
from surelane_dev.simulator.webapi.call import ApiError, MethodCall, invalid_arguments
from surelane_dev.simulator.webapi.chat import thread_of
from surelane_dev.simulator.workspace.model import JSON

LONGEST_NAME = 255


def get_upload_url(call: MethodCall) -> JSON:
    """Return a URL for a file's bytes, and the file's id."""
    name, length = call.text("filename"), call.text("length")
    if not name or len(name) > LONGEST_NAME:
        raise invalid_arguments("filename must have between 1 and 255 characters")
    if not length.isdecimal() or int(length) == 0:
        raise invalid_arguments("length must be the file's size in bytes")
    file = call.slack.files.begin(name, int(length))
    return {"upload_url": f"{call.slack.interactions.public_url}/upload/{file.key}", "file_id": file.id}


def info(call: MethodCall) -> JSON:
    """Return a file. Of another organization's file an event has the id alone."""
    file = call.slack.files.find(call.text("file"))
    if file is None or file.content is None or file.access not in ("visible", "check_file_info"):
        raise ApiError("file_not_found")
    shape = file_json(file, call.slack.interactions.public_url)
    return {"file": shape, "comments": [], "response_metadata": {"next_cursor": ""}}


def complete_upload(call: MethodCall) -> JSON:
    """Share uploaded files in a channel or thread. Without a channel they stay private."""
    files = [_uploaded(each, call) for each in call.objects("files", "invalid_arguments")]
    if not files:
        raise invalid_arguments("missing required field: files")
    shapes = [file_json(file, call.slack.interactions.public_url) for file in files]
    where = call.text("channel_id") or call.text("channels").partition(",")[0]
    if where:
        channel = replace(call, arguments={"channel": where}).joined_channel()
        text, thread_ts = call.text("initial_comment"), thread_of(call, channel)
        call.workspace.speak(channel, text, files=shapes, thread_ts=thread_ts)
    return {"files": shapes}


def _uploaded(named: JSON, call: MethodCall) -> File:
    file = call.slack.files.find(str(named.get("id")))
    if file is None or file.content is None:
        raise ApiError("file_not_found")
    if isinstance(named.get("title"), str):
        file.title = named["title"]
    return file
