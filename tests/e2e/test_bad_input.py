"""What is wrong with a script, a config, the rows or the home is told in clear lines before anything trains."""

import pytest

pytestmark = pytest.mark.slow

MODULES = 'target_modules=["q_proj", "v_proj"]'


def lines(program, *arguments):
    """What the program said of its faults: lines of its own, no traceback, and no process is left."""
    said = program.call("run", program.script, "--headless", "--", *(arguments or (6, 4)), code=2)
    assert "Traceback" not in said and program.nothing_left()
    return [line.removeprefix("rftui: ") for line in said.splitlines() if line.startswith("rftui: ")], said


def test_a_script_that_raises(program):
    program.edit("create_model = None", "raise RuntimeError('the rows are gone')")
    [line], _ = lines(program)
    assert line.startswith("RuntimeError: the rows are gone (") and "; the traceback is in " in line
    assert f"{program.script}:" in line and not (program.home / "tiny").exists()


def test_a_script_that_trains_nothing(program):
    program.script.write_text("from rftui import Experiment\nExperiment(experiment_name='tiny').end()\n")
    [line], _ = lines(program)
    assert "trained nothing" in line and "run_fit" in line


@pytest.mark.parametrize(
    ("before", "after", "word"),
    [
        ("rows, rows[:6]", "[], rows", "train_dataset has no rows"),
        ("rows, rows[:6]", "rows, []", "eval_dataset has no rows"),
        ("rows, rows[:6]", "{'train': rows}, None", "dataset['train']"),
        ("num_chunks=3", "num_chunk=3", "did you mean 'num_chunks'?"),
    ],
)
def test_what_run_fit_is_given(program, before, after, word):
    program.edit(before, after)
    [line], _ = lines(program)
    assert word in line


def test_faults_of_the_configs_are_told_together(program):
    program.edit(MODULES, "target_modules=List([['query_key_value'], ['q_proj']])")
    program.edit("learning_rate=5e-3", "lerning_rate=5e-3")
    found, said = lines(program)
    faults = "\n".join(found)
    assert "training_args.lerning_rate is not an argument of SFTConfig; did you mean 'learning_rate'?" in faults
    assert "has no query_key_value; its linear modules are " in faults and "gate_proj" in faults
    assert all(said.count(fault) == 1 for fault in found)
    assert not (program.home / "tiny").exists() and not (program.home / "mlflow.db").exists()


def test_faults_of_model_and_rows_are_told_together(program):
    program.edit("model_name=", "model_name='/nowhere/model' or ")
    program.edit("create_model = None", "rows = [{'question': 'why', 'reply': 'so'}] * 12; create_model = None")
    found, _ = lines(program)
    faults = "\n".join(found)
    assert "there is no directory /nowhere/model" in faults
    assert "question" in faults and "formatting_func" in faults


def test_a_home_that_cannot_be_written(program):
    program.home.write_text("a file")
    [line], _ = lines(program)
    assert f"cannot write to {program.home}" in line and "--home" in line
