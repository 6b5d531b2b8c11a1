"""Run the whole system on one machine until Ctrl-C: `make up`.

The database starts first, then come its migrations, then the services. They stop in reverse order, so that a worker
can finish its handlers while the database and the simulator still run.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from surelane.errors import SettingsError, SurelaneError
from surelane_dev.accounts import prepare
from surelane_dev.output import Output
from surelane_dev.ports import Wanted, choose
from surelane_dev.postgres import embedded
from surelane_dev.processes import Child
from surelane_dev.services import DATABASE, Databases, Service, ready, services, set_aside, where_to_look
from surelane_dev.settings import UpSettings
from surelane_service.lifecycle import EXIT_FAILED, EXIT_FORCED, EXIT_OK, EXIT_SETTINGS
from surelane_service.settings import load_settings

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE = 5.0  # seconds that a service may take to end after its drain


class UpError(SurelaneError):
    """A process ended that should have kept running."""


def main() -> int:
    """Run the system until a signal; return the exit code."""
    output = Output()
    try:
        return asyncio.run(_until_signal(output))
    except SettingsError as error:
        output.say(str(error))
        return EXIT_SETTINGS
    except SurelaneError as error:
        output.say(str(error))
        return EXIT_FAILED


async def _until_signal(output: Output) -> int:
    """Run until a signal. The first one ends everything in order; a Ctrl-C after it ends everything at once.

    A second SIGTERM does not: one sent to the process group arrives twice, because ``make`` passes on its own copy. A
    worker killed by it would leave its events claimed until their leases end.
    """
    task = asyncio.create_task(_up(load_settings(UpSettings), output))
    ending = forced = False

    def on_signal(number: signal.Signals) -> None:
        nonlocal ending, forced
        if not ending:
            ending = True
            output.say(f"{number.name}: ending; Ctrl-C to end at once")
            task.cancel()
        elif number == signal.SIGINT:
            forced = True
            for child in list(Child.running):
                child.kill()

    for number in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, on_signal, number)
    with suppress(asyncio.CancelledError):
        await task
    if forced:
        return EXIT_FORCED
    output.say("everything has ended")
    return EXIT_OK


async def _up(settings: UpSettings, output: Output) -> None:
    ports = _ports(settings, output)
    async with _database(settings, output) as (databases, postgres):
        # Developers change scripts without a new version, so apply them again.
        await _migrate(databases.owner, output, *(["--again"] if postgres else []))
        simulator, ingest, worker = services(settings, ports, databases)
        if (unused := set_aside()) is not None:
            output.say(unused)
        drain = settings.drain_timeout.total_seconds() + GRACE
        async with (
            _running(simulator, within=GRACE, output=output) as simulating,
            _running(ingest, worker, within=drain, output=output) as serving,
            _staying_up(*postgres, *simulating, *serving),
        ):
            for service in (simulator, ingest, worker):
                await ready(service, output.say)
            output.say(*where_to_look(settings, ports, databases))


def _ports(settings: UpSettings, output: Output) -> dict[str, int]:
    wanted = {
        "ingest": Wanted("SURELANE_PORT", settings.port, 8080),
        "ingest_private": Wanted("SURELANE_PRIVATE_PORT", settings.private_port, 8081),
        "worker_private": Wanted("SURELANE_WORKER_PRIVATE_PORT", settings.worker_private_port, 8082),
        "simulator": Wanted("SURELANE_SIMULATOR_PORT", settings.simulator_port, 8090),
    }
    ports = choose(settings.host, wanted)
    for name, port in wanted.items():
        if port.given is None and ports[name] != port.default:
            output.say(f"port {port.default} is in use: {ports[name]} instead; {port.setting} sets another")
    return ports


@asynccontextmanager
async def _database(
    settings: UpSettings, output: Output
) -> AsyncIterator[tuple[Databases, tuple[Child, ...]]]:
    """Yield the database of the settings, or the embedded one with its process."""
    if settings.database_url is not None:
        yield Databases.given(settings.database_url.get_secret_value()), ()
        return
    async with embedded(settings.data_dir, on_line=output.of("postgres")) as postgres:
        await prepare(postgres.uri, DATABASE)
        yield Databases.embedded(postgres.uri), (postgres.child,)


async def _migrate(uri: str, output: Output, *options: str) -> None:
    """Bring the schema up. Show the list of scripts only if one failed.

    Raises:
        UpError: the migrations failed.
    """
    command = (sys.executable, "-m", "surelane_migrations", "apply", *options)
    lines: list[str] = []
    child = await Child.start(
        "migrate", *command, env={**os.environ, "DATABASE_URL": uri}, on_line=lines.append
    )
    try:
        code = await child.wait()
    finally:
        child.kill()
        await child.wait()
    for line in lines if code else lines[-1:]:
        output.of("migrate")(line)
    if code != 0:
        raise UpError(f"the migrations ended with code {code}")


@asynccontextmanager
async def _running(*wanted: Service, within: float, output: Output) -> AsyncIterator[list[Child]]:
    """Run services, and end them together. Kill them ``within`` seconds after SIGTERM."""
    children: list[Child] = []
    try:
        for service in wanted:
            command = (sys.executable, "-m", *service.command)
            show = output.of(service.name)
            children.append(await Child.start(service.name, *command, env=service.environment, on_line=show))
        yield children
    finally:
        await asyncio.gather(*(child.stop(signal.SIGTERM, within) for child in children))


@asynccontextmanager
async def _staying_up(*children: Child) -> AsyncIterator[None]:
    """Wait until a child ends, in the block and after it.

    Raises:
        UpError: a child ended; the message names it.
    """

    async def watch(child: Child) -> None:
        code = await child.wait()
        raise UpError(f"{child.name} ended with code {code}; ending the rest")

    try:
        async with asyncio.TaskGroup() as group:
            for child in children:
                group.create_task(watch(child))
            yield
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


if __name__ == "__main__":
    sys.exit(main())
