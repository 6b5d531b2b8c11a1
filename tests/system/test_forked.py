"""The harness itself: a forked program has a session, an environment, output and an end of its own."""

import os
import signal

from tests import forked
from tests.processes import clean_environment, free_port

NOWHERE = "postgresql://surelane@127.0.0.1:{port}/surelane"


async def test_a_program_has_the_environment_and_the_output_that_it_is_given() -> None:
    program = await forked.start("surelane_migrations", "verify", env={}, stderr=True)
    output, errors = await program.communicate()
    assert (program.returncode, output) == (2, b"")
    assert errors.startswith(b"error: DATABASE_URL is not set")
    assert os.environ


async def test_a_program_has_a_session_and_ends_by_its_signal() -> None:
    env = {**clean_environment(), "DATABASE_URL": NOWHERE.format(port=free_port())}
    program = await forked.start("surelane_migrations", "wait", env=env)
    assert os.getsid(program.pid) == program.pid
    program.kill()
    assert await program.wait() == program.returncode == -signal.SIGKILL
    program.kill()  # it has ended: no other process gets the signal
