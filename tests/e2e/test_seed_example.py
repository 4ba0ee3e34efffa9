"""The program that was written for RapidFire AI trains here to its end."""

import json

import pytest

from rftui.store import Store
from tests.e2e.program import ROOT

pytestmark = pytest.mark.slow


def test_the_seed_example_trains_offline(program):
    pytest.importorskip("chatterbot_corpus", reason="the sample data are in the extra 'samples'")
    example = ROOT / "sample_experiments" / "seed_example.py"
    program.call("run", example, "--headless", "--", "--offline")
    shown = json.loads(program.call("show", "sft-comparison", "--json"))
    assert shown["state"] == "done"
    for run in shown["runs"]:
        assert (run["state"], run["step"], run["total_steps"], run["error"]) == ("done", 128, 128, None)
        curve = json.loads(program.call("show", "sft-comparison", run["id"], "--json"))["curves"]["loss"]
        assert curve[-1][1] < curve[0][1], "it learned"
    assert len(shown["runs"]) == 2
    notices = [
        event.text
        for event in Store.read(program.home / "sft-comparison" / "experiment.db").events()
        if event.level == "notice"
    ]
    assert any("fp16" in text and "fp32" in text for text in notices), notices
    assert any("formatting_func" in text and "sibling" in text for text in notices), notices
