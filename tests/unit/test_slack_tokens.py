"""Tokens are looked up once per installation and period, and an event gets no other workspace's."""

import asyncio
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import pytest

from surelane.errors import DatabaseUnavailable
from surelane.events import Event
from surelane_service.installations import BOT, Owner, Stored
from surelane_worker.slack import tokens as module
from surelane_worker.slack.client import SlackClients
from surelane_worker.slack.tokens import BotTokens, NotInstalledError, Refresher, owner_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def event(payload: Mapping[str, Any], kind: str = "slack.app_mention") -> Event:
    return Event(1, kind, NOW, 1, 1, NOW, json.dumps(payload))


class Store:
    """The installations of T1 and T2, and of the organization E1; counts the lookups."""

    def __init__(self) -> None:
        self.lookups: list[Owner] = []
        self.away = False
        self.suffix = ""
        self.reporter: Owner | None = None
        self.installed = {Owner("T1"), Owner("T2"), Owner("E1", enterprise_wide=True)}

    async def find(self, owner: Owner, user_id: str | None) -> Mapping[str, Stored]:
        assert user_id == BOT
        self.lookups.append(owner)
        await asyncio.sleep(0)
        if self.away:
            raise DatabaseUnavailable("away")
        if owner not in self.installed:
            return {}
        values = {"bot_token": f"xoxb-{owner.identity}{'-wide' * owner.enterprise_wide}{self.suffix}"}
        return {BOT: Stored(owner, BOT, "A1", values, None, 1, NOW)}

    def tokens(self) -> BotTokens:
        return self.tokens_by(lambda token: cast("SlackClients", token))

    def tokens_by(self, make: Callable[[str], SlackClients]) -> BotTokens:
        stored = SimpleNamespace(await_one=self.await_one, other_reporter=self.other)
        return BotTokens(cast("Refresher", SimpleNamespace(find=self.find, installations=stored)), make)

    async def other(self, event_id: int) -> Owner | None:
        assert event_id == 1
        return self.reporter

    async def await_one(self, event_id: int, owner: Owner, until: datetime) -> bool:
        assert (event_id, until) == (1, NOW)
        if self.away:
            raise DatabaseUnavailable("away")
        return owner in self.installed


@pytest.mark.parametrize(
    ("payload", "owner"),
    [
        ({"authorizations": [{"team_id": "T1", "enterprise_id": None}], "team_id": "T9"}, Owner("T1")),
        ({"authorizations": [{"team_id": "T1", "enterprise_id": "E1"}]}, Owner("T1")),
        (
            {"authorizations": [{"team_id": "T1", "enterprise_id": "E1", "is_enterprise_install": True}]},
            Owner("E1", enterprise_wide=True),
        ),
        ({"team_id": "T1", "enterprise_id": "E1", "is_enterprise_install": "false"}, Owner("T1")),
        ({"team_id": "T1", "enterprise_id": "E1", "is_enterprise_install": "true"}, Owner("E1", True)),
        ({"team": {"id": "T1"}, "enterprise": None, "is_enterprise_install": False}, Owner("T1")),
        ({"team": None, "enterprise": {"id": "E1"}, "is_enterprise_install": True}, Owner("E1", True)),
        ({"authorizations": [], "team_id": "T1"}, Owner("T1")),
        ({"authorizations": "hostile", "team_id": 5}, None),
        ({}, None),
    ],
)
def test_an_event_names_its_installation(payload: Mapping[str, Any], owner: Owner | None) -> None:
    assert owner_of(event(payload)) == owner


async def test_a_kept_token_is_that_of_the_installation_that_the_event_names() -> None:
    store = Store()
    store.installed |= {Owner("T1", enterprise_wide=True), Owner("T2", enterprise_wide=True)}
    tokens, now = store.tokens(), asyncio.get_running_loop().time()
    for each in store.installed:
        await tokens.clients_of(each)
    teams = ("T1", "T2", "E1", "", None, 5, ["T1"], {"id": "T1"})
    named: list[dict[str, Any]] = [
        {"team_id": team, "enterprise_id": enterprise, "is_enterprise_install": wide}
        for team, enterprise, wide in product(teams, ("E1", "T2", None), (True, False, None, "true", "false"))
    ]
    authorizations: list[Any] = [[each] for each in named]
    authorizations += [[], [None], ["T1"], "T1", {"team_id": "T1"}, [{}, {"team_id": "T1"}], None]
    payloads = [*named, *({"team_id": "T2", "authorizations": each} for each in authorizations)]
    kept = 0
    for payload in payloads:
        found = tokens.kept(payload, now)
        owner = owner_of(event(payload))
        assert found is None or (owner is not None and found == await tokens.clients_of(owner)), payload
        kept += found is not None
    assert kept > 20  # it does find some
    assert tokens.kept({"team_id": "T1"}, now) is not None
    assert tokens.kept({"team_id": "T1"}, now + module.KEPT_FOR.total_seconds()) is None


async def test_many_events_of_a_workspace_cause_one_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    tokens = store.tokens()
    events = [event({"team_id": team}) for team in ("T1", "T2") * 50]
    found = await asyncio.gather(*(tokens.clients_for(each) for each in events))
    assert [str(each) for each in found] == ["xoxb-T1", "xoxb-T2"] * 50
    assert sorted(each.identity for each in store.lookups) == ["T1", "T2"]
    monkeypatch.setattr(module, "MOST", 1)
    tokens, store.lookups = store.tokens(), []
    for team in ("T1", "T1", "T2", "T2", "T1"):
        await tokens.clients_of(Owner(team))
    assert [each.identity for each in store.lookups] == ["T1", "T2", "T1"], "few are kept"
    tokens = store.tokens()
    first, second = [asyncio.create_task(tokens.clients_of(Owner("T1"))) for _ in range(2)]
    await asyncio.sleep(0)
    first.cancel()
    assert str(await second) == "xoxb-T1", "the wait of one event is cancelled alone"


async def test_an_event_without_an_installation_gets_no_token_but_that_of_another_reporter() -> None:
    store = Store()
    tokens = store.tokens()
    with pytest.raises(NotInstalledError):
        await tokens.clients_for(event({"team_id": "T3"}))
    with pytest.raises(NotInstalledError):  # the organization's token is for events of its own installation
        await tokens.clients_for(event({"team_id": "T3", "enterprise_id": "E1"}))
    assert await tokens.clients_for(event({"team_id": "T3"}, "job")) is None
    assert await tokens.clients_for(event({}, "job")) is None
    shared = {"team_id": "T3", "is_ext_shared_channel": True}
    with pytest.raises(NotInstalledError) as raised:
        await tokens.clients_for(event(shared))
    assert raised.value.owner == Owner("T3")
    store.reporter = Owner("T2")
    assert str(await tokens.clients_for(event(shared))) == "xoxb-T2"
    first = await tokens.clients_for(event(shared | {"team_id": "T1"}))
    assert str(first) == "xoxb-T1", "the first one has the app"
    with pytest.raises(NotInstalledError):
        await tokens.clients_for(event({"team_id": "T3"}))
    store.reporter = Owner("T4")
    with pytest.raises(NotInstalledError) as raised:
        await tokens.clients_for(event(shared))
    assert raised.value.owner == Owner("T3")


async def test_tokens_are_looked_up_again_and_clients_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    store, made = Store(), list[str]()

    def make(token: str) -> SlackClients:
        made.append(token)
        return cast("SlackClients", token)

    tokens = store.tokens_by(make)
    monkeypatch.setattr(module, "KEPT_FOR", module.KEPT_FOR * 0)
    for suffix in ("", "", "-new", "-new", ""):
        store.suffix = suffix
        assert str(await tokens.clients_of(Owner("T1"))) == f"xoxb-T1{suffix}"
    assert made == ["xoxb-T1", "xoxb-T1-new", "xoxb-T1"]
    assert len(store.lookups) == 5
    store = Store()
    tokens = store.tokens()
    assert await tokens.clients_of(Owner("T1"))
    store.away = True
    assert str(await tokens.clients_of(Owner("T1"))) == "xoxb-T1"  # the last one, while the database is away
    with pytest.raises(DatabaseUnavailable):
        await tokens.clients_of(Owner("T2"))
    store.away = False
    old = await tokens.clients_of(Owner("T1"))
    assert old is not None
    assert not await tokens.is_replaced(Owner("T1"), old)
    store.suffix = "-new"
    assert await tokens.is_replaced(Owner("T1"), old), "the app was installed again within the minute"
    assert str(await tokens.clients_of(Owner("T1"))) == "xoxb-T1-new"
    store.installed.clear()
    assert await tokens.clients_of(Owner("T1")) is None


async def test_a_missing_install_is_news_once_until_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    tokens = store.tokens()
    news = [tokens.is_news(Owner(team)) for team in ("T3", "T3", "T4", "T3", "T4")]
    assert news == [True, False, True, False, False]
    store.installed.add(Owner("T3"))
    await tokens.clients_of(Owner("T3"))
    assert [tokens.is_news(Owner(team)) for team in ("T3", "T4", "T3")] == [True, False, False]
    monkeypatch.setattr(module, "MOST", 2)
    assert tokens.is_news(Owner("T5"))
    assert len(tokens.missing) == 2
    store.installed.clear()
    waiting = event({"team_id": "T3"})
    assert await tokens.wait(waiting, Owner("T3"), NOW) is None  # the install wakes it
    store.installed.add(Owner("T3"))
    assert await tokens.wait(waiting, Owner("T3"), NOW) == module.MISSING_FOR
    store.away = True
    assert await tokens.wait(waiting, Owner("T3"), NOW) is None
