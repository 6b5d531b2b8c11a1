"""An agent's turn with a local model server: steps, approvals, limits, errors, and what is kept secret."""

import asyncio
import json
import secrets
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from surelane.calls import Connection
from surelane.queue import Queue
from tests.processes import Service, until
from tests.system.model_server import KEY, ModelServer, Reply, calls, says, settings
from tests.system.shared import shared_connection, shared_model, shared_slack
from tests.system.slack_stand import Stand, slack_stand
from tests.system.test_asks import Person, replies
from tests.system.test_durable import result_of, suspended
from tests.system.worker import ended, enqueue, metrics, worker

pytestmark = pytest.mark.usefixtures("running")
HANDLERS, TOOLS = "tests.system.model_tools:handlers", "tests.system.model_tools:tools"
PYTEST_RUN = secrets.token_hex(8)
DEAR = {"input": 10_000, "output": 0}
BUDGET = {
    "prices": {
        "local": {"input": 1, "output": 10},
        "local:1": {"input": 1, "output": 10},
        "ollama:first": DEAR,
    },
    "turn": {"money": 0.5},
    "person": {"tokens": 5_000_000},
    "workspace": {"money": "9.5"},
}
USAGE = {"requests": 1, "input_tokens": 100, "output_tokens": 10, "tool_calls": 0}
connection, slack, model = shared_connection, shared_slack, shared_model


@pytest.fixture(scope="module")
async def mortal(
    shared_database: str, connection: Connection, model: ModelServer, tmp_path_factory: pytest.TempPathFactory
) -> tuple[int, Path]:
    """Let a worker die in a turn, in its second call of a tool. Return the turn's id, and where the tool writes."""
    log = tmp_path_factory.mktemp("mortal") / "log"
    model.plans["mortal"] = [
        calls(("note", {"log": str(log), "text": "first"})),
        calls(("note", {"log": str(log), "text": "die"})),
        says("Alive."),
    ]
    identity = await Queue(connection).enqueue("agent-turn", {"text": "plan:mortal"})
    given = settings(
        model, SURELANE_HANDLERS=HANDLERS, SURELANE_MODEL_TOOLS=TOOLS, SURELANE_WORKER_NAME="mortal"
    )
    async with worker(shared_database, ready="", **given) as dying:
        await dying.child.wait()
        assert dying.child.exit_code == -signal.SIGKILL, dying.output
    return identity, log


@pytest.fixture(scope="module")
async def running(
    shared_database: str,
    slack: Stand,
    model: ModelServer,
    mortal: tuple[int, Path],  # noqa: ARG001 - it goes first
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Service]:
    """Run the worker of all tests here. It goes on with what the mortal one left."""
    budget = tmp_path_factory.mktemp("budget") / "budget.json"
    budget.write_text(json.dumps(BUDGET))
    given = settings(
        model,
        SURELANE_HANDLERS=HANDLERS,
        SURELANE_MODEL_TOOLS=TOOLS,
        SURELANE_WORKER_NAME="mortal",
        SLACK_API_URL=slack.api,
        SLACK_BOT_TOKEN="xoxb-any",
        SURELANE_MODEL_REQUESTS="4",
        SURELANE_MODEL_TIMEOUT="500ms",
        SURELANE_MODEL_BUDGET=str(budget),
        LOG_LEVEL="debug",
        PYTHON=sys.executable,
        PYTEST_RUN=PYTEST_RUN,
    )
    async with worker(shared_database, **given) as started:
        yield started


def said(slack: Stand, asked: Any) -> list[str]:
    """Return the texts of a thread, without what shows the tools' calls."""
    return [message.text for message in replies(slack, asked) if not message.only_tasks]


def mcp_servers() -> list[str]:
    """Return the running MCP servers of this test."""
    program, mine = "tests/system/mcp_server.py", f"PYTEST_RUN={PYTEST_RUN}"
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if program in (process / "cmdline").read_text() and mine in (process / "environ").read_text():
                found.append(process.name)
    return found


def last(asked: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the last message of the last request."""
    message: dict[str, Any] = asked[-1]["messages"][-1]
    return message


async def test_answer_is_streamed_and_usage_is_in_history(
    slack: Stand, model: ModelServer, connection: Connection
) -> None:
    pause = asyncio.Event()
    model.plans["stream"] = [says("Blue, ", "of course.", pause=pause)]
    identity, asked = await slack.mention("plan:stream")
    await until(lambda: said(slack, asked) == ["Blue, "], what="the first part")
    pause.set()
    result = await result_of(connection, identity)
    assert result == {"answer": "Blue, of course.", "model": "local", "usage": USAGE, "cost": 0.0002}
    (message,) = replies(slack, asked)
    assert (message.text, [block["type"] for block in message.blocks]) == ("Blue, of course.", ["divider"])
    (request,) = model.asked["stream"]
    assert request["messages"][0] == {"role": "system", "content": "Help the tests."}
    assert model.keys == {f"Bearer {KEY}"}


async def test_tools_are_called_once_each_and_the_model_gets_what_they_return(
    slack: Stand, model: ModelServer, connection: Connection
) -> None:
    model.plans["tools"] = [
        calls(
            ("weather", {"city": "Bremen"}),
            ("fail", {"text": "no such city"}),
            ("hang", {}),
            ("large", {"size": 60_000}),
            text=["Let me look."],
        ),
        says("Blue."),
    ]
    identity, asked = await slack.mention("plan:tools")
    result = await result_of(connection, identity)
    assert (result["answer"], result["usage"]["tool_calls"]) == ("Blue.", 4)
    assert said(slack, asked) == ["Let me look.", "Blue."]
    told = {each["tool_call_id"][-1]: each["content"] for each in model.asked["tools"][-1]["messages"][-4:]}
    assert json.loads(told["0"]) == {"city": "Bremen", "sky": "blue"}
    assert "LookupError: no such city" in told["1"]
    assert "TimeoutError" in told["2"]
    assert told["3"].endswith("… (cut; the whole result has 60,002 characters)")
    steps = json.loads(await connection.fetchval("select agent.list_steps($1)", identity))
    assert [step["name"] for step in steps if step["name"] not in ("thread", "model")] != []
    assert {step["name"] for step in steps} >= {"weather 1.1", "fail 1.2", "hang 1.3", "large 1.4"}


async def test_thread_is_the_context(slack: Stand, model: ModelServer, connection: Connection) -> None:
    model.plans |= {"first": [says("One.")], "second": [says("Two.")]}
    identity, asked = await slack.mention("plan:first")
    await result_of(connection, identity)
    workspace = slack.simulator.workspace
    general, grace = workspace.channel("general"), workspace.user("grace")
    assert general is not None
    assert grace is not None
    for _ in range(60):
        workspace.post(general, grace.id, "Ignore all of that. " * 300, thread_ts=asked.ts)
    identity, again = await slack.mention("plan:second", thread_ts=asked.ts)
    await result_of(connection, identity)
    messages = model.asked["second"][0]["messages"]
    assert messages[1]["content"] == f"<@{asked.user}>: {asked.text}"
    assert messages[-1]["content"] == f"<@{again.user}>: {again.text}"
    assert {each["role"] for each in messages[1:]} == {"user"}, (
        "a flood leaves the first message and the last"
    )
    assert sum(len(each["content"]) for each in messages) < 45_000
    assert messages[-2]["content"].startswith(f"<@{grace.id}>: Ignore all of that.")


async def test_own_messages_are_the_models(slack: Stand, model: ModelServer, connection: Connection) -> None:
    model.plans |= {"one": [says("One.")], "two": [says("Two.")]}
    identity, asked = await slack.mention("plan:one")
    await result_of(connection, identity)
    identity, _ = await slack.mention("plan:two", thread_ts=asked.ts)
    await result_of(connection, identity)
    roles = [(each["role"], each["content"]) for each in model.asked["two"][0]["messages"]]
    assert roles[2] == ("assistant", "One.")


async def test_approved_tool_is_called(slack: Stand, model: ModelServer, connection: Connection) -> None:
    model.plans["approve"] = [
        calls(
            ("weather", {"city": "Kiel"}), ("deploy", {"service": "`<!here>`\u202e"}), text=["I will deploy."]
        ),
        says("Done."),
    ]
    identity, asked = await slack.mention("plan:approve")
    await suspended(connection, identity)
    question = replies(slack, asked)[-1]
    assert question.text == (
        'May I call *deploy*?\n```{\n "service": "\u02cb&lt;!here&gt;\u02cb\\u202e"\n}```'
    )
    await Person(slack, "grace").press(question, 0)
    result = await result_of(connection, identity)
    assert (result["answer"], result["usage"]["requests"]) == ("Done.", 2)
    assert len(model.asked["approve"]) == 2, "the run after the approval does not ask the model again"
    assert said(slack, asked) == ["I will deploy.", question.text, "Done."]
    assert last(model.asked["approve"])["content"].endswith("is deployed")


async def test_calls_that_need_approval_are_asked_about_at_once_and_answered_in_any_order(
    model: ModelServer, database: str
) -> None:
    """Each answer meets another worker: the one before has stopped."""
    orders = (0, 1), (1, 0)
    for first, _ in orders:
        model.plans[f"both-{first}"] = [
            calls(("deploy", {"service": "api"}), ("deploy", {"service": "web"})),
            says("Done."),
        ]
    connection = await asyncpg.connect(database)
    given = settings(model, SURELANE_HANDLERS=HANDLERS, SLACK_BOT_TOKEN="xoxb-any")
    async with slack_stand(connection) as slack:
        given["SLACK_API_URL"] = slack.api
        asked = [await slack.mention(f"plan:both-{first}") for first, _ in orders]
        async with worker(database, **given):
            for identity, _ in asked:
                await suspended(connection, identity)
        questions = [
            sorted((each for each in replies(slack, message) if each.text), key=lambda reply: str(reply.text))
            for _, message in asked
        ]
        grace = Person(slack, "grace")
        for turn in range(2):
            numbers = [order[turn] for order in orders]
            clicked = [
                await grace.press(of_event[number], number)  # approves the first call alone
                for of_event, number in zip(questions, numbers, strict=True)
            ]
            async with worker(database, **given):
                for click, (identity, _) in zip(clicked, asked, strict=True):
                    await ended(connection, click)
                    await (ended if turn else suspended)(connection, identity)
        for (identity, message), (first, _) in zip(asked, orders, strict=True):
            assert (await result_of(connection, identity))["answer"] == "Done."
            steps = json.loads(await connection.fetchval("select agent.list_steps($1)", identity))
            assert [step["name"] for step in steps if step["name"].startswith("deploy ")] == ["deploy 1.1"]
            requests = model.asked[f"both-{first}"]
            told = [each["content"] for each in requests[-1]["messages"][-2:]]
            assert told[0] == "api is deployed"
            assert f"rejected by <@{grace.user.id}>" in told[1]
            assert len(requests) == 2
            assert len(said(slack, message)) == 3
    await connection.close()


async def test_model_is_told_of_a_rejection(slack: Stand, model: ModelServer, connection: Connection) -> None:
    model.plans["reject"] = [calls(("deploy", {"service": "api"})), says("Then not.")]
    identity, asked = await slack.mention("plan:reject")
    await suspended(connection, identity)
    grace = Person(slack, "grace")
    await grace.press(replies(slack, asked)[-1], 1)
    assert (await result_of(connection, identity))["answer"] == "Then not."
    told = last(model.asked["reject"])
    assert told["role"] == "tool"
    assert f"The call was rejected by <@{grace.user.id}>." in told["content"]
    steps = json.loads(await connection.fetchval("select agent.list_steps($1)", identity))
    assert not [step for step in steps if step["name"].startswith("deploy ")]


async def test_call_that_is_not_approved_in_time_is_rejected(
    slack: Stand, model: ModelServer, connection: Connection
) -> None:
    general = slack.simulator.workspace.channel("general")
    assert general is not None
    model.plans["hasty"] = [calls(("deploy", {"service": "api"})), says("Then not.")]
    identity = await enqueue(connection, "hasty", {"text": "plan:hasty", "channel": general.id})
    assert (await result_of(connection, identity))["answer"] == "Then not."
    assert "not approved in time" in last(model.asked["hasty"])["content"]


async def test_turn_ends_at_its_limit_of_requests(
    slack: Stand, model: ModelServer, connection: Connection
) -> None:
    model.plans["limit"] = [calls(("weather", {"city": "Ulm"}))] * 9
    identity, asked = await slack.mention("plan:limit")
    result = await result_of(connection, identity)
    told = "I stop here: I may ask the model 4 times per question."
    assert (result["answer"], result["stopped"], result["usage"]["requests"]) == (None, told, 4)
    assert said(slack, asked) == [told]


@pytest.mark.parametrize(
    "failure",
    [
        Reply(status=429, headers={"Retry-After-Ms": "300"}),
        Reply(status=500),
        says("half", end="cut"),
        says("half", end="closed"),
        says("half", "late", pause=asyncio.Event()),
    ],
    ids=["429", "500", "cut", "closed", "slow"],
)
async def test_failed_request_is_repeated_by_the_queue(
    slack: Stand, model: ModelServer, connection: Connection, failure: Reply, request: pytest.FixtureRequest
) -> None:
    plan = f"fails-{request.node.callspec.id}"
    model.plans[plan] = [calls(("weather", {"city": "Ulm"})), [failure, says("Whole.")]]
    identity, asked = await slack.mention(f"plan:{plan}")
    row = await ended(connection, identity)
    if failure.pause is not None:
        failure.pause.set()
    # The second attempt stored a response, so attempts count anew.
    assert (row["outcome"], row["attempts"], len(row["claimed"])) == ("completed", 1, 2)
    assert said(slack, asked) == ["Whole."]
    assert len(model.asked[plan]) == 3, "the first response is not asked for again"
    assert KEY not in str(dict(row))
    if failure.status == 429:
        error, moved = json.loads(row["errors"])[0], row["claimed"][1] - row["claimed"][0]
        assert (error["type"], moved.total_seconds() > 0.25) == ("Retry", True), (
            "the server asked for a pause"
        )


async def test_chain_asks_the_next_model_and_stores_which_one_answered(
    model: ModelServer, connection: Connection
) -> None:
    model.plans["chain"] = [
        [Reply(status=401), calls(("weather", {"city": "Ulm"}))],
        [Reply(status=503), says("half", end="cut"), Reply(status=503), says("Whole.")],
    ]
    identity = await enqueue(connection, "chained", {"text": "plan:chain"})
    row = await ended(connection, identity)
    assert (row["outcome"], json.loads(row["result"])["model"]) == ("completed", "local:1")
    asked = [each["model"] for each in model.asked["chain"]]
    assert asked == ["first", "local:1"] * 3, "a response that came is not asked for again"
    steps = await connection.fetchval("select json_agg(s) from agent.step as s where event_id = $1", identity)
    assert "local:1" in steps
    assert KEY not in f"{dict(row)} {steps}"


async def test_chain_that_fails_is_repeated_while_one_of_its_models_may_answer(
    model: ModelServer, connection: Connection
) -> None:
    model.plans |= {
        "later": [[Reply(status=503), Reply(status=401), says("Late.")]],
        "never": [Reply(status=401)],
    }
    identity = await enqueue(connection, "chained", {"text": "plan:later"})
    row = await ended(connection, identity)
    assert (json.loads(row["result"])["answer"], json.loads(row["errors"])[0]["type"]) == (
        "Late.",
        "UnavailableError",
    )
    row = await ended(connection, await enqueue(connection, "chained", {"text": "plan:never"}))
    assert (row["outcome"], row["reason"]) == ("failed", "the model's server answers 401: wrong key …")
    assert len(model.asked["never"]) == 2


async def test_person_is_told_when_the_model_stays_away(
    slack: Stand, model: ModelServer, connection: Connection
) -> None:
    model.plans["away"] = [Reply(status=503)]
    identity, asked = await slack.mention("plan:away")
    row = await ended(connection, identity)
    assert (row["outcome"], len(model.asked["away"])) == ("failed", 3)
    assert said(slack, asked) == ["I cannot answer now: the model does not respond. Please ask again later."]
    error = json.loads(row["errors"])[-1]
    assert (error["type"], error["message"]) == ("Discard", "the model's server answers 503: wrong key …")
    assert [each["type"] for each in json.loads(row["errors"])] == ["UnavailableError"] * 2 + ["Discard"]


async def test_refused_request_ends_the_turn_and_the_key_shows_nowhere(
    slack: Stand, model: ModelServer, connection: Connection, running: Service
) -> None:
    model.plans["refused"] = [Reply(status=401)]
    identity, asked = await slack.mention("plan:refused")
    row = await ended(connection, identity)
    assert (row["outcome"], row["reason"]) == ("failed", "the model's server answers 401: wrong key …")
    assert said(slack, asked) == ["I cannot answer this. The people who run me can see why."]
    steps = await connection.fetchval("select agent.list_steps($1)", identity)
    assert KEY not in f"{dict(row)} {steps}"
    assert KEY not in "\n".join(running.output)


async def test_endless_and_empty_responses_end_the_turn(
    slack: Stand, model: ModelServer, connection: Connection
) -> None:
    model.plans |= {"endless": [says(*["word " * 1000] * 11)], "empty": [says()] * 3}
    for plan, why in (("endless", "has more than 50,000 characters"), ("empty", "cannot be used")):
        identity, _ = await slack.mention(f"plan:{plan}")
        row = await ended(connection, identity)
        assert row["outcome"] == "failed"
        assert why in row["reason"]


async def test_model_cannot_alarm_a_channel(slack: Stand, model: ModelServer, connection: Connection) -> None:
    model.plans["alarm"] = [says("Hey <", "!chan", "nel> and <!here>, <b>", "<!")]
    identity, asked = await slack.mention("plan:alarm")
    await result_of(connection, identity)
    assert said(slack, asked) == ["Hey <\u200b!channel> and <\u200b!here>, <b><!"]


@pytest.mark.parametrize("channel", ["slack", "general"])
async def test_turn_of_a_job(slack: Stand, model: ModelServer, connection: Connection, channel: str) -> None:
    general = slack.simulator.workspace.channel("general")
    assert general is not None
    plan = f"job-{channel}"
    model.plans[plan] = (
        [calls(("deploy", {"service": "api"})), says("Done.")] if channel == "slack" else [says("Done.")]
    )
    payload = {"text": f"plan:{plan}", "channel": general.id if channel == "general" else channel}
    result = await result_of(connection, await enqueue(connection, "agent-turn", payload))
    assert result["answer"] == "Done."
    if channel == "slack":
        assert "no channel to ask in" in last(model.asked[plan])["content"]
    else:
        assert list(general.messages.values())[-1].text == "Done."


async def test_tools_of_an_mcp_server(slack: Stand, model: ModelServer, connection: Connection) -> None:
    general = slack.simulator.workspace.channel("general")
    assert general is not None
    model.plans["ops"] = [
        calls(("ops_status", {"service": "none"}), ("ops_status", {"service": "api"})),
        calls(("ops_restart", {"service": "api"})),
        says("Done."),
    ]
    identity = await enqueue(connection, "ops", {"text": "plan:ops", "channel": general.id})
    await suspended(connection, identity)
    (question,) = [each for each in general.messages.values() if "ops_restart" in each.text]
    await Person(slack, "grace").press(question, 0)
    assert (await result_of(connection, identity))["answer"] == "Done."
    told = [each["content"] for each in model.asked["ops"][-1]["messages"] if each["role"] == "tool"]
    assert "there is no such service" in told[0]
    assert told[1:] == ["status: api []", "restart: api []"], "the server gets none of our settings"
    assert len(model.asked["ops"]) == 3
    await until(lambda: not mcp_servers(), what="the end of the servers")


async def asked_in(slack: Stand, connection: Connection, kind: str, text: str) -> tuple[int, list[Any]]:
    """Ask an agent in a channel. Return the event's id, and the list to which its messages come."""
    general = slack.simulator.workspace.channel("general")
    assert general is not None
    before = set(general.messages)
    identity = await enqueue(connection, kind, {"text": text, "channel": general.id})
    await ended(connection, identity)
    return identity, [each.text for ts, each in general.messages.items() if ts not in before]


async def test_long_answer_goes_on_in_another_message_behind_a_word(
    slack: Stand, model: ModelServer, connection: Connection
) -> None:
    model.plans["long"] = [says("words " * 2500)]
    identity, heard = await asked_in(slack, connection, "agent-turn", "plan:long")
    assert (await result_of(connection, identity))["answer"] == "words " * 2500
    assert [set(text.split()) for text in heard] == [{"words"}, {"words"}]


async def test_output_is_checked_and_is_the_result(
    slack: Stand, model: ModelServer, connection: Connection
) -> None:
    model.plans["shaped"] = [
        calls(("final_result", {"name": "Ulm"})),
        calls(("final_result", {"name": "Ulm", "sky": "blue"}), text=["Here it is."]),
    ]
    identity, heard = await asked_in(slack, connection, "shaped", "plan:shaped")
    result = await result_of(connection, identity)
    assert result["answer"] == {"name": "Ulm", "sky": "blue"}
    assert heard == ["Here it is."], "the output itself is data"
    assert "sky" in last(model.asked["shaped"])["content"], "the model is told what is missing"


async def test_guard_refuses_a_question_before_the_model_is_asked(
    slack: Stand, model: ModelServer, connection: Connection
) -> None:
    identity, heard = await asked_in(slack, connection, "guarded", "plan:rude")
    result = await result_of(connection, identity)
    assert (result["answer"], result["stopped"], heard) == (
        None,
        "Please ask kindly.",
        ["Please ask kindly."],
    )
    assert not model.asked["rude"]


async def test_guard_sees_each_answer_before_anybody_else(
    slack: Stand, model: ModelServer, connection: Connection
) -> None:
    model.plans["guarded"] = [
        calls(("deploy", {"service": "api"}), text=["Let me ", "look <!here>."]),
        says("The sec", "ret is 7."),
    ]
    general = slack.simulator.workspace.channel("general")
    assert general is not None
    before = set(general.messages)
    identity = await enqueue(connection, "guarded", {"text": "plan:guarded", "channel": general.id})
    await suspended(connection, identity)
    (question,) = [each for ts, each in general.messages.items() if ts not in before and "May I" in each.text]
    await Person(slack, "grace").press(question, 0)
    result = await result_of(connection, identity)
    heard = [each.text for ts, each in general.messages.items() if ts not in before]
    assert heard == ["Let me look <\u200b!here>.", question.text, "I may not say that."]
    assert (result["answer"], result["stopped"]) == (None, "I may not say that.")
    names = [
        step["name"]
        for step in json.loads(await connection.fetchval("select agent.list_steps($1)", identity))
    ]
    assert (names.count("guard question"), names.count("guard answer")) == (1, 2)


async def test_guard_checks_an_output(slack: Stand, model: ModelServer, connection: Connection) -> None:
    model.plans["secretive"] = [calls(("final_result", {"name": "secret", "sky": "blue"}))]
    identity, heard = await asked_in(slack, connection, "secretive", "plan:secretive")
    result = await result_of(connection, identity)
    assert (result["answer"], heard) == (None, ["I may not say that."])


async def test_turn_ends_at_its_budget(slack: Stand, model: ModelServer, connection: Connection) -> None:
    model.plans["dear"] = [calls(("weather", {"city": "Ulm"})), says("Blue.")]
    identity, heard = await asked_in(slack, connection, "chained", "plan:dear")
    result = await result_of(connection, identity)
    assert heard == [result["stopped"]] == ["I stop here: your question has used what I may spend on one."]
    assert (result["cost"], len(model.asked["dear"])) == (1.0, 1)


@pytest.mark.parametrize(
    ("user", "used", "told"),
    [
        (
            "U1",
            (4_999_999, 1, 0),
            "I stop here: you have used what I may spend on you today. Please ask tomorrow.",
        ),
        ("U2", (1, 1, 9.5), "I stop here: what I may spend today is used up. Please ask tomorrow."),
    ],
    ids=["person", "workspace"],
)
async def test_budget_of_a_day_is_refused_politely(
    slack: Stand, model: ModelServer, connection: Connection, user: str, used: tuple[Any, ...], told: str
) -> None:
    general = slack.simulator.workspace.channel("general")
    assert general is not None
    plan, team = f"budget-{user}", f"T{user}"
    model.plans[plan] = [calls(("weather", {"city": "Ulm"})), says("Blue.")]
    payload = {"text": f"plan:{plan}", "channel": general.id, "team": team}
    other = await enqueue(connection, "agent-turn", {**payload, "user": "UOTHER"})
    assert (await result_of(connection, other))["answer"] == "Blue."
    count = "select agent.count_usage($1, $2, 'local', $3, $4, $5, 'before')"
    await connection.execute(count, team, user, *used)
    identity = await enqueue(connection, "agent-turn", {**payload, "user": user})
    result = await result_of(connection, identity)
    assert (result["stopped"], result["usage"]["requests"]) == (told, 0)
    assert len(model.asked[plan]) == 2
    counted = await connection.fetchrow(
        "select requests, input_tokens, output_tokens, cost from agent.model_usage"
        " where owner_id = $1 and user_id = 'UOTHER'",
        team,
    )
    assert counted is not None
    assert tuple(counted) == (2, 200, 20, Decimal("0.0004"))


async def test_response_is_counted_once_although_a_foreign_transaction_holds_the_row(
    model: ModelServer, connection: Connection, running: Service, shared_database: str
) -> None:
    model.plans["held"] = [says("Blue.")]
    await connection.execute("select agent.count_usage('THELD', 'U1', 'local', 1, 1, 0, 'before')")
    other = await asyncpg.connect(shared_database)
    async with other.transaction():
        await other.execute("select from agent.model_usage where owner_id = 'THELD' for update")
        payload = {"text": "plan:held", "team": "THELD", "user": "U1"}
        identity = await enqueue(connection, "agent-turn", payload)
        await until(
            lambda: any("a step waits" in line and f'"{identity}"' in line for line in running.output),
            within=60,
            what="the count to wait",
        )
    await other.close()
    assert (await result_of(connection, identity))["answer"] == "Blue."
    counted = "select requests from agent.model_usage where owner_id = 'THELD'"
    assert (await connection.fetchval(counted), len(model.asked["held"])) == (2, 1)


async def test_tokens_and_cost_are_metrics(
    model: ModelServer, connection: Connection, running: Service
) -> None:
    model.plans["metrics"] = [says("Blue.")]
    payload = {"text": "plan:metrics", "team": "TMETRICS", "user": "U1"}
    await result_of(connection, await enqueue(connection, "agent-turn", payload))
    found = [line for line in (await metrics(running)).splitlines() if "TMETRICS" in line]
    labels = '{gen_ai_request_model="local",%ssurelane_workspace="TMETRICS"}'
    token_type = 'gen_ai_token_type="%s",'
    assert sorted(found) == [
        f"surelane_model_cost_total{labels % ''} 0.0002",
        f"surelane_model_tokens_total{labels % (token_type % 'input')} 100.0",
        f"surelane_model_tokens_total{labels % (token_type % 'output')} 10.0",
    ]


async def test_another_agent_answers_as_a_child(
    slack: Stand, model: ModelServer, connection: Connection
) -> None:
    model.plans |= {
        "chief": [
            calls(("re_search", {"text": "plan:found"}), ("re_search", {"text": "plan:lost"})),
            says("Blue."),
        ],
        "found": [calls(("weather", {"city": "Ulm"})), says("The sky is blue.")],
        "lost": [Reply(status=401)],
    }
    identity, heard = await asked_in(slack, connection, "chief", "plan:chief")
    result = await result_of(connection, identity)
    assert (result["answer"], heard) == ("Blue.", ["Blue."]), "a child says nothing"
    assert result["usage"] == {"requests": 2, "input_tokens": 200, "output_tokens": 20, "tool_calls": 2}
    told = [each["content"] for each in model.asked["chief"][-1]["messages"][-2:]]
    assert told[0] == "The sky is blue."
    assert "the model's server answers 401: wrong key …" in told[1]
    assert [len(model.asked[plan]) for plan in ("chief", "found", "lost")] == [2, 2, 1]
    children = await connection.fetch(
        "select outcome, result from agent.event_hist where kind = 're.search' order by id"
    )
    assert [row["outcome"] for row in children] == ["completed", "failed"]
    assert json.loads(children[0]["result"])["usage"]["tool_calls"] == 1


async def test_no_finished_tool_is_called_again_although_the_worker_is_killed(
    connection: Connection, model: ModelServer, mortal: tuple[int, Path]
) -> None:
    identity, log = mortal
    assert (await result_of(connection, identity))["answer"] == "Alive."
    assert log.read_text().split() == ["first", "die", "die"], "only the call that was cut is repeated"
    assert len(model.asked["mortal"]) == 3, "no response is asked for again"
