"""Call a running simulator's control API, from the command line and from tests."""

from typing import Any, Self

import aiohttp

from surelane.errors import SurelaneError
from surelane_dev.simulator.workspace.model import JSON


class SimulatorError(SurelaneError):
    """The simulator does not answer, or refuses the request."""


class SimulatorClient:
    """A client for the simulator at one address."""

    def __init__(self, url: str, team: str | None = None) -> None:
        """``team``: the id of the workspace that it uses; by default the demo workspace."""
        self.url = url.rstrip("/")
        self._query = {"team": team} if team else None
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None, sock_connect=5)
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def say(self, text: str, **fields: Any) -> JSON:  # noqa: ANN401 - those of `MessageInput`
        """Write a message; return ``message`` and ``events``."""
        return await self.request("POST", "/control/messages", {"text": text, **fields})

    async def reply(self, message: JSON, timeout: float) -> JSON:
        """Wait for the bot's answer to a message. Raises SimulatorError: no answer came within ``timeout`` seconds."""
        query = f"channel={message['channel']}&ts={message['ts']}&timeout={timeout}"
        answer = await self.request("GET", f"/control/reply?{query}")
        found: JSON = answer["message"]
        return found

    async def request(self, method: str, path: str, body: JSON | None = None) -> JSON:
        """Send a request to the control API. Raises SimulatorError: the simulator does not answer, or refuses."""
        try:
            async with self._session.request(
                method, self.url + path, params=self._query, json=body
            ) as response:
                answer: JSON = await response.json()
        except (aiohttp.ClientError, OSError, ValueError) as error:
            reason = f"no simulator answers at {self.url}: {type(error).__name__}: {error}"
            raise SimulatorError(reason) from error
        if not response.ok:
            raise SimulatorError(answer.get("error", f"the simulator answered {response.status}"))
        return answer
