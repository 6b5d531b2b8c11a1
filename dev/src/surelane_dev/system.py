"""Run the whole system on one machine until Ctrl-C: `surelane dev`.

The database starts first, then come its migrations, then the services, which have imported their modules by then. They
stop in reverse order, so that a worker can finish its handlers while the database and the simulator still run.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from surelane.codec import SETTING
from surelane.errors import SettingsError, SurelaneError
from surelane_dev.accounts import prepare
from surelane_dev.changes import watch
from surelane_dev.dev_settings import DevSettings
from surelane_dev.output import Output
from surelane_dev.ports import Front, Wanted, choose, opened, ports_of
from surelane_dev.postgres import embedded
from surelane_dev.processes import ChildProcess
from surelane_dev.project import Project, find_project
from surelane_dev.services import (
    DATABASE,
    DATABASE_URLS,
    DEMO_APP_TOKEN,
    SLACK_SECRETS,
    Databases,
    before,
    require_tokens,
    services,
    set_aside,
    simulated,
    where_to_look,
)
from surelane_dev.simulator.manifest import read_manifest
from surelane_dev.simulator.simulator_settings import SimulatorSettings
from surelane_dev.supervisor import SERVICES, SIMULATOR, WORKER, Start, Supervisor, show_problem
from surelane_migrations.errors import MigrationError
from surelane_migrations.files import PACKAGED, discover
from surelane_migrations.migration_settings import load_lock_settings
from surelane_migrations.runner import Migration
from surelane_service.common.secret_files import SecretFileError, take_secrets
from surelane_service.lifecycle import EXIT_FAILED, EXIT_FORCED, EXIT_OK, EXIT_SETTINGS
from surelane_service.manifest import MANIFEST
from surelane_service.service_settings import (
    DEMO_CLIENT_ID,
    DEMO_CLIENT_SECRET,
    DEVELOPMENT_URL,
    load_settings,
    misspelled,
)

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
CLONE = Path(__file__).parents[3] / "migrations" / "idempotent"
"""There in a clone of Surelane's own repository, and nowhere else."""
GRACE = 5.0  # seconds that a service may take to end after its drain


class DevError(SurelaneError):
    """A process ended that should have kept running."""


def main(*, socket_mode: bool = False, installs: bool = False, processes: bool = False) -> int:
    """Run the system until a signal; return the exit code. The simulator takes Socket Mode and installs.

    ``processes``: each service is one. By default all are tasks of one.
    """
    output = Output()
    try:
        take_secrets((*SLACK_SECRETS, *DATABASE_URLS, SETTING, "SURELANE_API_TOKEN"))
        for name, meant in misspelled(SimulatorSettings).items():
            output.say(f"there is no such setting: {name}; the nearest is {meant}")
        demonstrate(socket_mode=socket_mode, installs=installs)
        require_tokens()
        return asyncio.run(_until_signal(output, processes=processes))
    except (SettingsError, SecretFileError) as error:
        output.say(str(error))
        return EXIT_SETTINGS
    except (SurelaneError, OSError) as error:
        output.say(str(error))
        return EXIT_FAILED


def demonstrate(*, socket_mode: bool, installs: bool) -> None:
    """Set the public variables with which the simulator takes an app by Socket Mode, or installs by OAuth.

    Raises:
        SettingsError: the simulator does not stand in Slack's place.
    """
    if (socket_mode or installs) and not simulated():
        raise SettingsError("--socket-mode and --installs are for the simulator: unset SLACK_API_URL")
    if socket_mode:
        os.environ["SLACK_APP_TOKEN"] = DEMO_APP_TOKEN
    if installs:
        os.environ |= {"SLACK_CLIENT_ID": DEMO_CLIENT_ID, "SLACK_CLIENT_SECRET": DEMO_CLIENT_SECRET}


def _keep_key(settings: DevSettings) -> None:
    """Make a key for the tokens of installs, if the demo app needs one and none is set. Keep it for the next start."""
    if os.environ.get("SLACK_CLIENT_SECRET") != DEMO_CLIENT_SECRET or os.environ.get(SETTING):
        return
    kept = settings.data_dir / "encryption.key"
    if not kept.exists():
        from surelane_encryption.keys import new_key  # noqa: PLC0415 - rarely needed

        settings.data_dir.mkdir(parents=True, exist_ok=True)
        kept.touch(mode=0o600)
        kept.write_text(new_key())
    os.environ[SETTING] = kept.read_text()


async def _until_signal(output: Output, *, processes: bool) -> int:
    """Run until a signal. The first one ends everything in order; a Ctrl-C after it ends everything at once.

    A second SIGTERM does not: one sent to the process group arrives twice, because ``make`` passes on its own copy. A
    worker killed by it would leave its events claimed until their leases end.
    """
    project = find_project(Path.cwd())
    os.chdir(project.root)
    settings, programs = load_settings(DevSettings), {name: [name] for name in SERVICES}
    task = asyncio.create_task(_dev(settings, project, output, programs if processes else {WORKER: SERVICES}))
    ending = forced = False

    def on_signal(number: signal.Signals) -> None:
        nonlocal ending, forced
        if not ending:
            ending = True
            output.say(f"{number.name}: ending; Ctrl-C to end at once")
            task.cancel()
        elif number == signal.SIGINT:
            forced = True
            for child in list(ChildProcess.running):
                child.kill()

    for number in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, on_signal, number)
    with suppress(asyncio.CancelledError):
        await task
    if forced:
        return EXIT_FORCED
    output.say("everything has ended")
    return EXIT_OK


async def _dev(
    settings: DevSettings, project: Project, output: Output, programs: Mapping[str, Collection[str]]
) -> None:
    drain, front, news = settings.drain_timeout.total_seconds() + GRACE, Front(), asyncio.Event()
    async with AsyncExitStack() as stack:
        sockets = stack.enter_context(opened(settings.host, wanted := _wanted(settings)))
        ports = _told(ports_of(sockets), wanted, output)
        await stack.enter_async_context(front.serving(sockets.pop("worker_private")))
        kept: dict[str, Supervisor] = {}
        for name, each_of in programs.items():
            within, port = GRACE if name == SIMULATOR else drain, front if name == WORKER else None
            passed = [each.fileno() for each in sockets.values()]
            kept[name] = Supervisor(name, each_of, before(name), within, output, news, port, passed)
        for each in kept.values():
            stack.push_async_callback(each.stop)
            await each.prepare()
        speaking = asyncio.create_task(output.never_silent())
        stack.callback(speaking.cancel)
        output.doing("PostgreSQL starts")
        databases, postgres = await stack.enter_async_context(_database(settings, output))
        # Developers of Surelane change scripts without a new version, so apply them again.
        output.doing("the database is migrated")
        await _migrate(databases.owner, output, again=bool(postgres) and CLONE.is_dir())
        output.doing("the services start")
        _keep_key(settings)
        for message in set_aside():
            output.say(message)
        stack.push_async_callback(_together, *(each.stop for each in kept.values() if each.name != SIMULATOR))
        stack.enter_context(_for_the_command(settings, project, databases))

        def start(name: str) -> dict[str, Start]:
            at = {**ports, "worker_private": _free(settings)}
            current = find_project(project.root) if name == WORKER else project
            found = services(settings, current, at, databases)
            return {name: found[name] for name in programs[name]}

        async with _staying_up(
            *(_watch(child) for child in postgres),
            *(
                each.run(partial(start, name), watched=name == WORKER and project.is_a_teams)
                for name, each in kept.items()
            ),
            *([watch(project.root, partial(_changed, kept, project))] if project.is_a_teams else []),
        ):
            shown = None
            while True:
                for each in kept.values():
                    await each.settled.wait()
                speaking.cancel()
                lacking = [each for each in kept.values() if each.problem and not each.runs]
                missing = {each.name: each.problem or "" for each in lacking}
                if missing != shown:
                    await asyncio.to_thread(show_problem, f"{settings.url}:{ports['simulator']}", missing)
                    output.say(*where_to_look(settings, project, ports, databases, missing))
                shown = missing
                await news.wait()
                news.clear()


def _changed(kept: Mapping[str, Supervisor], project: Project, files: list[str]) -> None:
    """Replace the program of the worker. If a readable manifest changed, replace ingest and the simulator, too."""
    path = Path(project.settings.get(MANIFEST, ""))
    with suppress(SettingsError):
        if path in [project.root / file for file in files]:
            read_manifest(path)
            for name in kept.keys() & {"ingest", SIMULATOR}:
                kept[name].changed(files)
    kept[WORKER].changed(files)


async def _together(*stops: Callable[[], Awaitable[None]]) -> None:
    await asyncio.gather(*(stop() for stop in stops))


def _free(settings: DevSettings) -> int:
    """Return a free port for a worker: the one before it may still drain on its own."""
    return choose(settings.host, {"": Wanted("SURELANE_WORKER_PRIVATE_PORT", 0, 0)})[""]


@contextmanager
def _for_the_command(settings: DevSettings, project: Project, databases: Databases) -> Iterator[None]:
    """Tell the command ``surelane`` in the block where the embedded database and the manifest are."""
    if settings.database_url is not None:
        yield
        return
    told = settings.data_dir / DEVELOPMENT_URL
    told.write_text(f"{databases.operator}\n{project.settings.get(MANIFEST, '')}")
    try:
        yield
    finally:
        told.unlink(missing_ok=True)


def _wanted(settings: DevSettings) -> dict[str, Wanted]:
    return {
        "ingest": Wanted("SURELANE_PORT", settings.port, 8080),
        "ingest_private": Wanted("SURELANE_PRIVATE_PORT", settings.private_port, 8083),
        "operator": Wanted("SURELANE_OPERATOR_PORT", settings.operator_port, 8081),
        "worker_private": Wanted("SURELANE_WORKER_PRIVATE_PORT", settings.worker_private_port, 8082),
        "simulator": Wanted("SURELANE_SIMULATOR_PORT", settings.simulator_port, 8090),
    }


def _told(ports: dict[str, int], wanted: Mapping[str, Wanted], output: Output) -> dict[str, int]:
    """Say which ports are others than usual."""
    for name, port in wanted.items():
        if port.given is None and ports[name] != port.default:
            output.say(f"port {port.default} is in use: {ports[name]} instead; {port.setting} sets another")
    return ports


@asynccontextmanager
async def _database(
    settings: DevSettings, output: Output
) -> AsyncIterator[tuple[Databases, tuple[ChildProcess, ...]]]:
    """Yield the database of the settings, or the embedded one with its process."""
    if settings.database_url is not None:
        yield Databases.given(settings.database_url.get_secret_value()), ()
        return
    async with embedded(settings.data_dir, on_line=output.of("postgres")) as postgres:
        await prepare(postgres.uri, DATABASE)
        yield Databases.embedded(postgres.uri), (postgres.child,)


async def _migrate(uri: str, output: Output, *, again: bool) -> None:
    """Bring the schema up, in this process: an interpreter of its own would take half a second more.

    Show the list of scripts only if one failed, which raises DevError.
    """
    lines, say = list[str](), output.of("migrate")
    try:
        locks = load_lock_settings()
        migration = Migration(discover(PACKAGED), locks=locks, again=again, report=lines.append)
        say(str(await migration.apply(uri)))
    except MigrationError as error:
        for line in (*lines, f"error: {error}"):
            say(line)
        raise DevError(f"the migrations ended with code {error.exit_code}") from None


async def _watch(child: ChildProcess) -> None:
    code = await child.wait()
    raise DevError(f"{child.name} ended with code {code}; ending the rest")


@asynccontextmanager
async def _staying_up(*duties: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run duties in the block and after it, until one fails. Raises SurelaneError: of the first duty that failed."""
    try:
        async with asyncio.TaskGroup() as group:
            for duty in duties:
                group.create_task(duty)
            yield
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
