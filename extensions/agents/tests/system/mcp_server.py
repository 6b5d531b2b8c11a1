"""Serve one tool by the Model Context Protocol over standard input and output, with the standard library alone."""

import json
import os
import sys
from pathlib import Path
from typing import Any

SCHEMA = {"type": "object", "properties": {"service": {"type": "string"}}, "required": ["service"]}
LISTED = [
    {"name": "status", "description": "Say how a service is.", "inputSchema": SCHEMA},
    {"name": "restart", "description": "Restart a service.", "inputSchema": SCHEMA},
]


def answer(method: str, given: Any) -> Any:
    """Return the result of a request; ``None``: there is no such method."""
    if method == "initialize":
        about = {"name": "ops", "version": "1"}
        return {
            "protocolVersion": given["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": about,
        }
    if method == "tools/list":
        return {"tools": LISTED}
    if method == "tools/call":
        if log := os.environ.get("CALLS"):
            with Path(log).open("a") as calls:
                calls.write(f"{given['name']} {given['arguments']['service']}\n")
        if given["name"] == "status" and given["arguments"]["service"] == "none":
            return {"content": [{"type": "text", "text": "there is no such service"}], "isError": True}
        if given["arguments"]["service"] == "hangs":
            return ...
        secrets = [name for name in os.environ if name.startswith(("SURELANE", "DATABASE", "SLACK"))]
        text = f"{given['name']}: {given['arguments']['service']} {secrets}"
        return {"content": [{"type": "text", "text": text}]}
    return None


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    result = answer(message["method"], message.get("params"))
    if result is ...:
        continue
    ending = (
        {"error": {"code": -32601, "message": "no such method"}} if result is None else {"result": result}
    )
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **ending}) + "\n")
    sys.stdout.flush()
