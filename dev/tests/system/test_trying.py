"""A newcomer tries everything with `surelane dev`: Socket Mode, installs, agents, and code that does not start."""

import asyncio
import re
import sys
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import aiohttp

from dev.tests.system.up import Up, up
from surelane_dev.new import write_project
from surelane_dev.simulator.client import SimulatorClient
from tests.deploy.commands import run
from tests.processes import until

BAKERY = "T0BAKERY01"
BROKEN = "raise SystemExit('no key for the shop')\n"
SOUND = """from surelane_worker import Context, Event, Handlers

handlers = Handlers()


@handlers.on("slack.app_mention")
async def answer(event: Event, ctx: Context) -> None:
    await ctx.slack.reply(event, "one")
"""


async def answer_to(slack: SimulatorClient, text: str) -> str:
    message = (await slack.say(text, mention=True))["message"]
    return str((await slack.reply(message, 90))["text"])


async def status(url: str) -> int:
    async with aiohttp.request("GET", url) as response:
        return response.status


async def install(system: Up, team: str) -> None:
    """Install the app as a browser does."""
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{system.ingest}/slack/install?team={team}", allow_redirects=False) as begun:
            consent, cookie = begun.headers["Location"], begun.headers["Set-Cookie"].partition(";")[0]
        form = {"team": team, "decision": "approve"}
        async with session.post(consent, data=form, allow_redirects=False) as approved:
            back = approved.headers["Location"]
        assert parse_qs(urlsplit(back).query).keys() == {"code", "state"}
        async with session.get(back, headers={"Cookie": cookie}) as ended:
            assert "The app is installed in Bakery" in await ended.text()


async def test_by_socket_mode_and_installs_the_first_message_is_answered(tmp_path: Path) -> None:
    data = tmp_path / "pg"
    async with up(
        data, {"SURELANE_POLL_INTERVAL": "0.2s"}, options=("--socket-mode", "--installs")
    ) as system:
        await system.ready()
        assert "Socket Mode " in system.shown
        async with SimulatorClient(system.page) as slack, SimulatorClient(system.page, BAKERY) as bakery:
            assert "hello" in await answer_to(slack, "hello")
            sockets = await slack.request("GET", "/control/sockets")
            assert sockets["connections"], sockets
            await install(system, BAKERY)
            assert "fresh bread" in await answer_to(bakery, "fresh bread")
        assert await system.end() == 0
    async with up(data, options=("--installs",)) as again:
        await again.ready()
        async with SimulatorClient(again.page, BAKERY) as bakery:
            assert "still there" in await answer_to(bakery, "still there"), "the key is kept"


async def test_an_agent_answers_with_the_simulator_s_model(tmp_path: Path) -> None:
    write_project(tmp_path / "helper", "agent")
    async with up(tmp_path / "pg", project=tmp_path / "helper") as system:
        await system.ready()
        async with SimulatorClient(system.page) as slack:
            assert await answer_to(slack, "good day") == "You said: good day"


async def test_a_handler_whose_event_the_manifest_lacks_is_one_warning(tmp_path: Path) -> None:
    project = tmp_path / "mybot"
    write_project(project)
    with (project / "mybot/handlers.py").open("a") as handlers:
        handlers.write('\n\n@handlers.event("reaction_added")\nasync def react(event, ctx): ...\n')
    types = {"SURELANE_EVENT_TYPES": "app_mention,message.im,reaction_added"}
    async with up(project / ".surelane/postgres", types, project=project) as system:
        await system.ready()
        lacking = "the app's manifest does not subscribe to reaction_added"
        assert system.shown.count(lacking) == 1
        command = (sys.executable, "-m", "surelane_operator.cli", "doctor")
        told = await asyncio.to_thread(run, *command, where=project, env=types, check=False)
        assert lacking in told.stdout


async def test_the_options_are_for_the_simulator(tmp_path: Path) -> None:
    env = {"SLACK_API_URL": "https://slack.test/api/"}
    async with up(tmp_path / "pg", env, options=("--socket-mode",)) as system:
        assert await system.child.wait() == 2
    assert "unset SLACK_API_URL" in system.shown


async def test_it_is_up_once_sound_code_answers_and_its_ports_stay(tmp_path: Path) -> None:
    code = tmp_path / "bot" / "bot.py"
    code.parent.mkdir()
    code.write_text(BROKEN)
    async with up(tmp_path / "pg", {"SURELANE_HANDLERS": "bot:handlers"}, project=code.parent) as system:
        await until(lambda: "No message is answered" in system.shown, within=120, what="the reason")
        reasons = [line for line in system.output if line.startswith("No message is answered: the worker")]
        assert "no key for the shop" in reasons[-1]
        assert "Surelane is up" not in system.shown
        code.write_text(SOUND)
        await system.ready()
        worker = system.found(r"worker (http://\S+)/$")
        async with SimulatorClient(system.page) as slack:
            assert await answer_to(slack, "hello") == "one"
            assert await status(f"{worker}/readyz") == 200
            code.write_text(SOUND.replace('"one"', '"two"'))
            reloads = "worker reloaded"  # the first was of the sound code
            await until(lambda: system.shown.count(reloads) == 2, within=90, what="the reload")
            assert await answer_to(slack, "hello") == "two"
            assert await status(f"{worker}/readyz") == 200
        assert len(set(re.findall(r"^  private ports .*$", system.shown, re.MULTILINE))) == 1
        code.write_text(SOUND.replace("Handlers()", "Handler()"))
        kept = "the earlier code stays in use"
        await until(lambda: kept in system.shown, within=90, what="the error")
        assert re.search(rf"worker did not start: .*'Handler'.*; {kept}", system.shown)
