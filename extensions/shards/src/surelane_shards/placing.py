"""Which installation gets a new workspace: the one that has the fewest."""

import asyncio
from collections.abc import Iterator, Mapping

from surelane_operator.doctor.server import connected

_INSTALLED = "select distinct split_part(owner_id, ' ', 1) from agent.installation where not enterprise_wide"


async def read_workspaces(shards: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the workspaces of each installation. The URIs are those of the schemas' owners."""

    async def read(uri: str) -> list[str]:
        async with connected(uri) as connection:
            return [str(row[0]) for row in await connection.fetch(_INSTALLED)]

    return dict(zip(shards, await asyncio.gather(*map(read, shards.values())), strict=True))


def place(has: Mapping[str, list[str]], placed: set[str]) -> Iterator[tuple[str, str, str]]:
    """Yield each workspace that has no place yet, the installation that has it, and the one that gets it.

    A workspace stays where it is unless another installation has fewer, also with it.
    """
    counts = {name: len(teams) for name, teams in has.items()}
    for source, teams in has.items():
        for team in sorted(set(teams) - placed):
            fewest = min(counts, key=counts.__getitem__)
            target = fewest if counts[fewest] + 1 < counts[source] else source
            counts[source] -= 1
            counts[target] += 1
            yield team, source, target
