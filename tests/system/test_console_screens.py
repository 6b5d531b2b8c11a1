"""Every screen of the page shows what it is for, and says what it does not find."""

import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import aiohttp
import asyncpg
import pytest

from surelane_operator.console.screens.queue import lacking
from surelane_operator.reads.timeline import outcome
from tests.browser.console_page import console_at
from tests.browser.console_scenes import (
    CAUSES,
    CHANNEL,
    Scenes,
    Stage,
    furnish,
    link_to,
    mention,
    seed,
    ts_of,
)


@dataclass
class Shown:
    """A served page, and what there is to see."""

    url: str
    session: aiohttp.ClientSession
    scenes: Scenes
    stage: Stage
    joining: int

    async def get(self, path: str) -> tuple[int, str]:
        async with self.session.get(f"{self.url}/console{path}") as answer:
            return answer.status, await answer.text()

    async def text(self, path: str, *words: str) -> str:
        status, text = await self.get(path)
        assert (status, [word for word in words if word not in text]) == (200, []), path
        return text


@pytest.fixture(scope="module")
async def shown(shared_database: str) -> AsyncIterator[Shown]:
    async with asyncpg.create_pool(shared_database, min_size=1, max_size=2) as pool:
        scenes = await seed(stage := Stage(pool))
        joining = await furnish(stage)
        async with console_at(pool) as url, aiohttp.ClientSession() as session:
            yield Shown(url, session, scenes, stage, joining)


SCREENS: dict[str, tuple[str, ...]] = {
    "/": ("slack.reaction_added", "ahead of the database"),
    "/events": ("slack.app_mention", "report"),
    "/kinds": ("report", "slack.message.im"),
    "/kinds/report": ("report", "Resume"),
    "/kinds/deploy": ("2 at once per workspace",),
    "/workers": ("worker-a",),
    "/workers/worker-a": ("worker-a", "agent-turn", "orchestrator-subtask"),
    "/waiting": ("deploy",),
    "/feedback": ("openai:gpt-5", "It is &lt;b&gt;wrong", "U0ADA00001"),
    "/feedback?rating=bad&workspace=T0SURELANE": ("It is &lt;b&gt;wrong",),
    "/feedback?rating=good": ("Nobody has rated",),
    "/feedback?rating=bad&workspace=T0OTHER": ("Nobody has rated",),
    "/workflows": ("Workflows", "orchestrator-synthesize"),
    "/schedules": ("Schedules", "daily"),
    "/schedules/daily": ("in Europe/Berlin", "nightly"),
    "/usage": ("Usage of models", "No model was asked"),
    "/actions": ("Actions", "set schedule"),
    "/doctor": ("Doctor", "ahead of the database"),
}
MISSING = (
    *("/kinds/never-stored", "/workers/nobody", "/events/999999999", "/workflows/999999999"),
    *("/schedules/none", "/waiting?cursor=nonsense", "/workflows?cursor=nonsense"),
)


async def test_a_screen_shows_what_there_is_and_says_what_it_does_not_find(shown: Shown) -> None:
    for path, words in SCREENS.items():
        await shown.text(path, *words)
    for path in MISSING:
        status, text = await shown.get(path)
        assert (status, "Not found" in text) == (404, True), path


async def test_the_cause_of_each_wait_and_end_is_one_click_from_the_overview(shown: Shown) -> None:
    overview = await shown.text("/")
    assert re.search(
        r'slack.reaction_added</a>\s*<span class="badge" data-state="problem">no worker<', overview
    )
    hours = re.search(r'<a href="/console/events\?workspace=T0SURELANE">.*?</tr>', overview, re.DOTALL)
    assert hours is not None
    counts = [int(each) for each in re.findall(r'data-heat="[1-5]">(\d+)<', hours[0])]
    assert (hours[0].count("<td"), sum(counts) >= 8) == (24, True)
    for cause, told in CAUSES.items():
        identity = getattr(shown.scenes, cause)
        assert f'href="/console/events/{identity}"' in overview, cause
        text = await shown.text(f"/events/{identity}")
        why = re.search(r'id="why"[^>]*>(.*?)</p>', text, re.DOTALL)
        assert why is not None, cause
        assert told in why[1], cause
    first = shown.scenes.first
    await shown.text(
        f"/events/{shown.scenes.behind}", f'<a href="/console/events/{first}">Event {first}</a> comes'
    )
    await shown.text(f"/events/{first}", "A worker handles it now")
    await shown.text(f"/events/{shown.scenes.failed}", "worker-a")
    await shown.text(f"/events/{shown.scenes.completed}", "It completed on attempt 1.")


async def test_kinds_without_traffic_and_surelanes_own_ones_are_folded_apart(shown: Shown) -> None:
    await shown.stage.calls.fetch("select agent.register_kinds(array['surelane.answer', 'idle'])")
    await shown.stage.calls.fetch("update agent.measurement set due = '-infinity'")
    busy, _, folded = (await shown.text("/")).partition('<details data-key="quiet">')
    quiet, _, internal = folded.partition('<details data-key="internal">')
    assert ["/console/kinds/report" in busy, "idle</a>" in quiet, "surelane.answer</a>" in internal] == [
        True
    ] * 3
    assert ("idle" in busy, "/console/kinds/surelane." in busy + quiet) == (False, False)


@pytest.mark.parametrize(
    ("errors", "said"),
    [
        ([], "It completed on attempt 3."),
        (["A"], "It completed on attempt 3. Before that it failed once: A"),
        (["A", "B"], "It completed on attempt 3. Before that it failed 2 times, last with B"),
    ],
)
def test_an_event_that_failed_before_it_completed_says_both(errors: list[str], said: str) -> None:
    event = {
        "status": "completed",
        "attempts": 3,
        "reason": None,
        "errors": [{"type": each} for each in errors],
    }
    assert outcome(event) == said


@pytest.mark.parametrize(
    ("workers", "missing"),
    [
        ([(0, None)], 0),
        ([(0, 50), (60, None)], 0),
        ([(0, 50), (10, None)], 1),
        ([(0, 50), (0, 55), (60, None)], 1),
        ([(0, 50)], 1),
        ([], 0),
    ],
    ids=["alive", "replaced", "gone", "one of two replaced", "none", "no workers"],
)
def test_a_worker_that_is_gone_counts_until_another_one_began(
    workers: list[tuple[int, int | None]], missing: int
) -> None:
    """Each worker has the minutes of its start and of its end."""
    start = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [
        {
            "alive": end is None,
            "started_at": start + timedelta(minutes=began),
            "seen_at": start + timedelta(minutes=100 if end is None else end),
        }
        for began, end in workers
    ]
    assert lacking(rows) == missing


async def test_a_search_leads_to_a_messages_one_event_or_to_what_may_have_happened(shown: Shown) -> None:
    ts, reply = ts_of(shown.stage.now - timedelta(minutes=40)), shown.scenes.reply
    payload = json.dumps(mention(900, ts))
    one, _ = [await shown.stage.calls.fetchval("select agent.insert_event($1)", payload) for _ in range(2)]
    thread = shown.scenes.thread.rpartition(":")[2]
    for link, identity in ((link_to(ts), one), (link_to(reply, thread), shown.scenes.behind)):
        await shown.text(f"/find?q={quote(link)}", f"Event {identity}</h1>")
    await shown.text(f"/events/{one}", ">Ev0CONSOLE900<")
    await shown.text(
        f"/find?q={quote(link_to('1700000000.000100'))}",
        *("No event of this message was stored.", "Events of this channel have come lately"),
        "count answers by status",
    )
    told = await shown.text(f"/thread?key={quote(shown.scenes.thread)}")
    events = [int(each) for each in re.findall(r">Event (\d+)</a>", told)]
    assert events == [shown.scenes.first, shown.scenes.behind]


async def test_filters_find_their_events_and_pages_go_on_where_the_last_one_ended(shown: Shown) -> None:
    stage = shown.stage
    broken = await stage.queue.enqueue("filtered", {"user_id": "U0BOB"}, max_attempts=1)
    await stage.claim("filtered", "worker-a")
    await stage.fail(broken, 1, last=True, message="something unheard of")
    payload = mention(0, ts_of(stage.now)) | {"event_id": "Ev0OTHER", "team_id": "T0OTHER"}
    payload["event"] |= {"channel": "C0OTHER", "user": "U0OTHER"}
    identity = await stage.calls.fetchval("select agent.insert_event($1)", json.dumps(payload))
    await stage.pool.execute("update agent.event set kind = 'filtered' where id = $1", identity)
    await stage.queue.enqueue("paged")
    await stage.pool.execute("select agent.enqueue('paged', '{}', 0) from generate_series(1, 74)")
    for query, count in {
        "workspace=T0OTHER": 1,
        "channel=C0OTHER": 1,
        "user=U0OTHER": 1,
        "error=unheard+of": 1,
        "text=other": 1,
        "key=Ev0OTHER": 1,
        "kind=filtered&status=failed": 1,
        "kind=filtered&status=failed,pending": 2,
        "kind=filtered&until=2026-01-01": 0,
        "kind=filtered&since=2026-01-01+12:00": 2,
        "kind=filtered&error=unheard&user=U0NOBODY": 0,
    }.items():
        text = await shown.text(f"/events?{query}")
        assert text.count('<tr data-key="e') == count, query
    for query, wrong in {
        "since=now": "Write times",
        "status=done": "A state is",
        "tag=x": "Write tags",
    }.items():
        assert wrong in await shown.text(f"/events?kind=filtered&{query}"), query
    first = await shown.text("/events?kind=paged")
    (older,) = re.findall(r'href="/console([^"]*)" rel="next">Older<', first)
    pages = [first, await shown.text(older.replace("&amp;", "&"))]
    rows = [re.findall(r'<tr data-key="e(\d+)"', page) for page in pages]
    assert (len(rows[1]), len({*rows[0], *rows[1]}), 'rel="next"' in pages[1]) == (25, 75, False)


async def test_a_reply_leads_to_its_message(shown: Shown) -> None:
    identity = await shown.stage.message("replying", timedelta(minutes=4))
    await shown.stage.claim("replying", "worker-a")
    notes = {
        "replies": {"0": "1767225600.000100", "1": None, "2": "", "3": "1767225700.000200"},
        "elsewhere": {"3": "C0OTHER"},
        "streams": {"4": {"ts": "1767225800.000300", "stopped": True}},
    }
    await shown.stage.calls.fetch("select agent.note_event($1, 1, $2)", identity, json.dumps(notes))
    await shown.stage.calls.fetch("select agent.complete_events(array[$1::int8], array[1])", identity)
    text = await shown.text(f"/events/{identity}")
    links = re.findall(
        r'channel=(\w+)&amp;message_ts=(17672257|17672258|17672256)[^"]*"[^>]*>open the mess', text
    )
    assert links == [(CHANNEL, "17672256"), ("C0OTHER", "17672257"), (CHANNEL, "17672258")]
    assert text.count('<span class="what">replied') == 3


async def test_an_open_question_leads_to_its_event_and_message(shown: Shown) -> None:
    text, asks = await shown.text("/waiting"), shown.scenes.asks
    (row,) = re.findall(rf'<tr data-key="{asks} approve deploy:1">(.*?)</tr>', text, re.DOTALL)
    message = (
        f"https://slack.com/app_redirect?team=&amp;channel={CHANNEL}&amp;message_ts={ts_of(shown.stage.now)}"
    )
    for part in ("Deploy web 7.1?", "Approve · Reject", "<code>U0ADA00001</code>"):
        assert part in row, part
    assert re.findall(r'href="([^"]*)"', row)[::2] == [f"/console/events/{asks}", message], row


async def test_a_workflow_is_a_tree_that_any_of_its_events_opens(shown: Shown) -> None:
    await shown.text("/workflows", f"/console/workflows/{shown.joining}")
    tree = await shown.text(f"/workflows/{shown.joining}", "ValueError")
    assert len(re.findall(r'<p class="leaf"[^>]*>\s*<span[^>]*>\w+</span> lookup', tree)) == 3
    inner = await shown.stage.calls.fetchval("select min(id) from agent.event where kind = 'lookup'")
    path = (await shown.text(f"/workflows/{inner}")).partition("Way from the root")[2].partition("</nav>")[0]
    assert path.count("<a href=") == 2


async def test_an_event_shows_a_failed_step_and_like_its_worker_its_tags_and_progress(shown: Shown) -> None:
    await shown.stage.calls.fetch(
        "select agent.announce_worker('worker-new', '{charge}', '1.1.0', interval '0', 3)"
    )
    identity = await shown.stage.queue.enqueue("charge")
    await shown.stage.claim("charge", "worker-new")
    for call in (
        "select agent.store_step($1, 1, 'pay', 1, null, null, '[]', interval '1 second', true)",
        """select agent.store_tags($1, 1, '{"customer": {"found_by": "Acme Inc.", "value": "Acme Inc."}}')""",
        """select agent.open_step($1, 1, 'progress', 0, '"3 of 7 files"')""",
    ):
        await shown.stage.calls.fetch(call, identity)
    text = await shown.text(f"/events/{identity}", "pay: ", 'id="progress"', "3 of 7 files")
    line = text.partition('-step failed for good"')[2].partition("</li>")[0]
    assert 'data-state="failed"' in line
    (address,) = re.findall(r'href="/console(/events\?tag=[^"]*)">Acme Inc.<', text)
    await shown.text(address, f'href="/console/events/{identity}"', 'value="customer:Acme Inc."')
    tag = "/console/events?tag=customer%3AAcme"
    await shown.text("/workers/worker-new", f'href="/console/events/{identity}"', "3 of 7 files", tag)
    _, text = await shown.get("/workers")
    versions = re.findall(r'<dt>([\d.]+)</dt><dd>\d+ workers?: .*?">(worker-[\w]+)', text)
    assert versions == [("1.0.0", "worker-a"), ("1.1.0", "worker-new")]
    assert "Live workers run 2 versions" in text


async def test_usage_shows_tokens_and_cost_by_day_workspace_and_model_of_the_last_thirty_days(
    shown: Shown,
) -> None:
    for day, team, user, model, cost in (
        (0, "TDEAR", "U1", "openai:gpt-5", "0.5"),
        (0, "TDEAR", "U2", "openai:gpt-5", "1.25"),
        (0, "TCHEAP", "U1", "local:<b>", "0"),
        (1, "", "", "openai:gpt-5", "9"),
        (29, "TOLDEST", "U1", "m", "1"),
        (30, "TGONE", "U1", "m", "1"),
    ):
        await shown.stage.calls.fetch(
            "insert into agent.model_usage (day, owner_id, user_id, model, requests, input_tokens, output_tokens"
            ", cost, latest) select (agent.clock() at time zone 'utc')::date - $1::int4, $2, $3, $4, 2, 1000, 500"
            ", $5::text::numeric, ''",
            *(day, team, user, model, cost),
        )
    text = await shown.text("/usage")
    drawn, _, listed = text.partition('<caption class="unseen">Usage of models')
    assert [drawn.count(each) for each in ("<svg", "<title>", ">Tokens</title>")] == [2, 7, 1]
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in listed.split("<tr data-key=")[1:]]
    today, yesterday = rows[0][0], rows[2][0]
    assert rows[:3] == [
        [today, "TDEAR", "openai:gpt-5", "4", "2,000", "1,000", "1.7500"],
        [today, "TCHEAP", "local:&lt;b&gt;", "2", "1,000", "500", "0.0000"],
        [yesterday, '<span class="soft">none</span>', "openai:gpt-5", "2", "1,000", "500", "9.0000"],
    ]
    assert today > yesterday
    assert ("TOLDEST" in text, "TGONE" in text, "U1" in text) == (True, False, False)
    assert 'scope="row"' in listed
    async with shown.session.get(f"{shown.url}/v1/usage") as answer:
        found = (await answer.json())["usage"]
    assert (len(found), found[0]["workspace"], float(found[0]["cost"])) == (4, "TDEAR", 1.75)


@pytest.mark.parametrize("path", ["/", "/kinds/slack.message.im", "/?span=day", "/?span=nonsense"])
async def test_what_happened_is_drawn_over_time_with_a_table_for_each_drawing(
    shown: Shown, path: str
) -> None:
    async with console_at(shown.stage.pool) as url:  # another one keeps what it has read for some seconds
        text = await replace(shown, url=url).text(path)
    charts = re.findall(r'<figure class="chart".*?</figure>', text, re.DOTALL)
    assert [re.findall(r'<title id="[^"]*">([^<]*)', each) for each in charts] == [
        ["Depth"],
        ["Completed and cancelled"],
        ["Failed and expired"],
        ["Wait for a worker"],
    ]
    kind = path.removeprefix("/kinds/") if "kinds" in path else None
    count = "select count(*) from agent.event_hist where outcome = 'completed' and kind = coalesce($1, kind)"
    completed = await shown.stage.calls.fetchval(count, kind)
    for drawn in (
        re.findall(r"<title data-at=[^>]*>\d\d:\d\d: completed (\d+), cancelled 0</title>", charts[1]),
        re.findall(
            r'<th scope="row"><time [^>]*>\d\d:\d\d</time></th><td class="number">(\d+)</td>', charts[1]
        ),
    ):
        assert sum(map(int, drawn)) == completed >= 6
    assert ('<rect data-state="failed"' in charts[2]) == (path[1:6] != "kinds")
    assert ("The last day, by half hours" in text) == ("day" in path)


async def test_the_screen_of_installations_tells_how_each_does_and_which_is_away(
    shown: Shown, shared_database: str
) -> None:
    assert "/console/shards" not in (await shown.get("/"))[1]
    assert "SURELANE_SHARDS names them" in (await shown.get("/shards"))[1]
    shards = {"alpha": shared_database, "beta": "postgresql://127.0.0.1:9/away"}
    async with (
        asyncpg.create_pool(shared_database, min_size=1, max_size=1) as pool,
        console_at(pool, shards=shards) as url,
    ):
        other = replace(shown, url=url)
        assert '<a href="/console/shards">All 2 installations</a>' in (await other.get("/"))[1]
        _, text = await other.get("/shards")
    alpha, beta = re.findall(r'<tr data-key="(?:alpha|beta)">(.*?)</tr>', text, re.DOTALL)
    waiting, running, later, workers = map(int, re.findall(r'<td class="number">(\d+)</td>', alpha))
    assert min(waiting, running, workers) > 0
    assert later >= 0
    assert "away" in beta
    assert "number" not in beta


async def test_steps_are_drawn_over_time_and_what_has_ended_has_one_button_to_run_again(shown: Shown) -> None:
    live, ended = [
        (await shown.get(f"/events/{each}"))[1] for each in (shown.scenes.asks, shown.scenes.completed)
    ]
    rows = re.findall(
        r'<tr data-key="w\d+"><th scope="row">([^<]*)</th>.*?<rect data-state="(\w+)"', live, re.DOTALL
    )
    assert rows == [
        ("plan", "completed"),
        ("approve deploy:1 asked", "completed"),
        ("approve deploy:1", "waits"),
    ]
    assert "Steps over time" not in ended
    button = re.compile(r"<button[^>]*>(Run [^<]*)<")
    buttons = [button.findall(each.partition('class="columns"')[0]) for each in (live, ended)]
    assert buttons == [[], ["Run again"]]
    assert "Its handler does everything once more" in ended
