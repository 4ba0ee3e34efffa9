"""A warm clone equals plain TRL with its parent's weights on its parent's remaining rows, in order."""

import json
from pathlib import Path

import pytest
import torch

from rftui.checkpoints import checkpoint_marker
from rftui.link import LinkLost
from rftui.messages import Clone, Finish, Reply
from rftui.store import Store
from tests.fidelity.cases import DPO, GRPO, LORA, SEED, SFT
from tests.fidelity.compare import Ejected, Rftui, curves, differences, plain

PARENTS = [
    case
    | {"training_args": case["training_args"] | {"num_train_epochs": 1}, "peft_config": LORA | {"lora_dropout": 0}}
    for case in (SFT[0], DPO[0], GRPO[0])
]
CHANGES = {"training_args.learning_rate": 1e-3, "training_args.num_train_epochs": 2}
AGAIN = {"training_args.learning_rate": 5e-4, "training_args.num_train_epochs": 3}


def clones(rftui, parents, changes):
    """Clone these runs of a finished experiment warm, let the clones train to their ends; their ids."""
    rftui.reopen(RFTUI_VIEWER="1")  # stays idle until it is told to finish
    viewer, messages, asked, replies = rftui.attach(), [], False, []
    try:
        while True:
            messages = viewer.poll(5)
            if not asked and any(getattr(message, "schema", None) for message in messages):
                asked = True
                for run in parents:
                    viewer.send(Clone(run, changes, warm=True, by="python"))
            replies += [message for message in messages if isinstance(message, Reply)]
            if len(replies) == len(PARENTS):
                assert all(reply.ok for reply in replies), replies
                viewer.send(Finish())
                break
        while True:
            viewer.poll(5)
    except LinkLost:
        pass
    rftui.wait()
    return [reply.run for reply in replies]


def order(algo, epoch):
    """The rows of an epoch, the first being 0, as accelerate (SFT, DPO) and TRL's RepeatSampler (GRPO) draw them."""
    generator = torch.Generator().manual_seed(SEED if algo == "GRPO" else SEED + epoch)
    rows = 26
    if algo == "GRPO":
        for _ in range(epoch):
            torch.randperm(rows, generator=generator)
        return torch.randperm(rows, generator=generator).tolist()[: rows - rows % 4]
    return torch.randperm(rows, generator=generator).tolist()


@pytest.mark.slow
def test_warm_clones_are_plain_trl_on_the_remaining_rows(tmp_path):
    rftui = Rftui(tmp_path / "home", PARENTS)
    rftui.wait()
    ids = clones(rftui, [1, 2, 3], CHANGES)
    again = clones(rftui, ids, AGAIN)  # warm clones of warm clones, each one epoch further
    store = Store.read(rftui.experiment.db)
    cases = []
    for number, case in zip([*ids, *again], PARENTS * 2, strict=True):
        start = rftui.experiment.run(number).start
        assert checkpoint_marker(start)
        epoch, rate = (1, 1e-3) if number in ids else (2, 5e-4)
        in_order = {"shuffle_dataset": False} if case["algo"] == "GRPO" else {"train_sampling_strategy": "sequential"}
        args = case["training_args"] | {"learning_rate": rate, "num_train_epochs": 1} | in_order
        rows = order(case["algo"], epoch)
        cases.append(case | {"training_args": args, "adapter": str(start), "order": rows})
        assert store.run(number).start_epoch == epoch
        assert store.run(number).epoch == epoch + 1
    references = plain(tmp_path / "plain", cases)
    for number, parent, reference in zip([*ids, *again], [1, 2, 3, *ids], references, strict=True):
        clone = store.run(number)
        assert (clone.state, clone.warm, clone.parent) == ("done", True, parent)
        assert differences(store, clone, reference) == []
        first = curves(json.loads((Path(reference) / "history.json").read_text()))["loss"][0][1]
        before = store.curves(parent)[parent]["loss"]
        if clone.algo != "GRPO" and number in ids:
            assert first < before[0][1], "it starts from its parent's weights, not the base's"
    ejected = Ejected(rftui.experiment, tmp_path / "ejected")
    assert ejected.differing([store.run(number) for number in ids + again]) == []
