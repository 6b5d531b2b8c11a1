"""Long threads and long turns: a summary stands for what the model no longer gets, and it is told so."""

import pytest

from extensions.agents.tests.system.model_server import ModelServer, Reply, calls, says
from surelane.testing import Bot, Slack, assert_replied
from surelane_agents import Agent, Tools
from surelane_agents.answering import ANEW, LONGEST_QUESTION
from surelane_agents.context.thread import LONGEST_MESSAGE
from surelane_agents.models.compaction import KEPT_MESSAGES
from surelane_dev.testing.agents import agents_use
from surelane_dev.testing.slack import Sent
from surelane_worker import Handlers
from tests.system.slack_stand import fault

CALLED: list[str] = []
TOKENS = 50_000
SHORT = "earlier messages, which you do not see"


@pytest.fixture
def handlers() -> Handlers:
    tools, handlers = Tools(), Handlers()

    @tools.add
    def read(page: str) -> str:
        """Read a page."""
        CALLED.append(page)
        return f"page {page} " + "x" * 6000

    CALLED.clear()
    handlers.on("slack.app_mention", "slack.message.im")(Agent(tools=tools).turn)
    return handlers


class Thread:
    """A thread with the agent."""

    def __init__(self, slack: Slack, model: ModelServer) -> None:
        self.slack, self.model = slack, model
        self.root: Sent | None = None

    async def say(self, text: str) -> Sent:
        sent = await self.slack.mention(text, thread=self.root)
        self.root = self.root or sent
        return sent

    async def ask(self, *answers: Reply, more: str = "") -> list[str]:
        """Ask, and return what the model got before the question, at its last request."""
        plan = f"p{len(self.model.plans)}"
        self.model.plans[plan] = list(answers) or [says(f"Answer {plan}.")]
        assert_replied(await self.say(f"plan:{plan} {more}"), f"Answer {plan}.")
        return [str(each["content"]) for each in self.model.asked[plan][-1]["messages"][1:-1]]

    def others(self, count: int, text: str = "x" * 2000) -> None:
        """Let Grace write so many messages, of which the bot does not hear."""
        assert self.root is not None
        workspace, grace = self.slack.simulator.workspace, self.slack.simulator.workspace.people()[1].id
        for number in range(count):
            workspace.post(self.root.channel, grace, f"Grace {number}. {text}", thread_ts=self.root.ts)

    @property
    def summaries(self) -> list[str]:
        """Return what was to be summed up."""
        return [str(each["messages"][1]["content"]) for each in self.model.asked["summary"]]


@pytest.fixture
def thread(slack: Slack, model: ModelServer) -> Thread:
    return Thread(slack, model)


@pytest.mark.parametrize(
    "point", [None, "step summary", "in step compacted thread", "step compacted thread", "end"]
)
async def test_a_summary_stands_for_the_middle_of_a_long_thread(
    thread: Thread, bot: Bot, point: str | None
) -> None:
    await thread.ask()
    thread.others(40)
    if point is None:
        got = await thread.ask()
    else:
        with bot.killed_at(point):
            got = await thread.ask()
    (summed_up,) = thread.summaries
    grace = f"<@{thread.slack.simulator.workspace.people()[1].id}>"
    (place,) = (at for at, text in enumerate(got) if SHORT in text)
    assert "plan:p0" in got[0]
    assert "Summary 1." in got[place]
    assert grace in got[place], "an erasure of the person finds it"
    assert f"{grace}: Grace 0. " in summed_up
    assert "You: Answer p0." in summed_up
    assert "Grace 39. " in got[-1]
    assert "Grace 0. " not in "".join(got)
    assert len(got) - place - 1 <= KEPT_MESSAGES
    for _ in range(3):
        assert "Summary 1." in "".join(await thread.ask()), "the next turns go on with it"
    assert len(thread.summaries) == 1
    thread.others(40)
    got = await thread.ask()
    assert "Summary 1." in thread.summaries[1]
    assert "Summary 2." in "".join(got)
    assert "Summary 1." not in "".join(got)


async def test_a_thread_of_many_megabytes_is_bounded_and_the_model_is_told(thread: Thread) -> None:
    await thread.ask()
    thread.others(60, "y" * (2 * LONGEST_MESSAGE))
    got = await thread.ask(more="z" * (LONGEST_QUESTION + 1))
    (summed_up,) = thread.summaries
    assert "earlier messages are left out. You do not see them.)" in summed_up
    assert len(summed_up) < 165_000
    assert f"… (cut; it has {2 * LONGEST_MESSAGE + 10:,} characters)" in got[-1]
    assert " characters)" in str(thread.model.asked["p1"][0]["messages"][-1]["content"])[-40:]


async def test_people_let_the_agent_begin_anew_or_go_on_with_a_summary(thread: Thread, bot: Bot) -> None:
    await thread.ask()
    thread.others(3)
    with bot.killed_at("step summary"):
        sent = await thread.say("/compact")
    assert_replied(sent, "I go on with a summary of the 5 messages so far.")
    assert len(thread.summaries) == 1
    got = await thread.ask()
    assert "Summary 1." in got[0]
    assert "Grace 0. " not in "".join(got)
    for point in ("step thread", "end"):
        with bot.killed_at(point):
            assert_replied(await thread.say(" /new "), ANEW)
        got = await thread.ask()
        assert "Summary" not in "".join(got)
    assert "plan:" not in "".join(got)
    assert len(thread.summaries) == 1
    await thread.slack.mention("/compact")
    assert len(thread.summaries) == 1, "a message that begins a thread has nothing to sum up"


async def test_in_direct_messages_the_commands_need_no_mention(thread: Thread) -> None:
    thread.model.plans["d"] = [says("Yes.")]
    sent = await thread.slack.direct_message("plan:d first")
    assert_replied(await thread.slack.direct_message("/new", thread=sent), ANEW)
    thread.model.plans["e"] = [says("Yes.")]
    await thread.slack.direct_message("plan:e", thread=sent)
    assert "first" not in str(thread.model.asked["e"][0]["messages"])


async def test_the_model_is_told_where_the_thread_cannot_be_read(thread: Thread) -> None:
    root = await thread.slack.message("Nobody mentions the bot here.")
    thread.root = root
    thread.slack.simulator.faults.add(
        fault("refused", methods=["conversations.replies"], error="missing_scope")
    )
    (told,) = await thread.ask()
    assert "You see no earlier message of this thread" in told


READS = [calls(("read", {"page": str(number)})) for number in range(9)]


@pytest.mark.parametrize("point", [None, "step compact", "step read 7.1", "end"])
async def test_a_long_turn_is_compacted_before_its_tokens_end_it(
    thread: Thread, bot: Bot, point: str | None
) -> None:
    thread.model.counts = True
    with agents_use(model="local", model_url=thread.model.url, model_feedback=False, model_tokens=TOKENS):
        if point is None:
            await thread.ask(*READS, says("Answer p0."))
        else:
            with bot.killed_at(point):
                await thread.ask(*READS, says("Answer p0."))
    assert [str(number) for number in range(9)] == CALLED
    assert len(thread.model.asked["p0"]) == 10
    requests = [str(each["messages"]) for each in thread.model.asked["p0"]]
    assert max(map(len, requests)) < TOKENS
    assert thread.summaries
    assert "page 0 " in thread.summaries[0]
    assert "plan:p0" in thread.summaries[0]
    assert "page 0 " not in requests[-1]
    assert "page 8 " in requests[-1]
    assert f"Summary {len(thread.summaries)}." in requests[-1]
    assert "plan:p0" in requests[-1]
    (turn,) = bot.events
    spent = turn.result["usage"]
    assert spent["requests"] == 10
    assert spent["input_tokens"] <= TOKENS
