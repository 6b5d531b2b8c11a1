"""Whether a database's schema serves services of this version."""

import re

from surelane import __version__


def unfit(version: str, min_compatible: str, ours: str = __version__) -> str | None:
    """Why a database of ``version`` does not serve services of version ``ours``, or ``None`` where it does.

    A newer database does, so that old replicas restart during a rollout, unless it says that it is too new for them.
    """
    if _release(version) < _release(ours):
        return f"the schema is of version {version}, older than {ours}: run the migrations"
    if _release(min_compatible) > _release(ours):
        return f"the schema serves version {min_compatible} and newer, not {ours}"
    return None


def _release(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+)*", version, re.ASCII)
    return tuple(int(part) for part in match[0].split(".")) if match else ()
