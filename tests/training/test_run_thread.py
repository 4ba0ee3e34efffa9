"""What becomes of a run in its thread: early ends, divergence, memory, full disks, generated metrics, freed memory."""

import errno
import gc
import json
import math
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from peft.tuners.lora import LoraLayer
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from rftui import messages
from rftui.automl import RFGRPOConfig, RFLoraConfig, RFModelConfig, RFSFTConfig
from rftui.checkpoints import checkpoint_marker, checkpoints_in
from rftui.runs import Run
from rftui.training import saving
from tests.fidelity.cases import rows, short
from tests.training.engine import TINY, Engine, logged, of


def config(compute_metrics=None, generation_config=None, **args):
    given = {"learning_rate": 5e-3, "per_device_train_batch_size": 4, "num_train_epochs": 1, "logging_steps": 1}
    return RFModelConfig(
        TINY,
        peft_config=RFLoraConfig(r=4, target_modules=["q_proj", "v_proj"]),
        training_args=RFSFTConfig(**(given | {"max_length": 48, "seed": 1} | args)),
        compute_metrics=compute_metrics,
        generation_config=generation_config,
    )


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Meddler:
    """A `create_model_fn` whose models do `deed(output)` in forward pass number `call` of all their trainings."""

    def __init__(self, call, deed):
        self.calls, self.call, self.deed = 0, call, deed

    def __call__(self, config):
        model = AutoModelForCausalLM.from_pretrained(config["model_name"], dtype=torch.float32)

        def hook(module, inputs, output):  # a function, which copies of the model share
            self.calls += module.training
            return self.deed(output) if module.training and self.calls == self.call else output

        model.model.register_forward_hook(hook)  # PEFT calls the forward of `model` itself, without hooks
        return model, AutoTokenizer.from_pretrained(config["model_name"])


def not_a_number(output):
    output.last_hidden_state = output.last_hidden_state * math.nan
    return output


def test_a_run_that_diverges_fails_at_that_step_and_keeps_its_checkpoint(tmp_path):
    engine = Engine(tmp_path, [config(save_strategy="chunk"), config()], eval_rows=0)
    engine.make_models_by(Meddler(4, not_a_number))
    engine.start(1)
    seen = engine.train(1)
    assert isinstance(seen[-1], messages.Failed) and seen[-1].error.startswith("diverged at step 4: its loss is nan")
    assert seen[-1].cause == "diverged"
    losses = logged(seen, "loss")
    assert losses[-1][0] == 4 and math.isnan(losses[-1][1]) and all(math.isfinite(loss) for _, loss in losses[:-1])
    marker = checkpoint_marker(checkpoints_in(engine.experiment.run(1).checkpoints)[0])
    assert (marker["step"], marker["threads"]) == (2, 1)
    engine.start(2)
    assert isinstance(engine.train(2)[-1], messages.Finished), "the others go on"


def out_of_memory(output):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def test_out_of_memory_can_be_tried_again_and_nothing_of_the_run_is_left(tmp_path):
    engine = Engine(tmp_path, config(save_strategy="chunk"), eval_rows=0)
    engine.make_models_by(Meddler(4, out_of_memory))
    engine.start(1)
    seen = engine.train(1)
    assert isinstance(seen[-1], messages.Failed) and seen[-1].cause == "memory"
    engine.threads.clear()
    assert adapters_alive() == 0
    engine.start(1, resume=True)
    seen = engine.train(1)
    assert of(seen, messages.Begun)[0].step == 2 and isinstance(seen[-1], messages.Finished)


def test_the_floor_is_given_up_whatever_the_clean_up_raises(tmp_path, monkeypatch):
    engine = Engine(tmp_path, [config(), config()], eval_rows=0)
    engine.make_models_by(Meddler(0, None))
    engine.start(1)
    with monkeypatch.context() as patched:

        def broken(*_):
            raise RuntimeError("broken")

        patched.setattr(gc, "collect", broken)
        engine.turn(1)
        assert "RuntimeError: broken" in engine.until(1, messages.Failed)[-1].error
    engine.start(2)
    assert isinstance(engine.train(2)[-1], messages.Finished)


def adapters_alive():
    gc.collect()
    return sum(isinstance(thing, LoraLayer) for thing in gc.get_objects())


def test_a_child_that_dies_while_a_batch_is_fetched_from_it_can_be_tried_again(tmp_path, monkeypatch):
    def read(queue, *args, **kwargs):
        raise ConnectionResetError(104, "Connection reset by peer")

    monkeypatch.setattr(Connection, "recv_bytes", read)
    engine = Engine(tmp_path, config(dataloader_num_workers=1), eval_rows=0)
    engine.start(1)
    seen = engine.train(1)
    assert isinstance(seen[-1], messages.Failed) and seen[-1].cause == "child"


def test_a_stopped_run_leaves_no_tensor_behind(tmp_path):
    engine = Engine(tmp_path, config(), eval_rows=0)
    engine.start(1)
    engine.turn(1)
    engine.until(1, messages.Stepped)
    assert adapters_alive() > 0
    engine.order(messages.Halt(1))
    halted = engine.until(1, messages.Halted)[-1]
    engine.threads[1].join()
    engine.threads.clear()
    assert halted.path and adapters_alive() == 0


def test_patience_counts_the_same_through_a_stop(tmp_path):
    args = {"learning_rate": 1e-12, "early_stopping_patience": 2, "early_stopping_threshold": 0.01}
    engine = Engine(tmp_path, [config(**args), config(**args)])
    engine.start(1)
    whole = engine.train(1)
    assert isinstance(whole[-1], messages.Finished)
    evaluated = logged(whole, "eval_loss")
    assert len(evaluated) == 3 and whole[-1].step == evaluated[-1][0], "the first, and two that are no better"
    assert "ends early at step" in of(whole, messages.Note)[0].text
    assert len(logged(whole, "train_loss")) == 1, "TRL's training ends as it always does"
    engine.start(2)
    engine.turn(2)
    engine.until(2, messages.TurnEnded)
    engine.turn(2)
    engine.until(2, messages.TurnEnded)
    engine.order(messages.Halt(2))
    engine.until(2, messages.Halted)
    engine.start(2, resume=True)
    rest = engine.train(2)
    assert rest[-1].step == whole[-1].step and len(logged(rest, "eval_loss")) == 1


def test_a_stop_after_an_evaluation_of_trls_own_changes_nothing(tmp_path):
    """The evaluation draws random numbers, of which dropout gets the next ones."""
    group = [config(max_steps=4, eval_strategy="steps", eval_steps=2), config(max_steps=9, eval_strategy="epoch")] * 2
    for each in group:
        each.peft_config.lora_dropout = 0.2
    engine = Engine(tmp_path, group)
    weights = {}
    for number, evaluated in ((1, 2), (2, 7)):
        engine.start(number)
        weights[number] = final_weights(engine.train(number))
        stopped = number + 2
        engine.start(stopped)
        step = 0
        while step < evaluated:
            engine.turn(stopped)
            step = engine.until(stopped, messages.TurnEnded)[-1].step
        engine.order(messages.Halt(stopped))
        assert engine.until(stopped, messages.Halted)[-1].step == evaluated
        engine.start(stopped, resume=True)
        weights[stopped] = final_weights(engine.train(stopped))
    assert weights[1] == weights[3] and weights[2] == weights[4]


def final_weights(seen):
    return (Path(seen[-1].final) / "adapter_model.safetensors").read_bytes()


def test_a_full_disk_pauses_a_run_until_there_is_room_and_the_others_go_on(tmp_path, monkeypatch):
    engine = Engine(tmp_path, [config(save_strategy="chunk"), config(save_strategy="chunk")], eval_rows=0)
    commit, full = saving.commit, set()

    def guarded(written, target, position):
        if target.parent.parent.name in full:
            raise OSError(errno.ENOSPC, "No space left on device")
        commit(written, target, position)

    monkeypatch.setattr(saving, "commit", guarded)
    engine.start(1)
    engine.turn(1)
    engine.until(1, messages.TurnEnded)
    full.add("1")
    engine.turn(1)
    unsaved = engine.until(1, messages.Unsaved)[-1]
    kept = checkpoints_in(engine.experiment.run(1).checkpoints)
    assert [checkpoint_marker(path)["step"] for path in kept] == [2] and not list(kept[0].parent.glob(".step-*"))
    assert unsaved.needed > 0 and "no space is left" in unsaved.error
    engine.start(2)
    assert isinstance(engine.train(2)[-1], messages.Finished)
    engine.order(messages.Retry(1))
    engine.until(1, messages.Unsaved)
    full.clear()
    engine.order(messages.Retry(1))
    assert engine.until(1, messages.TurnEnded)[-1].step == 4
    engine.turn(1)
    engine.until(1, messages.TurnEnded)
    full.add("1")  # at its end, too
    engine.turn(1)
    engine.until(1, messages.Unsaved)
    full.clear()
    engine.order(messages.Retry(1))
    assert isinstance(engine.train(1)[-1], messages.Finished)


def test_a_full_disk_as_a_run_is_built_pauses_it_until_there_is_room(tmp_path):
    engine = Engine(tmp_path, config(), eval_rows=0)
    build, full = engine.build, [True, True]

    def guarded(run):
        if full:
            full.pop()
            raise OSError(errno.ENOSPC, "No space left on device")
        return build(run)

    engine.build = guarded
    engine.start(1)
    engine.turn(1)
    assert "no space is left" in engine.until(1, messages.Unsaved)[-1].error
    engine.order(messages.Retry(1))
    engine.until(1, messages.Unsaved)
    engine.order(messages.Retry(1))
    engine.until(1, messages.Begun)
    assert isinstance(engine.train(1)[-1], messages.Finished)
    full.append(True)
    engine.start(1)
    engine.turn(1)
    engine.until(1, messages.Unsaved)
    engine.order(messages.Halt(1))
    assert engine.until(1, messages.Halted)[-1].step == 0


def test_a_deleted_run_need_not_be_saved_to_a_full_disk(tmp_path, monkeypatch):
    engine = Engine(tmp_path, config(save_strategy="chunk"), eval_rows=0)

    def full(written, target, position):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(saving, "commit", full)
    engine.start(1)
    engine.turn(1)
    engine.until(1, messages.Unsaved)
    engine.order(messages.Halt(1, save=False))
    assert engine.until(1, messages.Halted)[-1].path is None


def scores(pair):
    predictions, references = pair
    assert len(predictions) == len(references) == 6 and all(isinstance(text, str) for text in predictions)
    return {"same": sum(a == b for a, b in zip(predictions, references, strict=True)), "length": len(references[1])}


def test_metrics_of_generated_text_do_not_disturb_the_training(tmp_path):
    sampled = {"max_new_tokens": 4, "do_sample": True}
    engine = Engine(tmp_path, [config(scores, sampled), config()])
    engine.start(1)
    with_text = engine.train(1)
    engine.start(2)
    without = engine.train(2)
    assert [value for _, value in logged(with_text, "eval_length")] == [len("It is 8, I think.")] * 4
    assert len(logged(with_text, "eval_same")) == 4
    assert logged(with_text, "loss") == logged(without, "loss")
    assert logged(with_text, "eval_loss") == logged(without, "eval_loss")


def long_winded(row):
    """Every other prompt is longer than 60 tokens."""
    said = row["prompt"][0]["content"] + " please" * (60 * (row["answer"] % 2))
    return {"prompt": [{"role": "user", "content": said}], "completion": row["completion"]}


def test_prompts_longer_than_max_length_are_counted(tmp_path):
    some, all_of_them = config(max_length=48), config(max_length=4)
    some.formatting_func = long_winded
    engine = Engine(tmp_path, [some, all_of_them], eval_rows=0)
    engine.start(1)
    seen = engine.train(1)
    odd = sum(row["answer"] % 2 for row in rows())
    assert isinstance(seen[-1], messages.Finished)
    assert of(seen, messages.Note)[0].text == (
        f"run 1: {odd} of 26 rows have nothing to learn from within max_length: left out"
    )
    engine.start(2)
    refused = engine.train(2)[-1]
    assert isinstance(refused, messages.Failed) and "longer than max_length" in refused.error


def generating(**args):
    given = {"per_device_train_batch_size": 4, "num_generations": 2, "max_completion_length": 4, "num_train_epochs": 1}
    return RFModelConfig(
        TINY,
        peft_config=RFLoraConfig(r=4, target_modules=["q_proj", "v_proj"]),
        training_args=RFGRPOConfig(**(given | args)),
        reward_funcs=[short],
    )


def test_a_run_is_saved_at_the_end_of_a_generation_and_deleted_within_it(tmp_path):
    spans = {"steps_per_generation": 2, "num_iterations": 2}  # a generation lasts four steps
    engine = Engine(tmp_path, [generating(**spans), generating(**spans)], num_chunks=1, eval_rows=0)
    engine.start(1)
    engine.turn(1)
    engine.until(1, messages.Stepped)
    engine.order(messages.Halt(1))
    halted = engine.until(1, messages.Halted)[-1]
    assert halted.step == 4 and checkpoint_marker(checkpoints_in(engine.experiment.run(1).checkpoints)[0])["row"] == 4
    engine.start(2)
    engine.turn(2)
    engine.until(2, messages.Stepped)
    engine.order(messages.Halt(2, save=False))
    assert engine.until(2, messages.Halted)[-1].step < 4


def test_a_cold_clone_has_its_parents_reward_functions(tmp_path):
    engine = Engine(tmp_path, generating(), eval_rows=0)
    clone = Run(2, "clone", "GRPO", parent=1, changes={"training_args.learning_rate": 1e-3})
    trainer = engine.builder.build(clone).trainer
    assert trainer.reward_func_names == ["short"] and trainer.args.learning_rate == 1e-3


def test_what_trl_extends_in_a_lora_config_is_each_runs_own_also_after_a_stop(tmp_path):
    """A chat template's tokenizer with more tokens; every build of a trainer adds them anew, to a fresh config."""
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    tokenizer.add_tokens(["<one>", "<two>"], special_tokens=True)
    tokenizer.save_pretrained(tmp_path / "more")
    untied = AutoConfig.from_pretrained(TINY, tie_word_embeddings=False, num_hidden_layers=1, dtype=torch.float32)
    LlamaForCausalLM(untied).save_pretrained(tmp_path / "model")
    AutoTokenizer.from_pretrained(TINY).save_pretrained(tmp_path / "model")
    group = [config(chat_template_path=str(tmp_path / "more"), learning_rate=rate) for rate in (1e-3, 2e-3)]
    for each in group:
        each.model_name = str(tmp_path / "model")
        each.peft_config = RFLoraConfig(
            r=4,
            target_modules=["q_proj"],
            trainable_token_indices={"embed_tokens": [5]},
            modules_to_save=["lm_head"],
        )
    group[1].peft_config = group[0].peft_config
    engine = Engine(tmp_path, group, eval_rows=0)
    for number in (1, 2):
        engine.start(number)
        for _ in range(2):
            engine.turn(number)
            engine.until(number, messages.TurnEnded)
            engine.order(messages.Halt(number))
            engine.until(number, messages.Halted)
            engine.start(number, resume=True)
        final = engine.train(number)[-1]
        assert isinstance(final, messages.Finished)
        kept = json.loads((Path(final.final) / "adapter_config.json").read_text())
        indices = kept["trainable_token_indices"]["embed_tokens"]
        assert indices[0] == 5 and len(set(indices)) == len(indices) > 2 and kept["modules_to_save"] == ["lm_head"]
