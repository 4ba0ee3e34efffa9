"""What must stay light: each of these is run in a process of its own, which then says what it has loaded."""

import subprocess
import sys

import pytest

MODELS = {"torch", "transformers", "trl", "peft", "accelerate", "datasets", "mlflow"}
SCREEN = {"textual", "plotext"}


def loaded(code, home):
    """The top-level packages that are loaded after `code`."""
    report = "import sys; print('LOADED', *{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"],
        env={"PATH": "/usr/bin:/bin", "RFTUI_HOME": str(home)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split()[1:])


@pytest.mark.parametrize(
    "arguments", [["ls"], ["ls", "--json"], [], ["show", "nothing"], ["open", "nothing"], ["eject", "nothing", "1"]]
)
def test_the_light_commands_load_neither_models_nor_screen(arguments, tmp_path):
    assert not loaded(f"from rftui.cli import main\nmain({arguments!r})", tmp_path) & (MODELS | SCREEN)


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_options_that_end_the_command_are_light(option, tmp_path):
    code = f"from rftui.cli import main\ntry:\n    main([{option!r}])\nexcept SystemExit:\n    pass"
    assert not loaded(code, tmp_path) & (MODELS | SCREEN)


@pytest.mark.parametrize("module", ["rftui", "rftui.automl", "rftui.link", "rftui.tracking.outbox"])
def test_what_scripts_and_every_process_import_is_light(module, tmp_path):
    assert not loaded(f"import {module}", tmp_path) & (MODELS | SCREEN)


def test_the_viewer_loads_no_models(tmp_path):
    assert not loaded("import rftui.tui.app", tmp_path) & MODELS


@pytest.mark.parametrize("module", ["rftui.scheduler.loop", "rftui.store", "rftui.scheduler.__main__"])
def test_the_scheduler_loads_no_models_and_no_screen(module, tmp_path):
    assert not loaded(f"import {module}", tmp_path) & (MODELS | SCREEN)


def test_the_public_names_are_there(tmp_path):
    assert "rftui" in loaded("from rftui import Experiment; from rftui.automl import List, RFGridSearch", tmp_path)
