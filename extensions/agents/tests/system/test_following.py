"""After a mention an agent hears the thread's further messages, and Slack's Stop ends a turn: ingest, queue, worker."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any

import pytest

from extensions.agents.tests.system.model_server import (
    OURS,
    TOOLS,
    Reply,
    calls,
    model_server,
    says,
    settings,
)
from extensions.agents.tests.system.test_edits import KEYS, Talk, talking
from surelane.calls import Connection
from surelane_agents.reply.session import REASON
from surelane_dev.simulator.posting.events import envelope
from surelane_dev.simulator.workspace.model import Message
from tests.processes import until
from tests.system.ingest_client import served
from tests.system.slack_stand import Person, private, shown, slack_stand
from tests.system.worker import ended, suspended, worker

TYPES = frozenset({"app_mention", "message.im", "message.channels", "agent_session_stopped"})
INGESTS: dict[str, Any] = {"event_types": TYPES}
SEALED = {name.removeprefix("SURELANE_").lower(): value for name, value in KEYS.items()}
MANY = 300


class Thread:
    """A thread of a channel, where people write to the agent and to each other."""

    def __init__(self, talk: Talk) -> None:
        self.talk, self.slack, self.model = talk, talk.slack, talk.model
        self.connection = talk.connection
        self.root: Message | None = None

    @property
    def requests(self) -> list[str]:
        """The plans that the model was asked for, by request."""
        return [plan for plan, asked in self.model.asked.items() for _ in asked]

    @property
    def answers(self) -> list[str]:
        assert self.root is not None
        found = [each for each in self.slack.replies(self.root) if each.by_app and not each.visible_to]
        return [shown(each) for each in found if not each.only_tasks]

    @property
    def session(self) -> tuple[str, str] | None:
        """The status and the title of the thread's agent session."""
        assert self.root is not None
        found = self.slack.simulator.sessions.find(self.root.channel, self.root.ts)
        return None if found is None else (found.status, found.title)

    def post(self, text: str, name: str = "ada") -> Message:
        """Let a person write, in the thread if there is one."""
        workspace, thread = self.slack.simulator.workspace, self.root.ts if self.root else None
        for each in ("ada", "grace", "katherine"):
            text = text.replace(f"@{each}", f"<@{self.slack.user(each).id}>")
        text = text.replace("@bot", f"<@{workspace.bot.id}>")
        return workspace.post(self.slack.room(), self.slack.user(name).id, text, thread_ts=thread)

    async def write(self, text: str, name: str = "ada", *, wait: bool = True) -> Message:
        """Let a person write, and wait until nothing is left to do."""
        with self.talk.heard() as reported:
            message = self.post(text, name)
        await self.talk.report(reported)
        self.root = self.root or message
        if wait:
            await self.idle()
        return message

    async def said(self, *names: str) -> None:
        """Let the model answer further messages of the thread with their plans' names."""
        self.model.plans |= {name: [says(f"{name}!")] for name in names}

    async def idle(self) -> None:
        live = "select id from agent.event where vt < 'infinity' limit 1"
        while (identity := await self.connection.fetchval(live)) is not None:
            await ended(self.connection, identity)

    async def identity(self, message: Message) -> int:
        """Return the id of the event of a message."""
        found = "select id from agent.job where payload->'event'->>'ts' = $1"
        identity: int = await self.connection.fetchval(found, message.ts)
        return identity

    async def why(self, message: Message) -> Any:
        """Return why a message was not for the agent; ``None``: it was."""
        told = "select result ->> 'unhandled' from agent.event_hist where event->'event'->>'ts' = $1"
        return await self.connection.fetchval(told, message.ts)

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Check that the block asks neither the model nor Slack."""
        asked = self.requests
        self.slack.simulator.api.calls.clear()
        yield
        assert (self.requests, self.slack.calls()) == (asked, [])

    async def press_stop(self, *streams: Message, name: str = "grace") -> None:
        """Let a person press Slack's Stop: it ends the streams, and tells the app."""
        assert self.root is not None
        workspace = self.slack.simulator.workspace
        for message in streams:
            workspace.stream(message, "", ended=True)
        where = {"channel": self.root.channel, "thread_ts": self.root.ts}
        inner: dict[str, Any] = {"type": "agent_session_stopped", "user": self.slack.user(name).id, **where}
        inner["event_ts"] = workspace.next_ts()
        inner["streaming_message_ts"] = [each.ts for each in streams]
        await self.talk.report([envelope(workspace, inner)])


@asynccontextmanager
async def thread_of(
    database: str, connection: Connection, ingests: dict[str, Any] | None = None, **more: str
) -> AsyncIterator[Thread]:
    async with talking(database, connection, INGESTS | (ingests or {}), **more) as talk:
        yield Thread(talk)


async def test_after_a_mention_it_hears_the_thread_until_it_is_told_to_stop(
    database: str, connection: Connection
) -> None:
    async with thread_of(database, connection) as thread:
        names = ("one", "two", "three", "four", "five", "six")
        await thread.said(*names)
        with thread.silent():  # nobody has named it
            first = await thread.write("plan:never", "grace")
            reply = await thread.write("plan:never")
        assert await thread.why(first) == "it does not name the agent"
        assert await thread.why(reply) == "the agent does not follow its thread"
        thread.root = None
        await thread.write("@bot plan:one")
        await thread.write("plan:two")
        await thread.write("plan:three", "grace")
        with thread.silent():
            asked = await thread.write("@grace what do you think of plan:never?")
            reply = await thread.write("I like plan:never.", "grace")
            thanks = await thread.write("Thanks, plan:never")
        assert await thread.why(asked) == "it is for somebody else"
        assert [await thread.why(each) for each in (reply, thanks)] == ["people talk with each other"] * 2
        await thread.write("plan:four", "katherine")  # a third person ends their talk
        await thread.write("plan:five")
        await thread.write("Stop!", "grace")
        with thread.silent():
            assert await thread.why(await thread.write("plan:never"))
        await thread.write("@bot plan:six")
        assert (thread.requests, thread.answers) == ([*names], [f"{name}!" for name in names])


async def test_a_channel_says_by_a_rule_that_mentions_alone_count_and_so_does_a_setting(
    database: str, connection: Connection
) -> None:
    rule = "select agent.set_rule($1, 1, $2, '{\"text\": \"Mention only.\"}', 'U1')"
    async with thread_of(database, connection) as thread:
        await thread.said("one", "two")
        await thread.write("@bot plan:one")
        workspace = thread.slack.simulator.workspace
        await connection.fetchval(rule, workspace.team_id, thread.slack.room().id)
        with thread.silent():
            assert await thread.why(await thread.write("plan:never")) == "a rule says: mention only"
        await connection.fetchval(
            "select agent.drop_rule($1, $2, 1)", workspace.team_id, thread.slack.room().id
        )
        # Nor does it follow a thread in which it was silent for a day.
        day = timedelta(hours=24, seconds=1)
        await connection.execute("update agent.event_hist set event_ts = event_ts - $1::interval", day)
        with thread.silent():
            assert await thread.why(await thread.write("plan:never"))
        assert thread.requests == ["one"]
    async with thread_of(database, connection, SURELANE_MODEL_FOLLOW="mention") as thread:
        await thread.said("one", "two")
        await thread.write("@bot plan:one")
        with thread.silent():
            await thread.write("plan:never")
        await thread.write("@bot plan:two")
        assert thread.answers == ["one!", "two!"]


async def test_who_may_not_use_it_gets_no_refusal_of_what_was_not_for_it(
    database: str, connection: Connection
) -> None:
    """Events are encrypted: what decides is read all the same."""
    only = {"SURELANE_MODEL_ALLOW": "U00000000", **KEYS}
    async with thread_of(database, connection, SEALED, **only) as thread:
        ada = thread.slack.user("ada").id
    async with thread_of(database, connection, SEALED, **only | {"SURELANE_MODEL_ALLOW": ada}) as thread:
        await thread.said("one", "two")
        root = await thread.write("@bot plan:one")
        await thread.write("plan:never", "grace")
        assert private(thread.slack, root) == []
        await thread.write("plan:two")
        await thread.write("@bot plan:never", "grace")
        assert len(private(thread.slack, root)) == 1
        assert (thread.requests, thread.answers[:2]) == (["one", "two"], ["one!", "two!"])


@pytest.mark.slow
async def test_a_further_encrypted_message_joins_the_turn_that_runs(
    database: str, connection: Connection
) -> None:
    """In processes of their own. What else holds is in kit/test_steering.py."""
    async with thread_of(database, connection, SEALED, SURELANE_MODEL_TOOLS=TOOLS, **KEYS) as thread:
        pause = asyncio.Event()
        asks = Reply(calls=[("weather", {"city": "Bremen"})], pause=pause)
        thread.model.plans["one"] = [asks, says("one!")]
        await thread.write("@bot plan:one", wait=False)
        await thread.talk.asked("one")
        further = await thread.write("only for March", wait=False)
        pause.set()
        await thread.idle()
        assert str(thread.model.asked["one"][-1]["messages"][-1]["content"]).endswith(": only for March")
        assert thread.answers == ["one!"]
        row = await ended(connection, await thread.identity(further))
        assert (row["outcome"], list(further.reactions)) == ("completed", ["eyes"])


async def test_messages_in_silent_channels_ask_neither_the_model_nor_slack(
    database: str, connection: Connection
) -> None:
    async with thread_of(database, connection) as thread:
        with thread.silent(), thread.talk.heard() as reported:
            for number in range(MANY):
                thread.root = None if number % 10 == 0 else thread.root
                message = thread.post(f"plan:never {number}", ("ada", "grace")[number % 2])
                thread.root = thread.root or message
        with thread.silent():
            for each in reported:
                await thread.talk.report([each])
            await thread.idle()
        ends = "select count(*) from agent.event_hist where outcome = 'completed' and result ? 'unhandled'"
        assert await connection.fetchval(ends) == MANY
        assert await connection.fetchval("select count(*) from agent.step") == 0


@pytest.mark.parametrize("at", ["asked", "tool", "said"])
async def test_a_followed_message_is_answered_once_although_the_worker_is_killed(
    database: str, connection: Connection, at: str
) -> None:
    """Killed while the model answers, while a tool runs, and before the answer's end is stored."""
    pause = asyncio.Event()
    async with (
        model_server() as model,
        slack_stand(connection) as slack,
        served(database, **INGESTS) as ingest,
    ):
        talk = Talk(slack, ingest.slack, model, connection)
        thread = Thread(talk)
        given = settings(model, slack, **OURS | {"SURELANE_HANDLERS": "surelane_worker.builtin:handlers"})
        await thread.said("one")
        tool = calls(("weather", {"city": "Bremen"}))
        cut, whole = says("two", "!", pause=pause), says("two", "!")
        plans: dict[str, list[Reply | list[Reply]]] = {"asked": [[cut, whole]], "tool": [tool, whole]}
        model.plans["two"] = plans.get(at, [tool, [cut, whole]])
        async with worker(database, SURELANE_LEASE="2s", **given) as first:
            await thread.write("@bot plan:one")
            message = await thread.write("plan:two", wait=False)
            await talk.asked("two", 2 if at == "said" else 1)
            if at == "tool":
                await until(lambda: len(model.asked["two"]) == 2, what="the tool's result")
            first.child.kill()
            await first.child.wait()
            # What decided is gone by now: a turn that has begun goes on.
            await connection.fetchval(
                "select agent.set_rule($1, 1, $2, '{\"text\": \"mention only\"}', 'U1')",
                slack.simulator.workspace.team_id,
                slack.room().id,
            )
        async with worker(database, SURELANE_LEASE="2s", **given):
            await thread.idle()
        pause.set()
        assert await thread.why(message) is None
        assert thread.answers == ["one!", "two!"]
        assert len(model.asked["two"]) <= 3
        assert thread.session == ("closed", "plan:one")


async def test_stop_ends_the_turn_now_and_what_was_said_stays(database: str, connection: Connection) -> None:
    async with thread_of(database, connection) as thread:
        reply, pause = Reply(text=("Half of it. ", "Never.")), asyncio.Event()
        thread.model.plans["long"] = [Reply(text=reply.text, pause=pause)]
        await thread.said("again")
        asked = await thread.write("@bot plan:long", wait=False)
        await until(lambda: thread.answers == ["Half of it. "], what="the first part")
        assert thread.session == ("processing", "plan:long")
        (stream,) = thread.slack.replies(asked)
        await thread.press_stop(stream)
        await thread.idle()
        pause.set()
        row = await ended(connection, await thread.identity(asked))
        grace = thread.slack.user("grace").id
        assert (row["outcome"], row["reason"]) == (
            "cancelled",
            f"cancelled while running by {grace}: {REASON}",
        )
        assert thread.answers == ["Half of it. ", f"Stopped by <@{grace}>."]
        assert thread.session == ("closed", "plan:long")
        with thread.silent():  # it is told to stop
            await thread.write("plan:never")
        await thread.press_stop()  # nothing runs
        await thread.idle()
        await thread.write("@bot plan:again")
        assert (thread.requests, thread.answers[2:]) == (["long", "again"], ["again!"])


async def test_a_session_is_suspended_while_a_person_is_asked_and_closed_whatever_ends_the_turn(
    database: str, connection: Connection
) -> None:
    async with thread_of(database, connection, SURELANE_MODEL_TOOLS=TOOLS) as thread:
        ask = calls(("deploy", {"service": "web"}))
        thread.model.plans |= {"ask": [ask, says("Done.")], "cancelled": [ask]}
        asked = await thread.write("@bot plan:ask", wait=False)
        await until(lambda: thread.session == ("suspended", "plan:ask"), what="the suspended session")
        await suspended(connection, identity := await thread.identity(asked))
        question = next(each for each in thread.slack.replies(asked) if each.blocks and not each.only_tasks)
        await Person(thread.slack, "grace").press(question)
        await ended(connection, identity)
        assert thread.session == ("closed", "plan:ask")
        assert thread.answers[-1] == "Done."
        asked = await thread.write("plan:cancelled", wait=False)
        await until(lambda: thread.session == ("suspended", "plan:ask"), what="the suspended session")
        await suspended(connection, identity := await thread.identity(asked))
        await connection.fetchval("select agent.cancel_job($1)", identity)
        await until(lambda: thread.session == ("closed", "plan:ask"), what="the closed session")


async def test_where_slack_takes_no_session_the_turn_goes_on_and_shows_that_it_thinks(
    database: str, connection: Connection
) -> None:
    async with thread_of(database, connection) as thread:
        await thread.said("one")
        thread.slack.fail("refused", "agents.sessions.setStatus")
        await thread.write("@bot plan:one")
        methods = ("agents.sessions.setStatus", "assistant.threads.setStatus")
        assert thread.slack.calls(*methods) == [*methods]
        assert (thread.answers, thread.session) == (["one!"], None)
