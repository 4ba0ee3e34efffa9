"""Pickles for scripts of their own: no secret in them, nothing of rftui, and where their modules are."""

import functools
import pickle
import sys
from pathlib import Path

import pytest

from rftui.automl import List
from rftui.config.portable import Secrets, folders, portable
from rftui.errors import UserError

API_KEY = "plain words"
column_key = "answer"
somewhere = "hf_abcdefghijkl"


def theirs(function):
    """A function as if the user's script had defined it."""
    function.__module__ = "__main__"
    return function


@theirs
def user():
    def inner():
        return API_KEY

    return inner(), column_key, somewhere, "sk-abcdefghijkl"


def closing(password):
    return theirs(lambda text="no secret": (password, text))


def test_secrets_are_read_from_the_environment_as_the_pickle_is_loaded(monkeypatch):
    secrets = Secrets()
    partial = functools.partial(print, token="0123456789abcdef")
    objects = {"user": user, "closure": closing("swordfish"), "partial": partial, "twice": ["sk-abcdefghijkl"] * 2}
    pickled, _ = portable(objects, secrets)
    found = {variable: value for value, variable in secrets.variables.items()}
    assert set(found) == {"API_KEY", "HF_TOKEN", "HF_TOKEN_2", "PASSWORD", "SECRET"}
    assert not [value for value in found.values() if value.encode() in pickled] and b"answer" in pickled
    for variable in found:
        monkeypatch.setenv(variable, f"<{variable}>")
    loaded = pickle.loads(pickled)
    assert loaded["user"]() == ("<API_KEY>", "answer", f"<{secrets.variables[somewhere]}>", "<SECRET>")
    assert loaded["closure"]() == ("<PASSWORD>", "no secret") and loaded["twice"] == ["<SECRET>"] * 2
    assert loaded["partial"].keywords == {"token": f"<{secrets.variables['0123456789abcdef']}>"}


@theirs
def imports_rftui():
    import rftui.automl

    return rftui.automl


@theirs
def names_rftui():
    return List([1])


@theirs
def says_rftui():
    return "rftui"


@pytest.mark.parametrize("value", [imports_rftui, names_rftui, [functools.partial(names_rftui)], List([1])])
def test_what_uses_rftui_is_named(value):
    with pytest.raises(UserError, match="^reward"):
        portable({"fine": says_rftui, "reward": value}, Secrets())


def test_the_folders_of_modules_that_are_found_by_name(tmp_path, monkeypatch):
    for folder in ("beside", "elsewhere"):
        (tmp_path / folder).mkdir()
        monkeypatch.syspath_prepend(str(tmp_path / folder))
    (tmp_path / "beside" / "portable_helper.py").write_text("def shout(text):\n    return text.upper()\n")

    @theirs
    def formatting(row):
        import portable_helper

        return portable_helper.shout(row)

    _, modules = portable({"formatting": formatting}, Secrets())
    assert folders(modules, sys.path) == [str(tmp_path / "beside")]
    _, modules = portable({"says": says_rftui, "path": Path("x")}, Secrets())
    assert folders(modules, sys.path) == []
