"""People rate an agent's answers in a simulated Slack: stored once, with a reason, and exported with the turn."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from extensions.agents.tests.system.model_server import Desk, ModelServer, says, settings
from extensions.agents.tests.system.shared import shared_desk, shared_model
from surelane.calls import Connection
from surelane.codec import RESULT, Location, codec_of, read_keys
from surelane_dev.simulator.workspace.model import Message
from surelane_encryption.keys import new_key
from tests.databases import as_role
from tests.processes import Service
from tests.sql.migrations import becomes, connected
from tests.system.shared import shared_connection, shared_slack
from tests.system.slack_stand import Person, Stand, private, slack_stand
from tests.system.test_cli import Command
from tests.system.worker import ended, worker

BUILT_IN = "surelane_worker.builtin:handlers"
KEYS = {"SURELANE_ENCRYPTION_KEYS": new_key(), "SURELANE_ENCRYPT_EVENTS": "on"}
connection, slack, model, desk = shared_connection, shared_slack, shared_model, shared_desk
AGAIN = "select exists (select from agent.event_hist where id = $1 and finished_at > $2)"


async def result(desk: Desk, identity: int) -> Any:
    """Wait for the end of an event; return its result, decrypted."""
    row = await ended(desk.connection, identity, within=60)
    assert row["outcome"] == "completed", row
    sealing = codec_of(read_keys(KEYS["SURELANE_ENCRYPTION_KEYS"]), desk.connection, on=False)
    return json.loads(await sealing.open(row["result"], Location(identity, RESULT)))


def given(slack: Stand, model: ModelServer, **more: str) -> dict[str, str]:
    return settings(model, slack, SURELANE_HANDLERS=BUILT_IN, **KEYS, **more)


@pytest.fixture(scope="module")
async def running(shared_database: str, slack: Stand, model: ModelServer) -> AsyncIterator[Service]:
    async with worker(shared_database, **given(slack, model)) as started:
        yield started


async def answered(desk: Desk, **where: Any) -> tuple[int, Message, Message]:
    """Let Ada ask. Return the turn's id, her message and the answer."""
    identity, asked = await desk.ask("hello", says("Hello there."), **where)
    assert (await ended(desk.connection, identity, within=60))["outcome"] == "completed"
    return identity, asked, desk.slack.replies(asked)[-1]


def thumbs(answer: Message) -> tuple[str, dict[str, Any]]:
    (block,) = [each for each in answer.blocks if each["type"] == "context_actions"]
    return block["block_id"], block["elements"][0]


async def rated(desk: Desk, who: str, answer: Message, how: str) -> Any:
    """Let a person click a thumb. Return the click's result."""
    block, element = thumbs(answer)
    return await result(desk, await Person(desk.slack, who).click(answer, element, block, value=how))


async def stored(connection: Connection, turn: int) -> dict[str, tuple[int, str, str]]:
    rows = await connection.fetch("select * from agent.feedback where event_id = $1", turn)
    return {row["user_id"]: (row["rating"], row["model"], row["version"]) for row in rows}


async def exported(database: str, *arguments: str, **env: str) -> list[dict[str, Any]]:
    done = await Command(as_role(database, "surelane_operator"))("feedback", "export", *arguments, **env)
    assert done.code == 0, done.err
    return [json.loads(line) for line in done.out.splitlines()]


@pytest.mark.usefixtures("running")
async def test_ratings_and_reasons_are_exported_with_what_was_asked_and_answered(
    desk: Desk, shared_database: str
) -> None:
    slack, connection = desk.slack, desk.connection
    turn, asked, answer = await answered(desk)
    assert await rated(desk, "ada", answer, "good") == {"rated": "good"}
    assert private(slack, asked) == ["Thank you."]
    assert await rated(desk, "ada", answer, "bad") == {"rated": "bad"}
    view = list(slack.simulator.interactions.views.values())[-1]
    assert view.content["callback_id"] == "surelane.reason"
    sent = await slack.queue.insert_event(Person(slack, "ada").written(view, "  It is not polite.  "))
    assert await result(desk, sent) == {"rated": "reason"}
    assert await rated(desk, "ada", answer, "bad") == {"rated": "bad"}  # the reason stays
    assert await rated(desk, "grace", answer, "good") == {"rated": "good"}
    workspace, ada, grace = slack.simulator.workspace, slack.user("ada").id, slack.user("grace").id
    every = [each for each in await exported(shared_database, **KEYS) if each["event"] == turn]
    by = {each["person"]: each for each in every}
    assert set(by) == {ada, grace}
    key = await connection.fetchval("select item_key from agent.event_hist where id = $1", turn)
    assert by[ada] | {"at": ""} == {
        "event": turn,
        "key": key,
        "kind": "slack.app_mention",
        "version": "1",
        "at": "",
        "rating": "bad",
        "reason": "It is not polite.",
        "question": f"<@{workspace.bot.id}> plan:hello",
        "answer": "Hello there.",
        "model": "local",
        "usage": {"requests": 1, "input_tokens": 100, "output_tokens": 10, "tool_calls": 0},
        "workspace": workspace.team_id,
        "person": ada,
        "channel": asked.channel,
    }
    assert (by[grace]["rating"], by[grace]["reason"]) == ("good", None)
    every = await exported(shared_database)
    (blind,) = [each for each in every if (each["event"], each["person"]) == (turn, ada)]
    seen = [blind[name] for name in ("question", "answer", "reason", "model")]
    assert seen == [by[ada]["question"], None, None, "local"]
    assert await exported(shared_database, "--workspace", "T0NONE") == []
    assert await exported(shared_database, "--since", "2100-01-01") == []
    assert "polite" not in str(await connection.fetch("select * from agent.feedback"))
    looks = await connection.fetchval(
        "select count(*) from agent.operator_action where action = 'look at feedback'"
    )
    assert looks == 2
    assert await rated(desk, "ada", answer, "good") == {"rated": "good"}
    assert (await stored(connection, turn))[ada] == (1, "local", "1")
    reasons = "select count(reason) from agent.feedback where event_id = $1"
    assert await connection.fetchval(reasons, turn) == 0


@pytest.mark.usefixtures("running")
async def test_clicks_that_name_no_turn_of_their_channel_store_nothing(desk: Desk) -> None:
    turn, asked, answer = await answered(desk)
    ada, (block, element) = Person(desk.slack, "ada"), thumbs(answer)
    elsewhere, _, _ = await answered(desk, channel="support")
    values: list[Any] = [(block, "excellent"), (block, None), (block, ["good"]), ("", "good")]
    others = (f"{turn}:1", ":feedback", f"{'9' * 200}:feedback", f"{'9' * 18}:feedback", "0:feedback")
    values += [
        (f"surelane:{other}", "good") for other in (*others, f"-{turn}:feedback", f"{elsewhere}:feedback")
    ]
    for named, value in values:
        click = await ada.click(answer, element, named, value=value)
        told = await result(desk, click)
        assert "unhandled" in told, (named, value, told)
    assert [await stored(desk.connection, each) for each in (turn, elsewhere)] == [{}, {}]
    assert set(private(desk.slack, asked)) == {"This answer is gone."}


@pytest.mark.usefixtures("running")
async def test_click_that_slack_sends_again_counts_once_and_late_clicks_change_nothing(desk: Desk) -> None:
    slack, connection = desk.slack, desk.connection
    turn, _, answer = await answered(desk)
    block, element = thumbs(answer)
    action = {"type": element["type"], "action_id": element["action_id"], "block_id": block, "value": "bad"}
    payload = slack.click(answer, action)
    first = await slack.store(payload)
    before = (await ended(connection, first))["finished_at"]
    assert await rated(desk, "ada", answer, "good") == {"rated": "good"}
    await slack.store(payload)
    await connection.execute("select agent.rerun_events(array[$1::int8])", first)
    await becomes(connection, AGAIN, first, before)
    assert (await stored(connection, turn))[slack.user().id][0] == 1


@pytest.mark.usefixtures("running")
async def test_line_about_the_thumbs_is_shown_a_few_times_and_goes_when_a_person_wants(desk: Desk) -> None:
    async def reminder() -> tuple[Message, list[dict[str, Any]]]:
        _, _, answer = await answered(desk)
        return answer, [block for block in answer.blocks if block["type"] == "section"]

    async def forget() -> None:
        await desk.connection.execute("delete from agent.feedback")

    await forget()
    assert [len((await reminder())[1]) for _ in range(4)] == [1, 1, 1, 0]
    await forget()
    answer, (line,) = await reminder()
    click = await Person(desk.slack, "ada").click(answer, line["accessory"], line["block_id"])
    assert await result(desk, click) == {"quiet": True}
    assert (await reminder())[1] == []
    await forget()
    await rated(desk, "ada", answer, "good")
    assert (await reminder())[1] == []


@pytest.mark.usefixtures("running")
async def test_answer_does_not_wait_long_for_a_foreign_transaction(desk: Desk, shared_database: str) -> None:
    async with connected(shared_database) as foreign, foreign.transaction():
        await foreign.execute("lock table agent.feedback")
        _, _, answer = await answered(desk)
        assert [block["type"] for block in answer.blocks] == ["context_actions"]


async def test_thumbs_are_off_where_the_setting_says_so(database: str, model: ModelServer) -> None:
    async with (
        connected(database) as own,
        slack_stand(own) as other,
        worker(database, **given(other, model, SURELANE_MODEL_FEEDBACK="off")),
    ):
        _, _, answer = await answered(Desk(other, model, own))
        assert answer.blocks == []
