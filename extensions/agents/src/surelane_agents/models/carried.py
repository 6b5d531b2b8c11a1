"""Send files to a model's server in pieces.

The libraries of the models make a whole request in memory, with several copies of each file. So they get a mark in
place of a file. The HTTP client finds the mark in the body and sends the file, encoded piece by piece.
"""

import re
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Sequence
from secrets import token_hex

import httpx2
from pydantic_ai import BinaryContent

MARK = re.compile(rb"([0-9a-f]{64})")
"""Base64 of 48 bytes. It is of hexadecimal digits alone, so it is the same in each alphabet of base64."""
PIECE = 3 * 2**16
"""Bytes that are encoded at a time."""
_files: dict[bytes, bytearray] = {}
"""The files that requests may carry, by their marks."""


def marked(file: bytearray, media_type: str) -> BinaryContent:
    """Return a mark for a file. Requests carry the file until it is forgotten."""
    mark = token_hex(32).encode()
    _files[mark] = file
    return BinaryContent(b64decode(mark), media_type=media_type)


def forget(mark: BinaryContent) -> None:
    _files.pop(b64encode(mark.data), None)


async def fill(request: httpx2.Request) -> None:
    """Put files into a request in place of their marks: a hook of an HTTP client."""
    if _files and isinstance(request.stream, httpx2.ByteStream):
        parts = MARK.split(request.content)
        if not _files.keys().isdisjoint(parts):
            request.stream = Filled(parts)
            lengths = (-(-len(_files[each]) // 3) * 4 if each in _files else len(each) for each in parts)
            request.headers["Content-Length"] = str(sum(lengths))


class Filled(httpx2.AsyncByteStream):
    """The body of a request with files. It holds none of them, because a response refers to it."""

    def __init__(self, parts: Sequence[bytes]) -> None:
        self._parts = parts

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self._parts:
            if (file := _files.get(part)) is None:
                yield part
                continue
            for start in range(0, len(file), PIECE):
                yield b64encode(memoryview(file)[start : start + PIECE])
