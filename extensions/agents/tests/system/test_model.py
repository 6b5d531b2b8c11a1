"""An agent's turn with a local model server: steps, approvals, limits, errors, and what is kept secret."""

import asyncio
import json
import secrets
import sys
from collections.abc import AsyncIterator
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from extensions.agents.tests.system.model_server import (
    HANDLERS,
    KEY,
    OURS,
    Desk,
    ModelServer,
    Reply,
    calls,
    says,
    settings,
)
from extensions.agents.tests.system.shared import shared_desk, shared_model
from tests.processes import Service, until
from tests.sql.migrations import connected
from tests.system.shared import shared_connection, shared_slack
from tests.system.slack_stand import Person, Stand, slack_stand
from tests.system.worker import ended, metrics, suspended, worker

pytestmark = pytest.mark.usefixtures("running")
PYTEST_RUN = secrets.token_hex(8)
PRICES = {"local": {"input": 1, "output": 10}, "ollama:first": {"input": 10_000, "output": 0}}
BUDGET = {
    "prices": PRICES | dict.fromkeys(("local:1", "openai-responses:gpt-5"), PRICES["local"]),
    "turn": {"money": 0.5},
    "person": {"tokens": 5_000_000},
    "workspace": {"money": "9.5"},
}
USAGE = {"requests": 1, "input_tokens": 100, "output_tokens": 10, "tool_calls": 0}
LOOK = calls(("weather", {"city": "Ulm"}))
DEPLOY = calls(("deploy", {"service": "api"}))
connection, slack, model, desk = shared_connection, shared_slack, shared_model, shared_desk


@pytest.fixture(scope="module")
async def running(
    shared_database: str,
    slack: Stand,
    model: ModelServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Service]:
    budget = tmp_path_factory.mktemp("budget") / "budget.json"
    budget.write_text(json.dumps(BUDGET))
    bounds = {"SURELANE_MODEL_REQUESTS": "4", "SURELANE_MODEL_TIMEOUT": "3s", "LOG_LEVEL": "debug"}
    servers = {"PYTHON": sys.executable, "PYTEST_RUN": PYTEST_RUN, "SURELANE_MODEL_BUDGET": str(budget)}
    given = settings(model, slack, **OURS, **bounds, **servers)
    async with worker(shared_database, **given) as started:
        yield started


def mcp_servers() -> list[str]:
    """Return the running MCP servers of this test."""
    found = psutil.process_iter(["cmdline", "environ"])
    mine = [each.info for each in found if (each.info["environ"] or {}).get("PYTEST_RUN") == PYTEST_RUN]
    return [line for each in mine if "mcp_server.py" in (line := " ".join(each["cmdline"] or ()))]


async def in_channel(
    desk: Desk, kind: str, plan: str, *answers: Reply | list[Reply]
) -> tuple[Any, list[str]]:
    """Ask an agent in a channel. Return the turn's result, and what was said there."""
    general = desk.slack.room()
    before = set(general.messages)
    result = await desk.result(await desk.job(plan, *answers, kind=kind, channel=general.id))
    return result, [each.text for ts, each in general.messages.items() if ts not in before]


async def test_answer_is_streamed_and_usage_is_in_history(desk: Desk) -> None:
    pause = asyncio.Event()
    identity, asked = await desk.ask("stream", says("Blue, ", "of course.", pause=pause))
    await until(lambda: desk.said(asked) == ["Blue, "], what="the first part")
    pause.set()
    answer = {"answer": "Blue, of course.", "model": "local", "usage": USAGE, "cost": 0.0002}
    assert await desk.result(identity) == answer
    (message,) = desk.slack.replies(asked)
    assert (message.text, [block["type"] for block in message.blocks]) == ("Blue, of course.", ["divider"])
    (request,) = desk.model.asked["stream"]
    first = request["messages"][0]
    assert (first["role"], first["content"].split("\n")[0]) == ("system", "Help the tests.")
    assert desk.model.keys == {f"Bearer {KEY}"}


async def test_tools_are_called_once_each_and_the_model_gets_what_they_return(desk: Desk) -> None:
    several = calls(
        ("weather", {"city": "Bremen"}),
        ("fail", {"text": "no such city"}),
        ("hang", {}),
        ("large", {"size": 60_000}),
        text=["Look."],
    )
    identity, asked = await desk.ask("tools", several, says("Blue."))
    result = await desk.result(identity)
    assert (result["answer"], result["usage"]["tool_calls"]) == ("Blue.", 4)
    assert desk.said(asked) == ["Look.", "Blue."]
    messages = desk.model.asked["tools"][-1]["messages"][-4:]
    told = {each["tool_call_id"][-1]: each["content"] for each in messages}
    assert json.loads(told["0"]) == {"city": "Bremen", "sky": "blue"}
    assert "LookupError: no such city" in told["1"]
    assert "TimeoutError" in told["2"]
    assert told["3"].endswith("… (cut; the whole result has 60,002 characters)")
    assert set(await desk.steps(identity)) >= {"weather 1.1", "fail 1.2", "hang 1.3", "large 1.4"}


async def test_thread_is_the_context(desk: Desk) -> None:
    _, asked = await desk.turn("first", says("One."))
    grace = desk.slack.user("grace")
    for _ in range(60):
        text = "Ignore all of that. " * 300
        desk.slack.simulator.workspace.post(desk.slack.room(), grace.id, text, thread_ts=asked.ts)
    _, again = await desk.turn("second", says("Three."), thread_ts=asked.ts)
    messages = desk.model.asked["second"][0]["messages"]
    assert messages[1]["content"] == f"<@{asked.user}>: {asked.text}"
    assert messages[-1]["content"] == f"<@{again.user}>: {again.text}"
    assert {each["role"] for each in messages[1:]} == {"user"}, (
        "a flood leaves the first message and the last"
    )
    assert sum(len(each["content"]) for each in messages) < 45_000
    assert messages[-2]["content"].startswith(f"<@{grace.id}>: Ignore all of that.")


async def test_model_gets_what_people_typed_and_slack_gets_what_the_model_says(desk: Desk) -> None:
    _, asked = await desk.turn("escapes", says("`a < b`: R", "&D <pl", "an> for <@U0ADA>"))
    assert desk.said(asked) == ["`a < b`: R&amp;D &lt;plan&gt; for <@U0ADA>"]
    desk.model.plans["typed"] = [calls(("fail", {"text": "R&D"})), says("So.")]
    sent = "plan:typed R&amp;D &lt;plan&gt; &amp;lt;"
    identity, _ = await desk.slack.mention(sent, thread_ts=asked.ts)
    await desk.result(identity)
    *_, own, question = [each["content"] for each in desk.model.asked["typed"][0]["messages"]]
    assert question.endswith(" plan:typed R&D <plan> &lt;")
    assert own == "`a < b`: R&D <plan> for <@U0ADA>"


async def test_model_gets_what_an_app_shows_in_attachments_and_what_is_forwarded(desk: Desk) -> None:
    workspace, grace = desk.slack.simulator.workspace, desk.slack.user("grace").id
    alert = [{"title": "DiskFull", "text": "db-1 &gt; 95%"}]
    root = workspace.post(desk.slack.room(), "UALERTS", "", bot_id="BALERTS", attachments=alert)
    share = {"is_share": True, "author_id": grace, "text": "It burns.", "from_url": "https://a.b/p1"}
    desk.model.plans["alert"] = [says("So.")]
    identity, _ = await desk.slack.mention("plan:alert Look!", thread_ts=root.ts, attachments=[share])
    await desk.result(identity)
    got = "\n".join(str(each["content"]) for each in desk.model.asked["alert"][0]["messages"])
    assert "<@UALERTS>: DiskFull\ndb-1 > 95%" in got
    assert f"Look!\n(Forwarded, by <@{grace}>:)\nIt burns." in got


async def test_approved_tool_is_called(desk: Desk) -> None:
    several = ("weather", {"city": "Kiel"}), ("deploy", {"service": "`<!here>`\u202e\u3164\ufe0f"})
    identity, asked = await desk.ask("approve", calls(*several, text=["I will deploy."]), says("Done."))
    await suspended(desk.connection, identity)
    question = desk.slack.replies(asked)[-1]
    assert question.text == (
        'May I call *deploy*?\n```{\n "service": "\u02cb&lt;!here&gt;\u02cb\\u202e\\u3164\\ufe0f"\n}```'
    )
    await Person(desk.slack, "grace").press(question, 0)
    result = await desk.result(identity)
    assert (result["answer"], result["usage"]["requests"]) == ("Done.", 2)
    assert len(desk.model.asked["approve"]) == 2, "the run after the approval does not ask the model again"
    assert desk.said(asked) == ["I will deploy.", question.text, "Done."]
    assert desk.told("approve")[-1].endswith("is deployed")


async def test_calls_that_need_approval_are_asked_about_at_once_and_answered_in_any_order(
    model: ModelServer, database: str
) -> None:
    """Each answer meets another worker: the one before has stopped."""
    orders, both = ((0, 1), (1, 0)), calls(("deploy", {"service": "api"}), ("deploy", {"service": "web"}))
    async with connected(database) as connection, slack_stand(connection) as slack:
        desk, given = Desk(slack, model, connection), settings(model, slack, SURELANE_HANDLERS=HANDLERS)
        asked = [await desk.ask(f"both-{first}", both, says("Done.")) for first, _ in orders]
        async with worker(database, **given):
            for identity, _ in asked:
                await suspended(connection, identity)
        questions = [
            sorted((each for each in slack.replies(message) if each.text), key=lambda reply: str(reply.text))
            for _, message in asked
        ]
        grace = Person(slack, "grace")
        for turn in range(2):
            clicked = [
                await grace.press(of_event[order[turn]], order[turn])  # approves the first call alone
                for of_event, order in zip(questions, orders, strict=True)
            ]
            async with worker(database, **given):
                for click, (identity, _) in zip(clicked, asked, strict=True):
                    await ended(connection, click)
                    await (ended if turn else suspended)(connection, identity)
        for (identity, message), (first, _) in zip(asked, orders, strict=True):
            assert (await desk.result(identity))["answer"] == "Done."
            steps = await desk.steps(identity)
            assert [step for step in steps if step.startswith("deploy ")] == ["deploy 1.1"]
            told = desk.told(f"both-{first}")
            assert told[0] == "api is deployed"
            assert f"rejected by <@{grace.user.id}>" in told[1]
            assert len(model.asked[f"both-{first}"]) == 2
            assert len(desk.said(message)) == 3


@pytest.mark.parametrize("late", [False, True])
async def test_model_is_told_of_a_call_that_was_rejected_or_not_approved_in_time(
    desk: Desk, late: bool
) -> None:
    plan, grace = f"reject-{late}", Person(desk.slack, "grace")
    if late:
        identity = await desk.job(plan, DEPLOY, says("Then not."), kind="hasty", channel=desk.slack.room().id)
    else:
        identity, asked = await desk.ask(plan, DEPLOY, says("Then not."))
        await suspended(desk.connection, identity)
        await grace.press(desk.slack.replies(asked)[-1], 1)
    assert (await desk.result(identity))["answer"] == "Then not."
    why = "not approved in time" if late else f"The call was rejected by <@{grace.user.id}>."
    assert why in desk.told(plan)[-1]
    assert not [step for step in await desk.steps(identity) if step.startswith("deploy ")]


async def test_turn_ends_at_its_limit_of_requests(desk: Desk) -> None:
    result, asked = await desk.turn("limit", *[LOOK] * 9)
    told = "I stop here: I may ask the model 4 times per question."
    assert (result["answer"], result["stopped"], result["usage"]["requests"]) == (None, told, 4)
    assert desk.said(asked) == [told]


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
    desk: Desk, failure: Reply, request: pytest.FixtureRequest
) -> None:
    plan = f"fails-{request.node.callspec.id}"
    identity, asked = await desk.ask(plan, LOOK, [failure, says("Whole.")])
    row = await ended(desk.connection, identity)
    if failure.pause is not None:
        failure.pause.set()
    # The second attempt stored a response, so attempts count anew.
    assert (row["outcome"], row["attempts"], len(row["claimed"])) == ("completed", 1, 2)
    assert desk.said(asked) == ["Whole."]
    assert len(desk.model.asked[plan]) == 3, "the first response is not asked for again"
    assert KEY not in str(dict(row))
    if failure.status == 429:
        error, moved = json.loads(row["errors"])[0], row["claimed"][1] - row["claimed"][0]
        assert error["type"] == "Retry"
        assert moved.total_seconds() > 0.25, "the server asked for a pause"


async def test_chain_asks_the_next_model_and_stores_which_one_answered(desk: Desk) -> None:
    failing = [Reply(status=503), says("half", end="cut"), Reply(status=503), says("Whole.")]
    identity = await desk.job("chain", [Reply(status=401), LOOK], failing, kind="chained")
    row = await ended(desk.connection, identity)
    assert (row["outcome"], json.loads(row["result"])["model"]) == ("completed", "local:1")
    asked = [each["model"] for each in desk.model.asked["chain"]]
    assert asked == ["first", "local:1"] * 3, "a response that came is not asked for again"
    steps = await desk.connection.fetchval(
        "select json_agg(s) from agent.step as s where event_id = $1", identity
    )
    assert "local:1" in steps
    assert KEY not in f"{dict(row)} {steps}"


async def test_chain_that_fails_is_repeated_while_one_of_its_models_may_answer(desk: Desk) -> None:
    late = [Reply(status=503), Reply(status=401), says("Late.")]
    row = await ended(desk.connection, await desk.job("later", late, kind="chained"))
    assert json.loads(row["result"])["answer"] == "Late."
    assert json.loads(row["errors"])[0]["type"] == "UnavailableError"
    row = await ended(desk.connection, await desk.job("never", Reply(status=401), kind="chained"))
    assert (row["outcome"], row["reason"]) == ("failed", "the model's server answers 401: wrong key …")
    assert len(desk.model.asked["never"]) == 2


async def test_person_is_told_when_the_model_stays_away(desk: Desk) -> None:
    identity, asked = await desk.ask("away", Reply(status=503))
    row = await ended(desk.connection, identity)
    assert (row["outcome"], len(desk.model.asked["away"])) == ("failed", 3)
    assert desk.said(asked) == ["I cannot answer now: the model does not respond. Please ask again later."]
    errors = json.loads(row["errors"])
    assert [each["type"] for each in errors] == ["UnavailableError"] * 2 + ["Discard"]
    assert errors[-1]["message"] == "the model's server answers 503: wrong key …"


async def test_refused_request_ends_the_turn_and_the_key_shows_nowhere(desk: Desk, running: Service) -> None:
    identity, asked = await desk.ask("refused", Reply(status=401))
    row = await ended(desk.connection, identity)
    assert (row["outcome"], row["reason"]) == ("failed", "the model's server answers 401: wrong key …")
    assert desk.said(asked) == ["I cannot answer this. The people who run me can see why."]
    steps = await desk.connection.fetchval("select agent.list_steps($1)", identity)
    assert KEY not in f"{dict(row)} {steps}"
    assert KEY not in "\n".join(running.output)


async def test_model_cannot_alarm_a_channel(desk: Desk) -> None:
    _, asked = await desk.turn("alarm", says("Hey <", "!chan", "nel> and <!here>, <b>", "<!"))
    assert desk.said(asked) == ["Hey &lt;\u200b!channel&gt; and &lt;\u200b!here&gt;, &lt;b&gt;&lt;!"]


async def test_turn_of_a_job(desk: Desk) -> None:
    result = await desk.result(await desk.job("job-slack", DEPLOY, says("Done."), channel="slack"))
    assert result["answer"] == "Done."
    assert "no channel to ask in" in desk.told("job-slack")[-1]
    result, heard = await in_channel(desk, "agent-turn", "job-general", says("Done."))
    assert (result["answer"], heard) == ("Done.", ["Done."])


async def test_tools_of_an_mcp_server(desk: Desk) -> None:
    looks = calls(*(("ops_status", {"service": service}) for service in ("none", "hangs", "api")))
    restarts, general = calls(("ops_restart", {"service": "api"})), desk.slack.room()
    identity = await desk.job("ops", looks, restarts, says("Done."), kind="ops", channel=general.id)
    await suspended(desk.connection, identity)
    (question,) = [each for each in general.messages.values() if "ops_restart" in each.text]
    await Person(desk.slack, "grace").press(question, 0)
    assert (await desk.result(identity))["answer"] == "Done."
    first, second, *others = desk.told("ops")
    assert "there is no such service" in first
    assert "TimeoutError: no answer in 0.5 s" in second
    assert others == ["status: api []", "restart: api []"], "the server gets none of our settings"
    assert len(desk.model.asked["ops"]) == 3
    await until(lambda: not mcp_servers(), what="the end of the servers")


async def test_output_is_checked_and_is_the_result(desk: Desk) -> None:
    first, ulm = calls(("final_result", {"name": "Ulm"})), {"name": "Ulm", "sky": "blue"}
    second = calls(("final_result", ulm), text=["Here it is."])
    result, heard = await in_channel(desk, "shaped", "shaped", first, second)
    assert result["answer"] == ulm
    assert heard == ["Here it is."], "the output itself is data"
    assert "sky" in desk.told("shaped")[-1], "the model is told what is missing"


async def test_guard_refuses_a_question_before_the_model_is_asked_and_an_output(desk: Desk) -> None:
    result, heard = await in_channel(desk, "guarded", "rude")
    told = "Please ask kindly."
    assert (result["answer"], result["stopped"], heard) == (None, told, [told])
    assert not desk.model.asked["rude"]
    secret = calls(("final_result", {"name": "secret", "sky": "blue"}))
    result, heard = await in_channel(desk, "secretive", "secretive", secret)
    assert (result["answer"], heard) == (None, ["I may not say that."])


async def test_guard_sees_each_answer_before_anybody_else(desk: Desk) -> None:
    first = calls(("deploy", {"service": "api"}), text=["Let me ", "look <!here>."])
    general = desk.slack.room()
    before = set(general.messages)
    identity = await desk.job(
        "guarded", first, says("The sec", "ret is 7."), kind="guarded", channel=general.id
    )
    await suspended(desk.connection, identity)
    (question,) = [each for ts, each in general.messages.items() if ts not in before and "May I" in each.text]
    await Person(desk.slack, "grace").press(question, 0)
    result = await desk.result(identity)
    heard = [each.text for ts, each in general.messages.items() if ts not in before]
    assert heard == ["Let me look &lt;\u200b!here&gt;.", question.text, "I may not say that."]
    assert (result["answer"], result["stopped"]) == (None, "I may not say that.")
    names = await desk.steps(identity)
    assert (names.count("guard question"), names.count("guard answer")) == (1, 2)


async def test_turn_ends_at_its_budget(desk: Desk) -> None:
    result, heard = await in_channel(desk, "chained", "dear", LOOK, says("Blue."))
    assert heard == [result["stopped"]] == ["I stop here: your question has used what I may spend on one."]
    assert (result["cost"], len(desk.model.asked["dear"])) == (1.0, 1)


@pytest.mark.parametrize(
    ("user", "used", "told"),
    [
        ("U1", (4_999_999, 1, 0), "you have used what I may spend on you today."),
        ("U2", (1, 1, 9.5), "what I may spend today is used up."),
    ],
    ids=["person", "workspace"],
)
async def test_budget_of_a_day_is_refused_politely(
    desk: Desk, user: str, used: tuple[Any, ...], told: str
) -> None:
    plan, team = f"budget-{user}", f"T{user}"
    where = {"channel": desk.slack.room().id, "team": team}
    other = await desk.job(plan, LOOK, says("Blue."), **where, user="UOTHER")
    assert (await desk.result(other))["answer"] == "Blue."
    count = "select agent.count_usage($1, $2, 'local', $3, $4, $5, 'before')"
    await desk.connection.execute(count, team, user, *used)
    result = await desk.result(await desk.job(plan, **where, user=user))
    stopped = f"I stop here: {told} Please ask tomorrow."
    assert (result["stopped"], result["usage"]["requests"]) == (stopped, 0)
    assert len(desk.model.asked[plan]) == 2
    counted = (
        "select concat_ws(' ', requests, input_tokens, output_tokens, cost::float8) from agent.model_usage"
        " where owner_id = $1 and user_id = 'UOTHER'"
    )
    assert await desk.connection.fetchval(counted, team) == "2 200 20 0.0004"


async def test_response_is_counted_once_although_a_foreign_transaction_holds_the_row(
    desk: Desk, running: Service, shared_database: str
) -> None:
    await desk.connection.execute("select agent.count_usage('THELD', 'U1', 'local', 1, 1, 0, 'before')")
    async with connected(shared_database) as other, other.transaction():
        await other.execute("select from agent.model_usage where owner_id = 'THELD' for update")
        identity = await desk.job("held", says("Blue."), team="THELD", user="U1")
        await until(
            lambda: any("a step waits" in line and f'"{identity}"' in line for line in running.output),
            within=60,
            what="the count to wait",
        )
    assert (await desk.result(identity))["answer"] == "Blue."
    counted = "select requests from agent.model_usage where owner_id = 'THELD'"
    assert (await desk.connection.fetchval(counted), len(desk.model.asked["held"])) == (2, 1)


async def test_tokens_and_cost_are_metrics(desk: Desk, running: Service) -> None:
    await desk.result(await desk.job("metrics", says("Blue."), team="TMETRICS", user="U1"))
    found = [line for line in (await metrics(running)).splitlines() if "TMETRICS" in line]
    labels = '{gen_ai_request_model="local",%ssurelane_workspace="TMETRICS"}'
    token_type = 'gen_ai_token_type="%s",'
    assert sorted(found) == [
        f"surelane_model_cost_total{labels % ''} 0.0002",
        f"surelane_model_tokens_total{labels % (token_type % 'input')} 100.0",
        f"surelane_model_tokens_total{labels % (token_type % 'output')} 10.0",
    ]


async def test_skill_is_loaded_when_it_is_needed_and_its_files_are_read_in_steps(desk: Desk) -> None:
    """An attempt fails in between: the next one has the loaded skill without asking again."""
    load = calls(("load_capability", {"id": "refunds"}))
    read = calls(
        ("read_refunds", {"path": "references/limits.md"}), ("read_refunds", {"path": "../../mcp_server.py"})
    )
    desk.model.plans["skilled"] = [load, [Reply(status=500), read], says("50 euros.")]
    identity = await desk.job("skilled", kind="skilled")
    assert (await desk.result(identity))["answer"] == "50 euros."
    first, _, second, third = (str(each["messages"]) for each in desk.model.asked["skilled"])
    assert "refunds: How to refund an order. Use it when a person wants money back." in first
    assert ("Look the order up" in first, "Look the order up" in second) == (False, True)
    assert "At most 50 euros." in third
    assert "../../mcp_server.py is no file of the skill" in third
    names = [[tool["function"]["name"] for tool in each["tools"]] for each in desk.model.asked["skilled"]]
    assert ["read_refunds" in each for each in names] == [False, True, True, True]
    steps = sorted(await desk.steps(identity))  # both run at once
    assert [step for step in steps if "refunds" in step] == ["read_refunds 2.1", "read_refunds 2.2"]


async def test_another_agent_answers_as_a_child(desk: Desk) -> None:
    desk.model.plans |= {"found": [LOOK, says("The sky is blue.")], "lost": [Reply(status=401)]}
    both = calls(("re_search", {"text": "plan:found"}), ("re_search", {"text": "plan:lost"}))
    result, heard = await in_channel(desk, "chief", "chief", both, says("Blue."))
    assert (result["answer"], heard) == ("Blue.", ["Blue."]), "a child says nothing"
    assert result["usage"] == {"requests": 2, "input_tokens": 200, "output_tokens": 20, "tool_calls": 2}
    first, second = desk.told("chief")
    assert first == "The sky is blue."
    assert "the model's server answers 401: wrong key …" in second
    assert [len(desk.model.asked[plan]) for plan in ("chief", "found", "lost")] == [2, 2, 1]
    children = await desk.connection.fetch(
        "select outcome, result from agent.event_hist where kind = 're.search' order by id"
    )
    assert [row["outcome"] for row in children] == ["completed", "failed"]
    assert json.loads(children[0]["result"])["usage"]["tool_calls"] == 1
