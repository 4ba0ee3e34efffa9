import pytest

from tests.e2e.program import Program


@pytest.fixture
def program(tmp_path):
    program = Program(tmp_path)
    yield program
    program.end()
