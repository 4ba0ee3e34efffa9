"""A home and a script for each test, and one training that nobody disturbed."""

import pytest

from tests.e2e.program import Program


@pytest.fixture
def program(tmp_path):
    program = Program(tmp_path)
    yield program
    program.end()


LONG = ("run", "--headless", "--", 96, 1)
"""96 steps for each of two runs: long enough to be caught while they train."""


@pytest.fixture
def long_run(program):
    """The long training, just started: its process."""
    with program.start("run", program.script, *LONG[1:]) as child:
        yield child
        program.end()
