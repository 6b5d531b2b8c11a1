"""Take all connections of a PostgreSQL server, other programs' too, and keep them. This runs in a container.

python fill.py SECONDS postgresql://postgres:…@db/surelane
"""

import asyncio
import sys
import time

import asyncpg

CUT = "select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'surelane-%'"
AT_ONCE = 8


async def grab(dsn: str, held: list["asyncpg.Connection[asyncpg.Record]"], until: float) -> None:
    """Take one connection after another. Take others' too, once they are released."""
    while time.monotonic() < until:
        try:
            held.append(await asyncpg.connect(dsn, timeout=5))
        except (asyncpg.TooManyConnectionsError, OSError, TimeoutError):
            await asyncio.sleep(0.01)


async def cut(held: list["asyncpg.Connection[asyncpg.Record]"], until: float) -> None:
    """End the services' connections, so that they need new ones."""
    while time.monotonic() < until:
        if held:
            await held[0].execute(CUT)
        await asyncio.sleep(0.5)  # the rate of the cuts


async def main(seconds: float, dsn: str) -> None:
    """Keep them for a number of seconds. The end of the process releases them."""
    held: list[asyncpg.Connection[asyncpg.Record]] = []
    until = time.monotonic() + seconds
    await asyncio.gather(*(grab(dsn, held, until) for _ in range(AT_ONCE)), cut(held, until))
    print(len(held))  # noqa: T201 - for who started it


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]), sys.argv[2]))
