"""A file that cannot be read does not end a question: the model is told why. It waits only while Slack is out."""

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog
from aiohttp import ClientSession, web
from pydantic_ai.exceptions import ModelAPIError
from pydantic_ai.messages import ModelMessage, ModelRequest, UserContent, UserPromptPart
from pydantic_ai.models import ModelRequestParameters
from slack_sdk.errors import SlackApiError

from surelane_agents.agent_settings import AgentSettings
from surelane_agents.context.files import LARGEST, Attached, references_of
from surelane_agents.context.room import FileRoom
from surelane_agents.errors import UnavailableError
from surelane_agents.models.carried import marked
from surelane_agents.models.client import model_of, request_settings, times_in_memory
from surelane_service.probes import serving
from surelane_service.service_settings import load_settings
from surelane_worker.handling.context import Context
from surelane_worker.worker_settings import WorkerSettings
from tests.processes import free_port

PDF = {"id": "F0", "name": "a.pdf", "mimetype": "application/pdf", "size": 9}
HTML = {"id": "F0", "name": "a.html", "mimetype": "text/html", "size": 5}
STUB = {"id": "F0", "file_access": "check_file_info"}
SIGN_IN = "Slack asks to sign in: the app may lack the right files:read, or the file is not shared with it"
PAGE = b"<html>Sign in</html>"


@pytest.fixture
async def slack() -> AsyncIterator[tuple[Context, dict[str, Any]]]:
    """Yield the context of an attempt, and how Slack answers: for a path, and for ``files.info``."""
    answers: dict[str, Any] = {}

    async def download(request: web.Request) -> web.StreamResponse:
        status, body, sort, length = answers[request.path]
        response = web.StreamResponse(status=status, headers={"Content-Type": sort})
        response.content_length = length
        await response.prepare(request)
        await response.write(body)
        if length > len(body):
            assert request.transport
            request.transport.close()
        return response

    async def files_info(**_: str) -> Any:
        if isinstance(answer := answers["files.info"], Exception):
            raise answer
        return answer

    app = web.Application()
    app.router.add_get("/{path:.*}", download)
    runner, port = web.AppRunner(app), free_port()
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    url = f"http://127.0.0.1:{port}/"
    settings = WorkerSettings.model_validate(
        {"DATABASE_URL": "postgresql://nowhere/x", "SLACK_API_URL": url, "SLACK_BOT_TOKEN": "xoxb-any"}
    )
    async with ClientSession(url) as session:
        client = SimpleNamespace(session=session, token="xoxb-any", proxy=None, files_info=files_info)
        log, slack = structlog.get_logger(), SimpleNamespace(client=client)
        answers["url"] = f"{url}file"
        yield cast("Context", SimpleNamespace(slack=slack, settings=settings, log=log)), answers
    await runner.cleanup()


async def test_room_is_given_in_order_and_what_rests_makes_way() -> None:
    room, order, dropped = FileRoom(10), list[int](), list[str]()
    first, second = (partial(dropped.append, name) for name in ("first", "second"))

    async def take(size: int) -> None:
        await room.take(size)
        order.append(size)

    await take(6)
    waiting = [asyncio.create_task(take(size)) for size in (9, 1, 8)]
    await asyncio.sleep(0)
    assert order == [6], "the small one, which would fit, does not overtake the large one"
    room.rest(first, 6)
    await waiting[0]
    assert (dropped, room.resume(first)) == (["first"], None)
    await waiting[1]
    waiting[2].cancel()
    room.rest(second, 9)
    assert (room.resume(second), dropped) == (9, ["first"]), "who does not wait any more takes nothing"
    room.give(10)
    await asyncio.wait_for(take(10), 60)


async def test_files_that_never_fit_are_refused_by_name_and_waiting_has_an_end(
    slack: tuple[Context, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx, answers = slack
    answers["/file"], room = (200, b"%PDF-1.4.", "application/pdf", 9), FileRoom(20)
    named = [{**PDF, "name": f"{number}.pdf", "url_private": answers["url"]} for number in range(3)]
    files = Attached(ctx, "asked", await references_of(named, ctx, last=False), room)
    for _ in range(2):
        async with files.beside([ModelRequest(parts=[UserPromptPart("asked")])]) as (message,):
            (part,) = message.parts
            assert isinstance(part, UserPromptPart)
            shown = [each for each in part.content if isinstance(each, str)]
            files.sent()
    why = "the file is too large: those of a message may have 20 bytes together"
    assert shown == ["asked", "The file 0.pdf:", "The file 1.pdf:", f"(The file 2.pdf was not read: {why}.)"]
    other = Attached(ctx, "asked", files.references, room)
    monkeypatch.setattr("surelane_agents.context.files.LONGEST_WAIT", 0.01)
    async with files.beside([]):
        with pytest.raises(UnavailableError, match="SURELANE_FILE_MEMORY"):
            await other.beside([]).__aenter__()
    async with other.beside([]):  # the resting ones make way
        pass
    other.close()
    await asyncio.wait_for(room.take(20), 60)


@pytest.mark.parametrize("name", ["openai:any", "openai-chat:any", "ollama:any", "any"])
async def test_each_client_sends_files_in_pieces(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server gets the files as they are, and how many bytes the body has."""
    bodies, content = list[bytes](), bytearray(range(256)) * 1000

    async def take(request: web.Request) -> web.Response:
        assert request.content_length
        bodies.append(await request.read())
        return web.json_response({"error": {"message": "no"}}, status=400)

    app = web.Application(client_max_size=2**24)
    app.router.add_post("/{path:.*}", take)
    async with serving(app, 0, setting="none", host="127.0.0.1") as port:
        url = f"http://127.0.0.1:{port}/v1"
        for variable in ("OPENAI_BASE_URL", "OLLAMA_BASE_URL"):
            monkeypatch.setenv(variable, url)
        monkeypatch.setenv("OPENAI_API_KEY", "any")
        settings = load_settings(AgentSettings, model=name, model_url=url)
        model = model_of(settings)
        parts: list[UserContent] = [
            marked(content, "application/pdf"),
            "text",
            marked(content[:-1], "image/png"),
        ]
        assert times_in_memory(model) == 1
        asked: list[ModelMessage] = [ModelRequest(parts=[UserPromptPart(parts)])]
        with pytest.raises(ModelAPIError):
            async with model.request_stream(asked, request_settings(settings), ModelRequestParameters()):
                pass
    for each in (content, content[:-1]):
        assert b64encode(each) + b'"' in bodies[0]


async def told(ctx: Context, file: Any, *, last: bool = False) -> str:
    """Return what the model is told of a file."""
    references = await references_of([file], ctx, last)
    shown, *_ = await Attached(ctx, "asked", references, FileRoom(LARGEST), last=last).read(references[0])
    return str(shown)


def refused(error: str, status: int = 200) -> SlackApiError:
    response: Any = SimpleNamespace(get={"error": error}.get, status_code=status)
    return SlackApiError("refused", response)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("file", "answer", "why"),
    [
        (STUB, refused("file_not_found"), "Slack does not find it, or it is not shared with the app"),
        (STUB, refused("file_deleted"), "it was deleted"),
        (STUB, refused("missing_scope"), "the app lacks the right files:read"),
        (STUB, refused("some_new_error"), "Slack answers some_new_error"),
        (STUB, {"file": STUB}, "it is of another organization, and Slack does not say more about it"),
        (STUB, {"ok": True}, "it is of another organization, and Slack does not say more about it"),
        ({"file_access": "check_file_info"}, refused("file_not_found"), "Slack does not find it, or"),
        (STUB, {"file": {**PDF, "file_access": "access_denied"}}, "the app may not see it"),
        ({**PDF, "mode": "tombstone"}, None, "it was deleted"),
        ({**PDF, "mode": "hidden_by_limit"}, None, "Slack hides it: the workspace's plan does not keep it"),
        ({**PDF, "mimetype": "application/zip"}, None, "it is no image, PDF or text"),
        ({**PDF, "size": LARGEST + 1}, None, "it has more than 10,485,760 bytes"),
        (PDF, None, "Slack gives no address for it"),
        ({**PDF, "url_private": "https://drive.example/a"}, None, "Slack does not keep it"),
        ("no file", None, "it is no image, PDF or text"),
    ],
)
async def test_the_model_is_told_why_a_file_is_not_read(
    slack: tuple[Context, dict[str, Any]], file: Any, answer: Any, why: str
) -> None:
    ctx, answers = slack
    answers["files.info"] = answer
    shown = await told(ctx, file)
    assert f"was not read: {why}" in shown


@pytest.mark.parametrize(
    ("file", "answer", "shown"),
    [
        (PDF, (200, b"%PDF-1.4.", "application/octet-stream", 9), "The file a.pdf:"),
        (
            {**PDF, "size": None, "name": "R&amp;D"},
            (200, b"%PDF-1.4.", "application/pdf", 9),
            "The file R&D:",
        ),
        (PDF, (200, PAGE, "text/html", len(PAGE)), SIGN_IN),
        (HTML, (200, PAGE, "text/html", len(PAGE)), SIGN_IN),
        (HTML, (200, b"<b>a>", "text/html", 5), "The file a.html:\n<b>a>"),
        (PDF, (302, b"", "text/html", 0), SIGN_IN),
        (PDF, (403, b"", "text/plain", 0), "Slack did not give it"),
        (PDF, (200, b"PK-secret", "application/pdf", 9), "what it holds is no application/pdf"),
        (
            {**PDF, "size": None},
            (200, b"%" * (LARGEST + 1), "application/pdf", LARGEST + 1),
            "it has more than",
        ),
    ],
)
async def test_what_slack_sends_is_the_file_or_the_model_is_told(
    slack: tuple[Context, dict[str, Any]], file: Any, answer: Any, shown: str
) -> None:
    ctx, answers = slack
    answers["/file"], answers["files.info"] = answer, {"file": {**file, "url_private": answers["url"]}}
    assert shown in await told(ctx, STUB)


@pytest.mark.parametrize(
    ("info", "answer"),
    [
        (refused("internal_error"), None),
        (refused("bad_gateway", 502), None),
        (TimeoutError(), None),
        (None, (200, b"%PDF", "application/pdf", 9)),
        (None, (200, b"%PDF-1.4", "application/pdf", 8)),
        (None, (503, b"", "text/plain", 0)),
        (None, (429, b"", "text/plain", 0)),
    ],
)
async def test_while_slack_is_out_the_turn_is_repeated_and_at_last_the_model_is_told(
    slack: tuple[Context, dict[str, Any]], info: Any, answer: Any
) -> None:
    ctx, answers = slack
    answers["/file"], answers["files.info"] = answer, info or {"file": {**PDF, "url_private": answers["url"]}}
    with pytest.raises(UnavailableError):
        await told(ctx, STUB)
    assert "was not read: Slack " in await told(ctx, STUB, last=True)
