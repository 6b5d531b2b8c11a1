"""Files that people attach to messages go to the model, and files that the model attaches are posted once."""

import base64
import hashlib
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from extensions.agents.tests.system.model_server import (
    HANDLERS,
    OURS,
    Reply,
    calls,
    model_server,
    says,
    settings,
)
from extensions.agents.tests.system.model_server import Desk as Asking
from extensions.agents.tests.system.model_tools import DOT
from surelane.calls import Connection
from surelane_dev.simulator.control.inputs import MessageInput
from surelane_dev.simulator.control.people import post
from surelane_dev.simulator.files import File, shared_json
from surelane_dev.simulator.posting.events import envelope, events_of
from surelane_dev.simulator.workspace.model import Message, Posted
from tests.processes import service, until
from tests.system.slack_stand import slack_stand
from tests.system.worker import ended, environment, worker

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(200))
TOKEN = "xoxb-any"


@dataclass(frozen=True)
class Desk(Asking):
    """A person who attaches files to mentions, and the worker's settings."""

    database: str

    def file(self, name: str, type_: str, content: bytes) -> File:
        return self.slack.simulator.files.attach(name, type_, content)

    async def mention(self, text: str, *files: File, **changed: Any) -> tuple[int, Message]:
        """Mention the bot with files. ``changed``: fields of the first one that differ in Slack's report."""
        simulator, workspace = self.slack.simulator, self.slack.simulator.workspace
        shapes = [shared_json(file, simulator.interactions.public_url) for file in files]
        if shapes:
            shapes[0] |= changed
        message = post(workspace, MessageInput(text=text, mention=True), files=shapes, subtype="file_share")
        (inner,) = events_of(workspace, Posted(message), {"app_mention"})
        return await self.slack.store(envelope(workspace, inner)), message

    def worker(self, **more: str) -> Any:
        return worker(self.database, **settings(self.model, self.slack, SURELANE_HANDLERS=HANDLERS, **more))

    def question(self, plan: str, number: int = -1) -> list[dict[str, Any]]:
        """Return the parts of the question in a request."""
        asked = [each for each in self.model.asked[plan][number]["messages"] if each["role"] == "user"]
        found: list[dict[str, Any]] = asked[-1]["content"]
        return found


@pytest.fixture
async def desk(database: str, connection: Connection) -> AsyncIterator[Desk]:
    async with model_server() as model, slack_stand(connection) as slack:
        yield Desk(slack, model, connection, database)


async def test_the_model_gets_images_pdf_and_text_and_learns_of_the_others(desk: Desk) -> None:
    desk.model.plans["files"] = [calls(("weather", {"city": "Bremen"})), says("Seen.")]
    image = desk.file("dot.png", "image/png", PNG)
    pdf = desk.file("a.pdf", "application/pdf", b"%PDF-1.4 secret")
    text, archive = desk.file("a.csv", "text/csv", b"x,y\n1,2"), desk.file("a.zip", "application/zip", b"PK")
    large = desk.file("large.txt", "text/plain", b"x")
    large.length = 11_000_000
    extra = desk.file("sixth.txt", "text/plain", b"six")
    async with desk.worker():
        event, message = await desk.mention("plan:files", image, pdf, text, archive, large, extra)
        row = await ended(desk.connection, event)
    assert (row["outcome"], desk.slack.answers(message)) == ("completed", ["Seen."])
    parts = desk.question("files")
    assert parts == desk.question("files", 0)
    shown = [part.get("text", part["type"]) for part in parts]
    assert shown[1:] == [
        "The file dot.png:",
        "image_url",
        "The file a.pdf:",
        "file",
        "The file a.csv:\nx,y\n1,2",
        "(The file a.zip was not read: it is no image, PDF or text.)",
        "(The file large.txt was not read: it has more than 10,485,760 bytes.)",
        "(The file sixth.txt was not read: there are too many files.)",
    ]
    assert base64.b64encode(PNG).decode() in json.dumps(parts)
    # Each is read once for both requests, with the token, and nothing of it is stored.
    assert [file.read_with for file in (image, pdf, text)] == [[f"Bearer {TOKEN}"]] * 3
    assert [file.read_with for file in (archive, large, extra)] == [[], [], []]
    (step,) = await desk.connection.fetch(
        "select result from agent.step where event_id = $1 and name = 'files'", event
    )
    assert {each["id"] for each in json.loads(step["result"])} >= {image.id, pdf.id, text.id}
    dump = str(await desk.connection.fetch("select * from agent.step where event_id = $1", event))
    assert "%PDF" not in dump
    assert base64.b64encode(PNG).decode()[:40] not in dump


async def test_the_token_goes_to_slack_alone_and_a_file_that_it_does_not_give_is_named(desk: Desk) -> None:
    image, gone = desk.file("dot.png", "image/png", PNG), "/files/F0MISSING/x.png"
    kept = "Slack does not keep it"
    urls = {
        "http://127.0.0.1:1/x.png": kept,
        "https://files.slack.com.example.com/x.png": kept,
        "https://[": kept,
        "": "Slack gives no address for it",
        desk.slack.simulator.interactions.public_url + gone: "Slack did not give it",
    }
    async with desk.worker():
        for number, (url, why) in enumerate(urls.items()):
            desk.model.plans[f"url-{number}"] = [says("Seen.")]
            at = dict.fromkeys(("url_private", "url_private_download"), url)
            event, _ = await desk.mention(f"plan:url-{number}", image, **at)
            assert (await ended(desk.connection, event))["outcome"] == "completed"
            assert desk.question(f"url-{number}")[1]["text"] == f"(The file dot.png was not read: {why}.)"
    stub, hidden = desk.file("b.png", "image/png", PNG), desk.file("c.png", "image/png", PNG)
    stub.access, hidden.access = "check_file_info", "file_not_found"
    desk.model.plans["stubs"] = [says("Seen.")]
    async with desk.worker():
        event, message = await desk.mention("plan:stubs", stub, hidden, image, mode="hosted")
        assert (await ended(desk.connection, event))["outcome"] == "completed"
    assert desk.slack.answers(message) == ["Seen."]
    shown = [part.get("text", part["type"]) for part in desk.question("stubs")][1:]
    unshared = "(The file file was not read: Slack does not find it, or it is not shared with the app.)"
    assert shown == ["The file b.png:", "image_url", unshared, "The file dot.png:", "image_url"]
    desk.model.plans["off"] = [says("Seen.")]
    async with desk.worker(SURELANE_MODEL_FILES="0"):
        event, _ = await desk.mention("plan:off", image)
        await ended(desk.connection, event)
    assert isinstance(desk.question("off"), str), "a turn without files asks as before"


def pictures(parts: object) -> list[bytes]:
    """Return the images of a message."""
    shown = [each for each in parts if each["type"] == "image_url"] if isinstance(parts, list) else []
    return [base64.b64decode(each["image_url"]["url"].partition("base64,")[2]) for each in shown]


@pytest.mark.parametrize("known", [True, False], ids=["from history", "from Slack"])
async def test_the_model_gets_the_latest_files_of_the_thread(desk: Desk, known: bool) -> None:
    """Somebody posts a screenshot, and later asks the bot what it is."""
    simulator, workspace = desk.slack.simulator, desk.slack.simulator.workspace
    images = [desk.file(f"{number}.png", "image/png", PNG + bytes([number])) for number in range(4)]
    shapes = [shared_json(each, simulator.interactions.public_url) for each in images]
    grace = desk.slack.user("grace").id
    async with desk.worker(SURELANE_MODEL_FILES="3"):
        if known:
            desk.model.plans["root"] = [says("Yes?")]
            event, root = await desk.mention("plan:root", images[0])
            await ended(desk.connection, event)
        else:
            root = workspace.post(desk.slack.room(), grace, "", files=shapes[:1])
        for shape in shapes[1:3]:
            workspace.post(desk.slack.room(), grace, "", thread_ts=root.ts, files=[shape])
        desk.model.plans["what"] = [says("A dot.")]
        event, _ = await desk.slack.mention("plan:what", thread_ts=root.ts)
        assert (await ended(desk.connection, event))["outcome"] == "completed"
    question = desk.question("what")
    assert pictures(question) == [PNG + bytes([number]) for number in (2, 1, 0)]
    assert [part["text"] for part in question if "earlier" in part.get("text", "")] == [
        f"The file {number}.png of an earlier message:" for number in (2, 1, 0)
    ]
    before = [str(each["content"]) for each in desk.model.asked["what"][0]["messages"]]
    assert any(f"<@{grace}>: (file: 2.png)" in each for each in before)


async def test_the_model_sees_an_image_that_a_tool_returns_also_in_a_later_attempt(desk: Desk) -> None:
    draws = calls(("draw", {"attached": False}), ("draw", {"attached": True}))
    async with desk.worker(SURELANE_BACKOFF_BASE="50ms"):
        event, message = await desk.ask("draw", draws, [Reply(status=503), says("A dot.")])
        assert (await ended(desk.connection, event))["outcome"] == "completed"
    for request in desk.model.asked["draw"][1:]:
        sent = [found for each in request["messages"] for found in pictures(each["content"])]
        assert sent == [DOT]
    (posted,) = [each for each in desk.slack.replies(message) if each.files]
    assert [each["name"] for each in posted.files] == ["dot.png"]


async def test_a_person_attaches_a_file_in_the_simulator(desk: Desk) -> None:
    url = desk.slack.simulator.interactions.public_url
    file = {"name": "a.txt", "type": "text/plain", "content": base64.b64encode(b"hello").decode()}
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{url}/control/messages", json={"text": "see", "files": [file]}) as answer:
            (shown,) = (await answer.json())["message"]["files"]
        async with session.get(shown["url_private_download"]) as answer:
            assert await answer.read() == b"hello"
    assert (shown["name"], shown["mimetype"], shown["size"]) == ("a.txt", "text/plain", 5)


async def test_a_file_that_the_model_attaches_is_posted_once_if_the_worker_is_killed_meanwhile(
    desk: Desk,
) -> None:
    desk.slack.fail("slow", "files.completeUploadExternal", delay=60.0)
    async with desk.worker(SURELANE_WORKER_NAME="mortal") as dying:
        attach = calls(("attach", {"name": "hours.csv", "text": "x,y\n1,2"}))
        event, message = await desk.ask("attach", attach, says("Attached."))
        await until(lambda: any(each.files for each in desk.slack.replies(message)), what="the posted file")
        dying.child.kill()
        await dying.child.wait()
    async with desk.worker(SURELANE_WORKER_NAME="mortal"):
        assert (await ended(desk.connection, event))["outcome"] == "completed"
    files = [file["name"] for each in desk.slack.replies(message) for file in each.files]
    assert files == ["hours.csv"]
    assert desk.slack.answers(message)[-1] == "Attached."
    assert len(desk.model.asked["attach"]) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="the highest use of memory is read from /proc")
@pytest.mark.timeout(600)
async def test_eight_turns_with_five_large_files_each_fit_into_the_workers_memory(desk: Desk) -> None:
    contents = [b"%PDF-1.4" + bytes([number]) * (10 * 2**20 - 8) for number in range(5)]
    files = [desk.file(f"{number}.pdf", "application/pdf", each) for number, each in enumerate(contents)]
    wanted = [hashlib.sha256(each).hexdigest() for each in contents]
    desk.model.kept = _hashed
    own = OURS | {"SURELANE_HANDLERS": "surelane_worker.builtin:handlers"}
    given = environment(desk.database, **settings(desk.model, desk.slack, **own))
    async with service("surelane_worker", given, imported=False) as running:
        for number in range(8):
            desk.model.plans[f"large-{number}"] = [calls(("weather", {"city": "Bremen"})), says("Seen.")]
        asked = [await desk.mention(f"plan:large-{number}", *files) for number in range(8)]
        rows = [await ended(desk.connection, event, 500) for event, _ in asked]
        most = _highest(running.process.pid)
    assert {row["outcome"] for row in rows} == {"completed"}
    for number in range(8):
        for request in range(2):
            parts = desk.question(f"large-{number}", request)
            assert [part["file"]["file_data"] for part in parts if part["type"] == "file"] == wanted
    assert most <= 400, f"{most} MiB"


def _hashed(body: Any) -> Any:
    """Return the body of a request with the hashes of its files in place of them."""
    parts = [
        part for each in body["messages"] if isinstance(each["content"], list) for part in each["content"]
    ]
    for part in [part for part in parts if part["type"] == "file"]:
        _, _, encoded = part["file"]["file_data"].partition("base64,")
        part["file"]["file_data"] = hashlib.sha256(base64.b64decode(encoded)).hexdigest()
    return body


def _highest(pid: int) -> int:
    """Return the most MiB that a process had in memory so far."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) // 1024
