"""What each of PostgreSQL's error codes says of a call."""

from inspect import isclass

import asyncpg
import pytest
from asyncpg import exceptions

from surelane.errors import (
    CONTENT,
    Report,
    blames_server,
    described,
    of_server,
    refuses_call,
    report_of,
    told,
)

CODES = {
    each.sqlstate
    for each in vars(exceptions).values()
    if isclass(each) and issubclass(each, asyncpg.PostgresError) and each.sqlstate
}
VERDICTS = {
    "InvalidInput": CONTENT,
    "TransientConflict": {"40001", "40P01"},
    "Conflict": {"23505", "55P03"},
    "TransactionAborted": {"25P02"},
    "Forbidden": {"42501"},
    "SchemaMissing": {"42703", "42883", "42P01", "3F000"},
    "DatabaseUnavailable": {"25006", "25P03", "25P04"}
    | {code for code in CODES if code[:2] in ("08", "28", "3D", "53", "57") and code != "53200"},
}
"""Every other code is DatabaseRefused: the server's state, its settings, or what others made in it."""
OTHERS = 'PL/pgSQL function public.audit() line 3 at RAISE\nSQL statement "insert …"'
OURS = (
    "PL/pgSQL function agent.require_kind(text) line 5 at RAISE\nPL/pgSQL function agent.enqueue(text) line 2"
)


@pytest.mark.parametrize("code", sorted({*CODES, "", "SL001", "ZZ999", "28P01", "72000", "XX002"}))
def test_each_code_has_a_verdict_and_only_content_is_the_calls_fault(code: str) -> None:
    named = next((name for name, codes in VERDICTS.items() if code in codes), "DatabaseRefused")
    found = of_server("no", code, "ERROR", uncertain=False, report=Report(code, about="agent.enqueue"))
    assert (type(found).__name__, refuses_call(found)) == (named, code in CONTENT)
    beside = {"23505", "25P02", "40001", "40P01", "55P03"}
    assert blames_server(found) is (code not in CONTENT | beside)
    others = of_server("no", code, "ERROR", uncertain=False, report=report_of(code, OTHERS, ()))
    assert not refuses_call(others), "a trigger of others never decides"


def test_a_full_queue_of_notifications_is_no_calls_fault() -> None:
    """PostgreSQL 17 says at the commit, without a context: 54000, too many notifications in the NOTIFY queue."""
    full = of_server("too many", "54000", "ERROR", uncertain=False, report=report_of("54000", None, ()))
    assert (type(full).__name__, refuses_call(full), blames_server(full)) == ("DatabaseRefused", False, True)


def test_the_table_is_whole() -> None:
    assert len(CODES) >= 250
    assert CODES >= CONTENT


@pytest.mark.parametrize(("code", "refused"), [("42501", True), ("23505", True), ("55P03", False)])
def test_what_a_function_of_ours_refuses_on_purpose_is_the_calls_fault(code: str, refused: bool) -> None:
    report = report_of(code, OURS, (), "select agent.enqueue($1)")
    assert (report.about, report.meant, report.call) == ("agent.require_kind", True, "agent.enqueue")
    error = of_server("no", code, "ERROR", uncertain=False, report=report)
    assert (refuses_call(error), blames_server(error)) == (refused, False)


def test_a_line_has_code_message_object_and_call_but_no_refused_value() -> None:
    where = ("public", "event", None, "no_poison")
    report = report_of("23514", None, where, "select * from agent.insert_events($1)")
    error = of_server("CheckViolationError: new row", "23514", "ERROR", uncertain=False, report=report)
    assert described(error) == {
        "error": "DatabaseRefused",
        "sqlstate": "23514",
        "reason": "CheckViolationError: new row",
        "object": "public.event.no_poison",
        "call": "agent.insert_events",
    }
    assert told(error) == (
        "DatabaseRefused: CheckViolationError: new row (23514, public.event.no_poison, in agent.insert_events)"
    )
    quoting = of_server("a secret", "22P02", "ERROR", uncertain=False, report=Report("22P02"))
    assert "secret" not in told(quoting)
