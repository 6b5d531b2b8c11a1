"""An ``AsyncApp`` whose listeners fail and die where a test wants it."""

import asyncio
import os

from slack_bolt.async_app import AsyncApp

from extensions.bolt.tests.system.apps.listeners import Failing

app = AsyncApp(token=os.environ["SLACK_BOT_TOKEN"])
Failing(app, asyncio.sleep, asyncio.to_thread)
