"""The schema has the documented names, parameters, defaults and columns; times are exact to the microsecond."""

from datetime import UTC, datetime
from decimal import Decimal

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from surelane.calls import Connection

DOCUMENTED = {
    "insert_event": ["_event jsonb"],
    "claim_event": ["_max_attempts integer DEFAULT 3, _invisible_for interval DEFAULT '00:10:00'::interval"],
    "delete_event": ["_id bigint"],
    "delete_expired_events": [
        "_max_attempts integer DEFAULT 3, _max_vt_age interval DEFAULT '01:00:00'::interval"
    ],
    "to_timestamptz": ["_ts numeric", "_ts text"],
    "from_timestamptz": ["_ts timestamp with time zone"],
}

ONE_EXAMPLE_A_DATABASE = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


async def test_functions_and_columns_are_as_documented_and_few_have_two_forms(queue: Connection) -> None:
    rows = await queue.fetch(
        "select proname, array_agg(pg_get_function_arguments(oid) order by 1) as forms from pg_proc"
        " where pronamespace = 'agent'::regnamespace group by 1"
    )
    forms = {row["proname"]: row["forms"] for row in rows}
    assert {name: sorted(forms[name]) for name in DOCUMENTED} == DOCUMENTED
    # They are the conversion, and a job's short form.
    assert {name for name, each in forms.items() if len(each) > 1} == {"to_timestamptz", "enqueue"}
    rows = await queue.fetch(
        "select attname, format_type(atttypid, atttypmod) as type, attnotnull from pg_attribute"
        " where attrelid = 'agent.event'::regclass and attnum between 1 and 6 order by attnum"
    )
    assert [tuple(row) for row in rows] == [
        ("id", "bigint", True),
        ("event_ts", "timestamp with time zone", True),
        ("attempts", "integer", True),
        ("vt", "timestamp with time zone", True),
        ("claimed", "timestamp with time zone[]", True),
        ("event", "jsonb", True),
    ]
    missing = await queue.fetch(
        "select attname, atttypid from pg_attribute where attrelid = 'agent.event'::regclass and attnum > 0"
        " except select attname, atttypid from pg_attribute where attrelid = 'agent.event_hist'::regclass"
    )
    assert missing == [], "history has every column with its type"


async def test_every_function_is_safe_to_call_with_rights_of_its_owner(queue: Connection) -> None:
    """Functions that run as their owner pin the search path. By default no role may call any function."""
    unpinned = await queue.fetch(
        "select proname from pg_proc where pronamespace = 'agent'::regnamespace and prosecdef"
        " and not coalesce(array_to_string(proconfig, ',') like '%search_path=pg_catalog, pg_temp%', false)"
    )
    public = await queue.fetch(
        "select proname from pg_proc cross join aclexplode(coalesce(proacl, acldefault('f', proowner))) as grants"
        " where pronamespace = 'agent'::regnamespace and grants.grantee = 0 and proname <> 'clock'"
    )
    # What is switched off and unavoidable has a huge estimated cost, and JIT would take 100 ms per call.
    compiled = await queue.fetch(
        "select proname from pg_proc where pronamespace = 'agent'::regnamespace"
        " and proconfig && array['enable_seqscan=off', 'enable_sort=off'] and 'jit=off' <> all(proconfig)"
    )
    assert (unpinned, public, compiled) == ([], [], [])


@ONE_EXAMPLE_A_DATABASE
@given(moment=st.datetimes(timezones=st.just(UTC)))
async def test_every_moment_survives_the_way_to_slack_and_back(queue: Connection, moment: datetime) -> None:
    [(there, back_from_number, back_from_text)] = await queue.fetch(
        "select u, agent.to_timestamptz(u), agent.to_timestamptz(u::text) from agent.from_timestamptz($1) as u",
        moment,
    )
    since_epoch = moment - datetime(1970, 1, 1, tzinfo=UTC)
    assert there == Decimal(since_epoch.days * 86400 + since_epoch.seconds) + Decimal(
        since_epoch.microseconds
    ).scaleb(-6)
    assert (back_from_number, back_from_text) == (moment, moment)


@ONE_EXAMPLE_A_DATABASE
@given(number=st.decimals(min_value=-62135596800, max_value=253402300799, places=6))
async def test_every_unix_timestamp_survives_postgresql_and_back(queue: Connection, number: Decimal) -> None:
    assert (
        await queue.fetchval("select agent.from_timestamptz(agent.to_timestamptz($1::numeric))", number)
        == number
    )


async def test_the_conversion_does_not_depend_on_the_session(queue: Connection) -> None:
    """Neither the time zone nor the format of intervals changes the result."""
    expected = datetime(2016, 7, 25, 18, 16, 31, 759709, tzinfo=UTC)
    async with queue.transaction():
        await queue.execute("set local timezone = 'America/New_York'; set local intervalstyle = sql_standard")
        assert await queue.fetchval("select agent.to_timestamptz('1469470591.759709')") == expected
    rows = await queue.fetch("select agent.to_timestamptz(null::text), agent.from_timestamptz(null)")
    assert [tuple(row) for row in rows] == [(None, None)]
