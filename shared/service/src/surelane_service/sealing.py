"""What of an event's outcome and steps people wrote: it is sealed before it is stored, and opened when it is read."""

import json
import re
from collections.abc import Mapping
from typing import Any

from surelane.codec import ENCRYPTED, ERROR, RESULT, Codec, Location

_WORD = re.compile(r"[a-z_]{1,60}")
"""A reason that a program gave. It stays in the clear."""


async def sealed_argument(codec: Codec, identity: int, outcome: str, argument: str) -> str:
    """Return the argument of an outcome, JSON text, as it is stored (see ``agent.settle``)."""
    if outcome == "complete":
        return await codec.seal(argument, Location(identity, RESULT))
    if outcome not in ("fail", "fan_out", "coalesce"):
        return argument
    given = json.loads(argument)
    if outcome == "fail":
        if given["error"] is not None:
            given["error"] = await codec.seal_error(given["error"], Location(identity, ERROR))
        given["reason"] = _reason(given.get("reason"))
    elif outcome == "fan_out":
        for job in (*given["children"], given["continuation"]):
            job["payload"] = await codec.seal_payload(job["payload"], of=identity)
        if given["result"] is not None:
            result = await codec.seal(json.dumps(given["result"]), Location(identity, RESULT))
            given["result"] = json.loads(result)
    elif given["argument"] is not None:
        inside = await sealed_argument(codec, identity, given["outcome"], json.dumps(given["argument"]))
        given["argument"] = json.loads(inside)
    return json.dumps(given)


async def opened_end(codec: Codec, end: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return how a child ended: the value of the signal that its parent took."""
    child: int = end["id"]
    error = end["error"] and await codec.show(end["error"], Location(child, ERROR))
    result = json.loads(await codec.open(json.dumps(end["result"]), Location(child, RESULT)))
    return {**end, "result": result, "error": error or None}


def _reason(given: str | None) -> str | None:
    """Return a reason for history: a program's word as it is, and free words not."""
    return given if given is None or _WORD.fullmatch(given) else ENCRYPTED
