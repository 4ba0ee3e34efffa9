"""Committed checkpoints among whatever else lies in a run's folder."""

import json

import pytest

from rftui.checkpoints import (
    CHECKPOINT_MARKER,
    checkpoint_marker,
    checkpoints_in,
    committed,
    link_checkpoint,
    newest_checkpoint,
)

SOUND = {"step": 12, "epoch": 0.5, "row": 48, "files": {"weights": 3}}


def checkpoint(folder, marker=SOUND, name="step-12"):
    path = folder / name
    path.mkdir(parents=True)
    (path / "weights").write_text("abc")
    (path / CHECKPOINT_MARKER).write_text(json.dumps(marker))
    return path


@pytest.fixture
def folder(tmp_path):
    """A run's `checkpoints/` with the checkpoints of steps 2 and 12."""
    checkpoint(tmp_path, SOUND | {"step": 2}, "step-2")
    checkpoint(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["step-120.bak", "step-", "step-x", "step-1_0", "step-٣", "step-007", "old-step-99"])
def test_a_folder_of_another_name_is_no_checkpoint(folder, name):
    checkpoint(folder, SOUND | {"step": 99}, name)
    assert [path.name for path in checkpoints_in(folder)] == ["step-12", "step-2"]
    assert committed(folder).keys() == {2, 12} and newest_checkpoint(folder).name == "step-12"


def test_neither_is_a_file_nor_a_link_to_nowhere(folder):
    (folder / "step-20").write_text("")
    (folder / "step-21").symlink_to(folder / "nowhere")
    assert [path.name for path in checkpoints_in(folder)] == ["step-12", "step-2"]


def test_without_a_folder_there_are_none(tmp_path):
    assert checkpoints_in(tmp_path / "none") == []
    (tmp_path / "file").write_text("")
    assert checkpoints_in(tmp_path / "file") == []


def test_one_that_cannot_be_read_is_passed_over(folder):
    marker = folder / "step-12" / CHECKPOINT_MARKER
    marker.unlink()
    marker.symlink_to(marker)
    assert newest_checkpoint(folder).name == "step-2"


@pytest.mark.parametrize(
    "marker",
    [
        [],
        "step",
        None,
        SOUND | {"files": ["weights"]},
        SOUND | {"files": {"weights": "3"}},
        SOUND | {"files": {"weights": 3, "more": 1}},
        SOUND | {"files": {"wei\0ghts": 3}},
        SOUND | {"step": "12"},
        SOUND | {"step": None},
        SOUND | {"step": -1},
        SOUND | {"step": 13},
        SOUND | {"epoch": "half"},
        SOUND | {"row": None},
        {"step": 12, "files": {}},
    ],
    ids=str,
)
def test_a_marker_of_another_shape_means_that_it_is_not_whole(folder, marker):
    (folder / "step-12" / CHECKPOINT_MARKER).write_text(json.dumps(marker))
    assert checkpoint_marker(folder / "step-12") is None
    assert newest_checkpoint(folder).name == "step-2"


def test_final_weights_have_no_position(tmp_path):
    assert checkpoint_marker(checkpoint(tmp_path, {"step": 12, "run": 1, "files": {"weights": 3}}, "final"))


@pytest.mark.parametrize("target", ["file", "folder", "link"])
def test_whatever_has_the_name_of_a_link_makes_room(folder, target):
    start = folder / "run" / "start"
    start.parent.mkdir()
    {
        "file": lambda: start.write_text("x"),
        "folder": lambda: checkpoint(start.parent, {}, "start"),
        "link": lambda: start.symlink_to(folder / "nowhere"),
    }[target]()
    link_checkpoint(folder / "step-12", start)
    assert checkpoint_marker(start) == SOUND
