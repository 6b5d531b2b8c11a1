"""Further messages join the turn that runs in their thread. Each joins or is answered, once, although workers die."""

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from extensions.agents.tests.system.model_server import ModelServer, Reply, calls, says
from surelane.testing import Bot, Slack
from surelane_agents import Agent, Tools
from surelane_agents.errors import REFUSED
from surelane_agents.people.steering import MOST_CHARACTERS, MOST_JOINED
from surelane_dev.simulator.workspace.model import Channel, Message
from surelane_dev.testing.agents import agents_use
from surelane_dev.testing.story import Story
from surelane_worker import Handlers
from tests.processes import until

KINDS = "slack.app_mention", "slack.message.channels", "slack.message.im"
SPENT = calls(("spent", {"month": "all"}))
STORE = "step joined 3"
"""The first mention is stored once, and reported twice."""
CALLED: list[str] = []


def refuse(what: str, text: str) -> str | None:
    return "Please ask kindly." if "rude" in text and what == "question" else None


@pytest.fixture
def handlers() -> Handlers:
    tools, handlers = Tools(), Handlers()

    @tools.add
    def spent(month: str) -> int:
        """Say what was spent."""
        CALLED.append(month)
        return 17

    @tools.add(approval=True)
    def pay(amount: int) -> str:
        """Pay."""
        return f"{amount} paid"

    CALLED.clear()
    handlers.on(*KINDS)(Agent(tools=tools, guard=refuse).turn)
    return handlers


class Talk:
    """A thread in which people go on writing while the agent's turn runs."""

    def __init__(self, slack: Slack, model: ModelServer, bot: Bot) -> None:
        self.slack, self.model, self.bot = slack, model, bot
        self.root: Message | None = None
        self.said: list[Message] = []
        model.plans["own"] = [says("Own.")]

    def story(self, message: Message) -> Story | None:
        return next((each for each in self.bot.events if each.payload["event"].get("ts") == message.ts), None)

    async def post(
        self, text: str, user: str = "ada", *, room: Channel | None = None, top: bool = False, **fields: Any
    ) -> None:
        """Write in the thread, or at the top, and wait until that is stored."""
        workspace = self.slack.simulator.workspace
        person = next(each for each in workspace.people() if each.name == user)
        thread = None if top or self.root is None else self.root.ts
        text = text.replace("@bot", f"<@{workspace.bot.id}>")
        where = room or workspace.channel("general")
        assert where is not None
        message = workspace.post(where, person.id, text, thread_ts=thread, **fields)
        self.root = self.root or message
        self.said.append(message)
        await until(lambda: self.story(message) is not None, what=f"the event of {text!r}")

    async def turn(
        self,
        *replies: Any,
        said: Sequence[str],
        by: str = "ada",
        at: int = 1,
        room: Channel | None = None,
        **how: Any,
    ) -> None:
        """Let Ada ask, and somebody write while the model makes its response ``at``; wait for the end of all."""
        pause, plan = asyncio.Event(), list[Reply | list[Reply]](replies)
        plan[at - 1] = replace(replies[at - 1], pause=pause)
        self.model.plans["year"] = plan
        await self.post("@bot plan:year" if room is None else "plan:year", room=room)
        await until(lambda: len(self.model.asked["year"]) >= at, what=f"request {at}")
        for text in said:
            await self.post(text, by, room=room, **how)
        pause.set()
        await self.bot.idle()

    def texts(self, request: int = -1, plan: str = "year") -> list[str]:
        """Return what people said after the question, in a request to the model."""
        messages = self.model.asked[plan][request]["messages"]
        said = [str(each["content"]).partition(": ")[2] for each in messages if each["role"] == "user"]
        return said[1 + max(at for at, text in enumerate(said) if "plan:" in text) :]

    @property
    def results(self) -> list[dict[str, Any]]:
        """The results of the further messages."""
        found = [story for each in self.said[1:] if (story := self.story(each)) is not None]
        assert [each.state for each in found] == ["completed"] * len(self.said[1:]), found
        return [each.result for each in found]

    @property
    def joined(self) -> list[bool]:
        turn = self.story(self.said[0])
        assert turn is not None
        return [each.get("joined") == turn.key for each in self.results]

    @property
    def marks(self) -> list[list[str]]:
        return [list(each.reactions) for each in self.said[1:]]

    @property
    def answers(self) -> list[str]:
        found = self.slack.messages("general")
        return [each.text for each in found if each.by_app and not each.only_tasks]


@pytest.fixture
def talk(slack: Slack, model: ModelServer, bot: Bot) -> Talk:
    return Talk(slack, model, bot)


@pytest.mark.parametrize(
    ("point", "requests"),
    [
        (None, 2),
        (STORE, 2),
        pytest.param("step model", 2, marks=pytest.mark.slow),
        pytest.param("step spent 1.1", 2, marks=pytest.mark.slow),
        pytest.param(f"in {STORE}", 2, marks=pytest.mark.slow),
        # The response is not stored, so the next attempt does not know it.
        pytest.param("in step model (2)", 3, marks=pytest.mark.slow),
        pytest.param("step model (2)", 2, marks=pytest.mark.slow),
        pytest.param("end", 2, marks=pytest.mark.slow),
    ],
)
async def test_killed_at_each_boundary_a_message_joins_once(
    talk: Talk, point: str | None, requests: int
) -> None:
    with nullcontext() if point is None else talk.bot.killed_at(point):
        await talk.turn(SPENT, says("17."), said=["wait, only for March"])
    assert talk.texts(0) == []
    assert [talk.texts(at) for at in range(1, requests)] == [["wait, only for March"]] * (requests - 1)
    assert (talk.joined, talk.marks, len(CALLED)) == ([True], [["eyes"]], 1)
    assert (len(talk.model.asked["year"]), talk.answers) == (requests, ["17."])
    await talk.post("@bot plan:own")
    await talk.bot.idle()
    said = str(talk.model.asked["own"][0]["messages"])
    assert said.index("plan:year") < said.index("only for March") < said.index("'17.'")


OTHERS = {"by": "grace"}
LONG = "x" * (MOST_CHARACTERS // 2)
FILE = {"files": [{"id": "F1", "name": "a.txt"}]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("said", "joined", "how"),
    [
        (["plan:own"], [False], {"at": 2}),  # the turn ends at that moment
        (["for March", "@bot in euros"], [True, True], {}),
        (["plan:own"], [False], OTHERS),
        (["for March"], [True], OTHERS | {"steering": "everyone"}),
        (["plan:own"], [False], {"steering": "off"}),
        (["plan:own"], [False], FILE),
        (["/compact"], [False], {}),
        (["<@U0GRACE00> for March"], [False], {"steering": "everyone"}),  # it is for her
        ([str(each) for each in range(MOST_JOINED)] + ["plan:own"], [True] * MOST_JOINED + [False], {}),
        ([LONG, LONG, "plan:own"], [True, True, False], {}),
        (["please be rude", "for March"], [True, True], {}),
    ],
)
async def test_what_joins_is_bounded_and_what_does_not_has_a_turn_of_its_own(
    talk: Talk, said: list[str], joined: list[bool], how: dict[str, Any]
) -> None:
    given = {"model_steering": how.pop("steering")} if "steering" in how else {}
    with agents_use(model="local", model_url=talk.model.url, model_feedback=False, **given):
        await talk.turn(SPENT, says("17."), said=said, **how)
    assert talk.joined == joined
    assert talk.marks == [["eyes"] if each else [] for each in joined]
    guarded = "please be rude" in said
    assert len(talk.model.asked["year"]) == (1 if guarded else 2)
    if not guarded:
        text = [each.replace("@bot", talk.said[0].text.split()[0]) for each in said]
        assert talk.texts() == [each for each, joins in zip(text, joined, strict=True) if joins]
    assert talk.answers[0] == ("Please ask kindly." if guarded else "17.")
    own = {"plan:own": ["Own."], "/compact": ["I go on with a summary of the 2 messages so far."]}
    assert talk.answers[1:] == own.get(said[-1], [])


@pytest.mark.slow
@pytest.mark.parametrize("point", [None, "step joined 4", "end"])
async def test_stop_ends_the_turn_at_its_next_request(talk: Talk, point: str | None) -> None:
    with nullcontext() if point is None else talk.bot.killed_at(point):
        await talk.turn(SPENT, says("Never."), said=["for March", "Stop!"])
    ada = talk.said[0].user
    assert (talk.answers, talk.marks) == ([f"Stopped by <@{ada}>."], [["eyes"], ["ok_hand"]])
    assert (len(talk.model.asked["year"]), talk.joined[0]) == (1, True)
    assert talk.results[1]["stopped"] == "by a person"


@pytest.mark.slow
@pytest.mark.parametrize("top", [False, True])
@pytest.mark.parametrize("late", [False, True])
async def test_in_direct_messages_replies_and_new_messages_join(talk: Talk, top: bool, late: bool) -> None:
    room = talk.slack.simulator.workspace.direct_messages(talk.slack.simulator.workspace.people()[0].id)
    said = ["plan:own" if late else "only for March"]
    await talk.turn(SPENT, says("17."), said=said, room=room, top=top, at=2 if late else 1)
    await talk.bot.advance("2s")
    assert (talk.joined, talk.marks) == ([not late], [[] if late else ["eyes"]])
    assert talk.texts() == ([] if late else said)
    assert len(talk.model.asked["own"]) == late


@pytest.mark.slow
async def test_of_a_turn_that_fails_each_message_is_answered_for_itself(talk: Talk) -> None:
    await talk.turn(SPENT, [Reply(status=400), says("17.")], said=["only for March"])
    assert (talk.joined, talk.marks, talk.answers) == ([False], [["eyes"]], [REFUSED, "17."])
