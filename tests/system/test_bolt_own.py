"""A Bolt app that asks for its own messages gets them through ingest, with their metadata."""

from surelane.calls import Connection
from surelane_dev.simulator.posting.events import envelope, events_of
from surelane_dev.simulator.workspace.model import Message, Posted
from tests.system.bolt import bolt
from tests.system.ingest_client import served


async def test_own_message_arrives_with_its_metadata(database: str, connection: Connection) -> None:
    async with (
        served(database, own_events=True) as ingest,
        bolt(database, "tests.system.bolt_apps.own:app") as app,
    ):
        workspace = app.slack.simulator.workspace
        direct = workspace.direct_messages(app.slack.user().id)

        async def report(message: Message) -> int:
            (event,) = events_of(workspace, Posted(message), {"message.im"})
            assert (await ingest.slack.event(envelope(workspace, event))).status == 200
            return int(await connection.fetchval("select last_value from agent.event_id_seq"))

        await app.completed(await report(workspace.post(direct, app.slack.user().id, "hello")))
        *_, own = direct.messages.values()
        assert own.text == "working"
        await app.completed(await report(own))
        assert [message.text for message in direct.messages.values()][-2:] == ["working", "did 7"]
