"""An ``App`` whose listeners fail and die where a test wants it."""

import os
import time
from typing import Any

from slack_bolt import App

from extensions.bolt.tests.system.apps.listeners import Failing, Listener, synchronous

app = App(token=os.environ["SLACK_BOT_TOKEN"])


def call(function: Listener, **given: Any) -> Any:
    return function(**given)


class Synchronous(Failing):
    """Makes calls with a query of any value, too. Slack-sdk's asynchronous client refuses them."""

    async def mentioned(self, event: dict[str, Any], say: Any, client: Any) -> None:
        if "odd" in event["text"]:
            query = {"channel": event["channel"], "timestamp": event["ts"], "name": Exception("odd")}
            client.api_call("reactions.add", params=query)
            client.api_call("reactions.remove", data=query | {"name": b"odd"})
        await super().mentioned(event, say, client)


Synchronous(app, time.sleep, call, synchronous)
