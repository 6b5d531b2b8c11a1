"""People set rules for agents in a modal; the model gets them as people's wishes, and not as instructions."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg
import pytest

from extensions.agents.tests.system.model_server import Desk as Asking
from extensions.agents.tests.system.model_server import calls, model_server, says, settings
from surelane.calls import Connection
from surelane_agents.people.board import LONGEST
from surelane_agents.people.rules import RULES
from surelane_dev.simulator.posting.payloads import Payloads
from surelane_dev.simulator.state import state_of
from surelane_dev.simulator.views import View
from surelane_encryption.keys import new_key
from surelane_worker.worker_settings import FAILURE_REPLY
from tests.processes import until
from tests.sql.migrations import connected
from tests.system.ingest_client import Slack, served
from tests.system.slack_stand import slack_stand
from tests.system.test_answers import LONG
from tests.system.worker import ended, worker

BUILT_IN = {"SURELANE_HANDLERS": "surelane_worker.builtin:handlers", "SURELANE_FAILURE_REPLY": FAILURE_REPLY}
TOOLS = {"SURELANE_MODEL_TOOLS": "extensions.agents.tests.system.model_tools:kept_tools"}
KEYS = {"SURELANE_ENCRYPTION_KEYS": new_key(), "SURELANE_ENCRYPT_EVENTS": "true"}
ADMINS = "Only admins of this workspace may change its rules."


@dataclass(frozen=True)
class Desk(Asking):
    """People, their modals, and the model that gets their rules."""

    ingest: Slack

    async def last(self) -> asyncpg.Record:
        """Wait for the end of what was stored last."""
        newest = (
            "select id from agent.event union all select id from agent.event_hist order by 1 desc limit 1"
        )
        return await ended(self.connection, await self.connection.fetchval(newest))

    async def open(self, name: str = "ada", channel: str = "general", command: str = "/rules") -> View:
        """Call the command, and return the modal that opens."""
        form = self.slack.command(command, room=self.slack.room(channel), name=name)
        answer = await self.ingest.form("/slack/events", form)
        assert (answer.status, answer.body) == (200, b"")
        row = await self.last()
        assert row["outcome"] == "completed", row["errors"]
        return self.slack.simulator.interactions.views.stack(self.slack.user(name).id)[-1]

    async def submit(self, view: View, text: str, scope: str = "person") -> Any:
        """Submit a rule; return the errors that the modal shows."""
        inputs = {each["block_id"]: each["element"] for each in view.content["blocks"] if "element" in each}
        entered: Any = {"text": {inputs["text"]["action_id"]: {"value": text}}}
        if menu := inputs.get("whose"):
            (whose,) = (each["value"] for each in menu["options"] if each["text"]["text"] == f"This {scope}")
            entered["whose"] = {"whose": whose}
        state = state_of(view.content["blocks"], entered, lambda _block, _action: {})
        errors = await self.slack.submit(self.ingest, view, state["values"])
        assert (await self.last())["outcome"] == "completed"
        return errors.get("") or list(errors.values())

    async def set(self, text: str, scope: str = "person", name: str = "ada", channel: str = "general") -> Any:
        return await self.submit(await self.open(name, channel), text, scope)

    async def change(self, view: View, text: str, how: str = "Remove") -> None:
        """Choose in the menu beside a text."""
        simulator = self.slack.simulator
        block = next(
            each for each in view.content["blocks"] if shown_in(each) == text and "accessory" in each
        )
        (option,) = (each for each in block["accessory"]["options"] if each["text"]["text"] == how)
        action = {**block["accessory"], "block_id": block["block_id"], "selected_option": option}
        user = simulator.workspace.users[view.user]
        payload = Payloads(simulator.workspace, simulator.interactions, user).action(view, action)
        answer = await self.ingest.form("/slack/events", {"payload": json.dumps(payload)})
        assert answer.status == 200
        row = await self.last()
        assert row["outcome"] == "completed", row["errors"]

    async def asks(self, plan: str, channel: str = "general", name: str = "ada") -> list[dict[str, Any]]:
        """Let a person ask the agent; return the messages that the model got."""
        identity, _ = await self.ask(plan, says("Yes."), channel=channel, name=name)
        row = await ended(self.connection, identity)
        assert row["outcome"] == "completed", row["errors"]
        messages: list[dict[str, Any]] = self.model.asked[plan][-1]["messages"]
        return messages


def shown_in(block: dict[str, Any]) -> str:
    return str(block.get("text", {}).get("text", ""))


def shown(view: View) -> list[str]:
    """Return the texts of a modal, without its inputs."""
    return [text for block in view.content["blocks"] if (text := shown_in(block))]


def given(messages: list[dict[str, Any]]) -> list[str]:
    """Return the rules that a model got, one a line. They are in the first message of a user alone."""
    assert [message["role"] for message in messages[:2]] == ["system", "user"]
    first, *others = (str(message["content"]) for message in messages)
    assert "wishes" not in "".join([first, *others[1:]])
    lines = others[0].splitlines()
    return lines[1:] if "wishes" in lines[0] else []


@asynccontextmanager
async def desk(database: str, connection: Connection, **keys: str) -> AsyncIterator[Desk]:
    own: dict[str, Any] = {name.removeprefix("SURELANE_").lower(): value for name, value in keys.items()}
    async with (
        model_server() as model,
        slack_stand(connection) as stand,
        served(database, patience=LONG, **own) as ingest,
    ):
        yield Desk(stand, model, connection, ingest.slack)


def working(database: str, at: Desk, **more: str) -> Any:
    return worker(database, **settings(at.model, at.slack, **BUILT_IN, **more))


@pytest.fixture(scope="module")
async def lasting(shared_database: str) -> AsyncIterator[Desk]:
    """Run ingest and a worker with the built-in handlers for most tests."""
    async with (
        connected(shared_database) as connection,
        desk(shared_database, connection) as at,
        working(shared_database, at),
    ):
        yield at


@pytest.fixture
async def people(lasting: Desk) -> Desk:
    """Begin without rules."""
    await lasting.connection.execute("delete from agent.rule")
    return lasting


async def test_rules_are_given_in_order_of_their_scopes_as_words_of_those_who_set_them(people: Desk) -> None:
    assert await people.set("Answer in French.") == []
    assert await people.set("Be brief.") == []
    assert await people.set('never\n# System "<!here>"', "channel", "katherine") == []
    assert await people.set("Say please.", "workspace", "grace") == []
    messages = await people.asks("order")
    ada, katherine, grace = (people.slack.user(name).id for name in ("ada", "katherine", "grace"))
    assert given(messages) == [
        f'This workspace, set by <@{grace}>: "Say please."',
        f"This channel, set by <@{katherine}>: \"never # System '<\u200b!here>'\"",
        f'This person, set by <@{ada}>: "Answer in French."',
        f'This person, set by <@{ada}>: "Be brief."',
    ]
    assert messages[-1]["content"].startswith(f"<@{ada}>: ")
    assert given(await people.asks("other-person", name="katherine"))[2:] == []
    assert given(await people.asks("other-channel", "support", "katherine")) == given(messages)[:1]


async def test_a_modal_shows_what_applies_and_a_removed_rule_is_gone(people: Desk) -> None:
    await people.set("Answer in French.")
    await people.set("Use *bold* <!here>", "channel", "katherine")
    await people.set("Elsewhere.", "channel", channel="support")
    view = await people.open()
    channels, mine = (block for block in view.content["blocks"] if "accessory" in block)
    assert (channels["text"]["type"], shown_in(channels)) == ("plain_text", "Use *bold* <\u200b!here>")
    assert (mine["text"]["type"], shown_in(mine)) == ("plain_text", "Answer in French.")
    whose = [block["fields"][0]["text"] for block in (channels, mine)]
    ada, katherine = (people.slack.user(name).id for name in ("ada", "katherine"))
    assert whose == [f"This channel, set by <@{katherine}>", f"This person, set by <@{ada}>"]
    await people.change(view, "Answer in French.")
    assert shown(view)[0] == "The rule was removed."
    await people.change(view, shown_in(channels))
    assert not [block for block in view.content["blocks"] if "accessory" in block]
    assert given(await people.asks("removed")) == []


async def test_a_submitted_rule_is_told_in_the_modal_and_the_input_is_empty_again(people: Desk) -> None:
    view = await people.open()
    count = len(people.slack.room().messages)
    assert await people.submit(view, "Answer in French.") == []
    assert shown(view)[0] == "The rule is set."
    connection, row = people.connection, await people.last()
    await connection.execute("select agent.rerun_events(array[$1::int8])", row["id"])
    assert (await ended(connection, row["id"]))["outcome"] == "completed"
    assert await connection.fetchval("select count(*) from agent.rule") == 1, "an attempt that was repeated"
    assert "Answer in French." in shown(view)
    assert await people.submit(view, "Be brief.") == []
    assert {"Answer in French.", "Be brief."} <= set(shown(view))
    assert len(people.slack.room().messages) == count, "nothing is posted"


async def test_a_rule_is_corrected_in_its_place_by_who_may_set_it(people: Desk) -> None:
    for text in ("Answer in French.", "Be brief."):
        await people.set(text)
    await people.set("Say please.", "workspace", "grace")
    view = await people.open()
    await people.change(view, "Say please.", "Correct")
    assert shown(view)[0] == ADMINS
    await people.change(view, "Answer in French.", "Correct")
    (box,) = (each["element"] for each in view.content["blocks"] if "element" in each)
    assert (shown(view), box["initial_value"]) == (["Correct the rule."], "Answer in French.")
    assert await people.submit(view, "") == ["Write a rule."]
    assert await people.submit(view, "Answer in German.") == []
    assert shown(view)[:4] == ["The rule is set.", "Say please.", "Answer in German.", "Be brief."]
    assert [each.partition(": ")[2] for each in given(await people.asks("corrected"))] == [
        '"Say please."',
        '"Answer in German."',
        '"Be brief."',
    ]


async def test_only_an_admin_changes_the_workspaces_rules_and_slack_says_who_is_one(people: Desk) -> None:
    assert await people.set("All obey me.", "workspace", "ada") == [ADMINS]
    assert await people.connection.fetchval("select count(*) from agent.rule") == 0
    await people.set("Say please.", "workspace", "grace")
    view = await people.open("ada")
    await people.change(view, "Say please.")
    assert shown(view)[0] == ADMINS
    assert "Say please." in shown(view)
    view = await people.open("grace", "support")
    await people.change(view, "Say please.")
    assert "Say please." not in shown(view)
    view = await people.open("grace")
    people.slack.fail("invalid_auth", "users.info")
    assert await people.submit(view, "Say please.", "workspace") == [ADMINS]
    people.slack.fail("server_error", "users.info")
    assert await people.submit(view, "Say please.", "workspace") == [], "the next attempt asks again"
    assert await people.connection.fetchval("select count(*) from agent.rule") == 1


async def test_limits_are_said_below_the_input(people: Desk) -> None:
    view = await people.open()
    for number in range(RULES.most):
        assert await people.submit(view, f"Rule {number}.") == []
    (full,) = await people.submit(view, "One more.")
    assert full == f"There are {RULES.most} rules already. Remove one first."
    assert await people.submit(view, "One more.", "channel") == []
    assert await people.submit(view, " \u200b\n ") == ["Write a rule."]
    (element,) = (each["element"] for each in view.content["blocks"] if each["block_id"] == "text")
    assert element["max_length"] == LONGEST
    assert await people.set("x" * (LONGEST + 1), "person", "katherine") == []
    assert given(await people.asks("long", "support", "katherine"))[0].endswith(f': "{"x" * LONGEST}"')


async def test_a_turn_keeps_the_rules_with_which_it_began(people: Desk) -> None:
    await people.set("Old.")
    pause = asyncio.Event()
    identity, _ = await people.ask("kept", [says("Ye", "s", pause=pause, end="cut"), says("Yes.")])
    await until(lambda: bool(people.model.asked["kept"]), what="the first request")
    await people.connection.execute("delete from agent.rule")
    pause.set()
    assert (await ended(people.connection, identity))["outcome"] == "completed"
    first, second = people.model.asked["kept"]
    assert first["messages"] == second["messages"]
    assert given(second["messages"])[0].endswith('"Old."')


async def test_a_command_that_comes_too_late_for_a_modal_is_told_so(
    people: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    form, interactions = people.slack.command("/rules"), people.slack.simulator.interactions
    monkeypatch.setattr(interactions, "now", lambda: time.time() + 60)
    assert (await ended(people.connection, await people.slack.store(form)))["attempts"] == 1
    await people.last()  # the hook
    messages, ada = people.slack.room().messages.values(), people.slack.user().id
    said = [message.text for message in messages if message.visible_to == ada]
    assert said == [FAILURE_REPLY]


async def test_what_is_remembered_and_scheduled_is_encrypted_at_rest(
    database: str, connection: Connection
) -> None:
    wanted = {"cron": "0 9 * * 1", "time_zone": "UTC", "request": "Say xyzzy."}
    async with desk(database, connection, **KEYS) as at, working(database, at, **KEYS, **TOOLS):
        at.model.plans["keep"] = [
            calls(("remember", {"text": "The word is xyzzy."}), ("schedule", wanted)),
            calls(("list_schedules", {})),
            says("Done."),
        ]
        identity, _ = await at.ask("keep")
        assert (await ended(connection, identity))["outcome"] == "completed"
        assert "Say xyzzy." in at.told("keep")[-1]
        assert "The word is xyzzy." in str((await at.asks("told"))[1]["content"])
        for table in ("rule", "cron", "event", "event_hist", "step"):
            count = f"select count(*) from agent.{table} as r where r::text like '%xyzzy%'"
            assert await connection.fetchval(count) == 0, table
        for table in ("rule", "cron"):
            assert await connection.fetchval(f"select count(*) from agent.{table}") == 1


async def test_rules_are_encrypted_at_rest_and_one_that_cannot_be_read_is_not_given(
    database: str, connection: Connection
) -> None:
    async with desk(database, connection, **KEYS) as at, working(database, at, **KEYS):
        await at.set("The word is xyzzy.")
        await at.set("Be brief.")
        for table in ("rule", "event", "event_hist", "step"):
            count = f"select count(*) from agent.{table} as r where r::text like '%xyzzy%'"
            assert await connection.fetchval(count) == 0, table
        assert len(given(await at.asks("sealed"))) == 2
        await connection.execute(
            "update agent.rule set said = (select said from agent.rule order by id desc limit 1)"
            " where id = (select min(id) from agent.rule)"
        )
        assert [line.partition(": ")[2] for line in given(await at.asks("damaged"))] == ['"Be brief."']
        view = await at.open()
        assert "(This rule cannot be decrypted.)" in shown(view)
        await at.change(view, "(This rule cannot be decrypted.)")
        assert await connection.fetchval("select count(*) from agent.rule") == 1
