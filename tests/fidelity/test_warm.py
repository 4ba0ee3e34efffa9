"""A warm clone equals plain TRL on its parent's adapter and the parent's remaining rows, in order."""

import os
from pathlib import Path

import torch

from rftui.commands.launch import reopen
from rftui.link import LinkLost
from rftui.messages import Command, Reply
from rftui.paths import checkpoint_marker
from rftui.scheduler.store import Store
from tests.fidelity.test_sft import COMMON, TARGETS, TINYCHAT, curves_of, plain, train

PARENT = ({"r": 4, "lora_alpha": 8, "lora_dropout": 0.0}, {"learning_rate": 5e-3, "num_train_epochs": 1})
CHANGES = {"training_args.learning_rate": 1e-3, "training_args.num_train_epochs": 2}


def clone(experiment, run, changes):
    """Clone the run warm, let the clone train to its end, and return it."""
    launch = reopen(experiment, "cpu")
    viewer = launch.wait()
    asked, messages = False, []
    try:
        while True:
            messages += viewer.poll(5)
            schema = any(getattr(message, "schema", None) for message in messages)
            if schema and not asked:
                viewer.send(Command("1", "clone", run, changes, warm=True, by="python"))
                asked = True
            replies = [message for message in messages if isinstance(message, Reply) and message.command == "1"]
            if replies:
                assert replies[0].ok, replies[0].text
                viewer.send(Command("2", "finish"))
                break
        while True:
            viewer.poll(5)
    except LinkLost:
        pass
    return Store.read(experiment.db).run(replies[0].run)


def test_a_warm_clone_is_plain_trl_on_the_remaining_rows(tmp_path):
    experiment = train(tmp_path, chunks=4, devices="cpu", runs=[PARENT])
    ours = clone(experiment, 1, CHANGES)
    assert ours.state == "done" and (ours.start_step, ours.start_row, ours.warm) == (8, 61, True)
    start = experiment.run(ours.id).start
    assert checkpoint_marker(start)
    case = {
        "model": str(TINYCHAT),
        "rows": str(tmp_path / "rows.json"),
        "seed": 42,
        "threads": os.cpu_count() or 1,
        "training_args": COMMON
        | PARENT[1]
        | {"learning_rate": 1e-3, "num_train_epochs": 1, "train_sampling_strategy": "sequential"},
        "peft_config": PARENT[0] | {"target_modules": TARGETS, "task_type": "CAUSAL_LM"},
        "adapter": str(start),
        "order": torch.randperm(61, generator=torch.Generator().manual_seed(42 + 1)).tolist(),
    }
    adapter, history = plain(tmp_path, "warm", case)
    expected = curves_of(history)
    store = Store.read(experiment.db)
    assert {name: store.curves(ours.id)[ours.id].get(name) for name in expected} == expected
    assert (Path(ours.final) / "adapter_model.safetensors").read_bytes() == adapter
    parent = store.curves(1)[1]["loss"]
    assert expected["loss"][0][1] < parent[0][1], "it starts from its parent's weights, not the base's"
