"""Keep uploaded files, and serve ``/upload/{key}`` and ``/files/{id}/{name}``."""

from dataclasses import dataclass, field
from secrets import token_urlsafe
from urllib.parse import quote

from aiohttp import web

from surelane_dev.simulator.posting.events import new_id
from surelane_dev.simulator.workspace.model import JSON

KEPT = 100
"""The number of files that are kept; older ones go."""
KEPT_BYTES = 256 * 2**20
"""The bytes of all files that are kept, but for the newest one."""


@dataclass(slots=True)
class File:
    """A file. It is uploaded once its bytes are there, and shared once the upload is completed."""

    id: str
    name: str
    length: int
    key: str
    title: str = ""
    content: bytes | None = None
    type: str = "application/octet-stream"
    access: str = "visible"
    """What an event says of it. If not ``visible``, the event has its id alone."""
    read_with: list[str] = field(default_factory=list)
    """The ``Authorization`` of each request that read it."""


class Files:
    """The files by id, the oldest first."""

    def __init__(self) -> None:
        self._files: dict[str, File] = {}

    def begin(self, name: str, length: int) -> File:
        """Make room for a file. Its key is the secret in the URL of its upload."""
        file = File(new_id("F"), name, length, token_urlsafe(24))
        self._files[file.id] = file
        while len(self._files) > KEPT or (len(self._files) > 1 and self._bytes() > KEPT_BYTES):
            del self._files[next(iter(self._files))]
        return file

    def _bytes(self) -> int:
        return sum(file.length for file in self._files.values())

    def attach(self, name: str, type_: str, content: bytes, access: str = "visible") -> File:
        """Keep a file that a person attaches to a message."""
        file = self.begin(name, len(content))
        file.type, file.content, file.access = type_, content, access
        return file

    def find(self, file_id: str) -> File | None:
        return self._files.get(file_id)

    async def upload(self, request: web.Request) -> web.Response:
        """Take a file's bytes, as they are or in a form."""
        file = next((file for file in self._files.values() if file.key == request.match_info["key"]), None)
        if file is None:
            return web.Response(status=404, text="no such upload")
        content = await _bytes(request)
        if len(content) != file.length:
            return web.Response(status=400, text=f"expected {file.length} bytes, got {len(content)}")
        file.content = content
        return web.Response(text=f"OK - {len(content)}")

    async def download(self, request: web.Request) -> web.Response:
        """Answer a file's bytes, as something to save: a page must not show foreign content as its own."""
        file = self.find(request.match_info["id"])
        if file is None or file.content is None:
            return web.Response(status=404, text="no such file")
        file.read_with.append(request.headers.get("Authorization", ""))
        saved = f"attachment; filename*=UTF-8''{quote(file.name, safe='')}"
        headers = {"Content-Disposition": saved, "Content-Type": "application/octet-stream"}
        return web.Response(body=file.content, headers=headers)


def shared_json(file: File, public_url: str) -> JSON:
    """Return a file as JSON, as messages have it: of another organization's with its id alone."""
    if file.access == "visible":
        return file_json(file, public_url)
    return {"id": file.id, "file_access": file.access}


def file_json(file: File, public_url: str) -> JSON:
    """Return all of a file as JSON."""
    url = f"{public_url}/files/{file.id}/{quote(file.name, safe='')}"
    shape: JSON = {"id": file.id, "name": file.name, "title": file.title or file.name, "size": file.length}
    shape |= {"mimetype": file.type, "mode": "hosted", "file_access": "visible"}
    return shape | dict.fromkeys(("url_private", "url_private_download"), url)


async def _bytes(request: web.Request) -> bytes:
    if request.content_type != "multipart/form-data":
        return await request.read()
    for part in (await request.post()).values():
        if isinstance(part, web.FileField):
            return part.file.read()
    return b""
