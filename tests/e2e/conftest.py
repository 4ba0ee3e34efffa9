"""A home and a script for each test, and one training that nobody disturbed."""

import pytest

from tests.e2e.program import LONG, Program, listening


@pytest.fixture
def program(tmp_path):
    program = Program(tmp_path)
    yield program
    program.end()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """A program whose long training ran headless to its end: `output`, and what `listened` while it trained."""
    program = Program(tmp_path_factory.mktemp("undisturbed"))
    child = program.start("run", program.script, "--headless", "--", *LONG)
    try:
        program.until(lambda: program.show(1)["step"] > 3)
        # rftui, the scheduler, its worker, tracking
        busy = program.until(lambda: len(found := program.processes()) >= 4 and found)
        program.listened = listening(busy)
        program.output = child.communicate(timeout=240)[0]
        assert child.returncode == 0, program.output
        program.nothing_left()
        yield program
    finally:
        program.end()
        child.communicate()
