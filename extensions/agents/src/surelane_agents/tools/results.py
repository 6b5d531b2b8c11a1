"""What a model gets of a tool's result, and what is stored of it."""

import base64
import json
from collections.abc import Mapping
from typing import Any

from pydantic_ai import BinaryContent
from pydantic_core import to_jsonable_python

LONGEST_RESULT = 50_000
"""Characters of a tool's result that the model gets. The rest is cut."""
LARGEST_FILES = 2**20
"""Bytes of the images and PDF of one result. They are stored with the turn, as the rest of the result is."""
SHOWN = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf"})
MARK = "surelane_bytes"


def result_shortened(result: object) -> Any:
    """Return a tool's result as JSON of a bounded size, to be stored. See :func:`with_files`."""
    files: list[BinaryContent] = []
    plain = to_jsonable_python(_without_bytes(result, files), fallback=str)
    text = json.dumps(plain, ensure_ascii=False)
    if len(text) > LONGEST_RESULT:
        plain = f"{text[:LONGEST_RESULT]}… (cut; the whole result has {len(text):,} characters)"
    if not files:
        return plain
    return {
        MARK: [[each.media_type, base64.b64encode(each.data).decode()] for each in files],
        "result": plain,
    }


def with_files(stored: object) -> Any:
    """Return a stored result with its files as a model gets them: after the rest."""
    if not isinstance(stored, Mapping) or MARK not in stored:
        return stored
    files = [BinaryContent(base64.b64decode(data), media_type=sort) for sort, data in stored[MARK]]
    return [stored["result"], *files]


def _without_bytes(result: object, files: list[BinaryContent]) -> object:
    """Return a result without its files, and collect the files that a model can see."""
    if isinstance(result, BinaryContent):
        size = len(result.data)
        if result.media_type not in SHOWN:
            return f"({result.media_type} of {size:,} bytes)"
        if size + sum(len(each.data) for each in files) > LARGEST_FILES:
            return f"({result.media_type} of {size:,} bytes: too large to be shown)"
        files.append(result)
        return f"({result.media_type}, file {len(files)} below)"
    if isinstance(result, dict):
        return {key: _without_bytes(each, files) for key, each in result.items()}
    return [_without_bytes(each, files) for each in result] if isinstance(result, list | tuple) else result
