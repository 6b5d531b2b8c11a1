"""The SQL of the documentation runs on a database with our schema. Nothing of it is kept."""

import pytest

from surelane.calls import Connection
from tests.docs.blocks import Block, blocks
from tests.system.shared import shared_connection

NOT_RUN = ("timescaledb.compress",)
"""What runs on TimescaleDB's Community edition alone, which the tests do not have."""


connection = shared_connection


@pytest.mark.parametrize(
    "block", [block for block in blocks("sql") if not any(part in block.code for part in NOT_RUN)], ids=str
)
async def test_statements_run(block: Block, connection: Connection) -> None:
    if "concurrently" in block.code:  # which cannot run inside a transaction
        await connection.execute(block.code)
        return
    name = await connection.fetchval("select current_database()")
    transaction = connection.transaction()
    await transaction.start()
    try:
        await connection.execute(block.code.replace("database surelane ", f"database {name} "))
    finally:
        await transaction.rollback()


def test_what_is_not_run_is_there() -> None:
    assert all(any(part in block.code for block in blocks("sql")) for part in NOT_RUN)
