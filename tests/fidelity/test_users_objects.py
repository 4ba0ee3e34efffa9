"""What a script's own objects keep is each run's alone, as in a process of its own, also through stops."""

import pytest
import torch
from transformers import AutoConfig, AutoTokenizer, LlamaForCausalLM

from rftui.runs import RUNNING, STOPPED
from tests.fidelity.cases import LORA, TINYCHAT
from tests.fidelity.compare import Rftui, Watch, differences, plain


def more_tokens(folder):
    """A small model whose embeddings are not tied, and a tokenizer with two tokens that it lacks."""
    torch.manual_seed(3)
    config = AutoConfig.from_pretrained(TINYCHAT, tie_word_embeddings=False, num_hidden_layers=2, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(TINYCHAT)
    LlamaForCausalLM(config).save_pretrained(folder / "untied")
    tokenizer.save_pretrained(folder / "untied")
    tokenizer.add_tokens(["<one>", "<two>"], special_tokens=True)
    tokenizer.save_pretrained(folder / "more")
    return str(folder / "untied"), str(folder / "more")


@pytest.mark.slow
def test_runs_have_what_processes_of_their_own_would_have(tmp_path):
    untied, more = more_tokens(tmp_path)
    sft = {"num_train_epochs": 1, "logging_steps": 1, "per_device_train_batch_size": 4, "max_length": 48}
    grpo = sft | {"num_generations": 2, "max_completion_length": 4, "per_device_train_batch_size": 8}
    del grpo["max_length"]
    extended = LORA | {"trainable_token_indices": {"embed_tokens": [5]}, "modules_to_save": ["lm_head"]}
    kinds = [
        ("SFT", sft, str(TINYCHAT), None),
        ("SFT", sft, str(TINYCHAT), LORA),
        ("SFT", sft | {"chat_template_path": more}, untied, extended),
        ("GRPO", grpo, str(TINYCHAT), LORA),
    ]
    cases = [
        {"algo": algo, "training_args": args | {"learning_rate": rate}, "model": model, "peft_config": peft}
        for algo, args, model, peft in kinds
        for rate in (5e-3, 1e-3)
    ]
    rftui = Rftui(tmp_path / "home", cases, "users.py", "rftui")
    watch = Watch(rftui)
    stopped = (2, 5, 6, 7)
    for run in stopped:
        watch.until(lambda watch: watch.runs[run].state == RUNNING and watch.runs[run].step >= 2)  # noqa: B023
        watch.ask("stop", run)
    for run in stopped:
        watch.until(lambda watch: watch.runs[run].state == STOPPED)  # noqa: B023
        watch.ask("resume", run)
    references = plain(tmp_path / "plain", cases, "users.py", "plain")
    store = rftui.wait()
    different = {run.id: differences(store, run, out) for run, out in zip(store.runs(), references, strict=True)}
    assert not any(different.values()), different
