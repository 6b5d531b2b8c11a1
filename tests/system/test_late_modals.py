"""A submitted modal whose handler does not answer in time does not close: the person learns what came of it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from surelane.calls import Connection
from surelane_dev.simulator.app_answers import TROUBLE
from surelane_dev.simulator.views import View
from surelane_dev.simulator.webapi.view_content import checked, placed
from tests.processes import Service
from tests.system.ingest_client import Slack
from tests.system.slack_stand import Stand, slack_stand
from tests.system.test_answers import HANDLERS, LONG, SHORT, ingest
from tests.system.worker import claimed, ended, worker


@dataclass(frozen=True)
class Person:
    """Somebody who fills in a modal of the simulated Slack."""

    stand: Stand
    database: str

    def open(self, metadata: str = "", callback_id: str = "invite") -> View:
        """Open the modal."""
        address = {"type": "plain_text_input", "action_id": "address", "initial_value": "nobody"}
        label = {"type": "plain_text", "text": "Address"}
        content = {
            "type": "modal",
            "callback_id": "invite",
            "title": {"type": "plain_text", "text": "Invite"},
            "submit": {"type": "plain_text", "text": "Send"},
            "private_metadata": metadata,
            "blocks": [{"type": "input", "block_id": "email", "label": label, "element": address}],
        }
        workspace = self.stand.simulator.workspace
        view = View(self.stand.user().id, placed(workspace, checked(content, "modal")))
        self.stand.simulator.interactions.views.open(view)
        view.content["callback_id"] = callback_id
        return view

    async def submit(self, slack: Slack, view: View, address: str = "ada") -> dict[str, str]:
        """Submit it, and return the errors that it shows."""
        entered = {"email": {"address": {"type": "plain_text_input", "value": address}}}
        return await self.stand.submit(slack, view, entered)

    def sees(self, view: View) -> list[Any]:
        """Return the texts and the entered values of the modal, or nothing if it is closed."""
        if self.stand.simulator.interactions.views.find(view.id) is None:
            return []
        return [_shown(block) for block in view.content["blocks"]]

    def working(self) -> AbstractAsyncContextManager[Service]:
        """Run a worker that answers modals in this Slack."""
        given = {"SURELANE_HANDLERS": HANDLERS, "SLACK_API_URL": self.stand.api}
        return worker(self.database, SURELANE_SESSION_GRACE="200ms", **given)


def _shown(block: dict[str, Any]) -> Any:
    match block["type"]:
        case "input":
            return block["element"].get("initial_value")
        case "context":
            return block["elements"][0]["text"]
    return block["text"]["text"]


ARRIVED = [
    "Your input has arrived and is being handled. It takes longer than usual; you may close this window."
]
ACCEPTED = ["Your input was accepted. You may close this window."]
NOBODYS = ["Nothing took your input. Please tell the people who run this app."]
REFUSED = ["ada", ":warning: This is no address."]


@pytest.fixture
async def person(database: str, connection: Connection) -> AsyncIterator[Person]:
    async with slack_stand(connection) as stand:
        yield Person(stand, database)


@pytest.mark.parametrize(
    ("callback_id", "address", "shown"),
    [("invite", "ada", REFUSED), ("invite", "ada@example.com", ACCEPTED), ("unknown", "ada", NOBODYS)],
)
async def test_modal_submitted_while_no_worker_lives_says_so_and_shows_the_answer_later(
    person: Person, connection: Connection, callback_id: str, address: str, shown: list[str]
) -> None:
    async with ingest(person.database, LONG) as served:
        view = person.open(callback_id=callback_id)
        await person.submit(served.slack, view, address)
        assert person.sees(view) == ARRIVED
        async with person.working():
            row = await ended(connection, 1)
        assert callback_id == "unknown" or json.loads(row["result"]) is True
        assert person.sees(view) == shown


async def test_modal_of_a_worker_that_was_killed_shows_the_answer_of_the_next_attempt(
    person: Person, connection: Connection
) -> None:
    async with ingest(person.database, SHORT) as served:
        async with person.working() as first:
            view = person.open("die")
            await person.submit(served.slack, view)
            await first.child.wait()
        assert person.sees(view) == ARRIVED
        async with person.working():
            assert (await ended(connection, 1))["attempts"] == 2
        assert person.sees(view) == REFUSED
        # What is corrected there is a new submission, without the old error.
        async with person.working(), ingest(person.database, LONG) as patient:
            await person.submit(patient.slack, view, "ada@example.com")
            assert person.sees(view) == []


@pytest.mark.parametrize("closed", [False, True])
async def test_modal_whose_handler_answers_late_shows_the_answer_unless_it_was_closed(
    person: Person, connection: Connection, tmp_path: Path, closed: bool
) -> None:
    say = tmp_path / "say"
    async with ingest(person.database, SHORT) as served, person.working():
        view = person.open(str(say))
        await person.submit(served.slack, view)
        assert person.sees(view) == ARRIVED
        await claimed(connection, 1)
        if closed:
            person.stand.simulator.interactions.views.close(view.id)
        say.touch()
        assert json.loads((await ended(connection, 1))["result"]) is not closed
        assert person.sees(view) == ([] if closed else REFUSED)


async def test_modal_waits_for_the_next_attempt_closes_once_claimed_or_stays_open_where_no_route_takes_it(
    person: Person, connection: Connection
) -> None:
    """Of the last one Slack says that it had trouble connecting."""
    async with ingest(person.database, LONG) as served, person.working():
        errors = await person.submit(served.slack, person.open("fail"))
        assert errors == {"email": "This is no address."}
        assert (await ended(connection, 1))["attempts"] == 2
        for number, (callback_id, errors) in enumerate([("unanswered", {}), ("unknown", {"": TROUBLE})], 2):
            view = person.open(callback_id=callback_id)
            assert await asyncio.wait_for(person.submit(served.slack, view), 25) == errors
            assert bool(person.sees(view)) == bool(errors)
            assert (await ended(connection, number))["outcome"] == "completed"
