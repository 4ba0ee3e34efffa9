"""Resident memory of a worker with 8 LoRA runs against one with 1: `python tests/bench/memory.py`.

Each count trains in a process of its own: a random-init Llama of 65 M parameters in fp32, rank 16 or less. Printed is
the growth over the imports once every run has trained its first chunk and all are resident, and the ratio.
"""

import json
import os
import queue
import subprocess
import sys
import tempfile
from pathlib import Path


def train(count: int) -> None:
    """Print the growth in MB with `count` resident runs."""
    import psutil
    import torch
    from datasets import Dataset, disable_progress_bars
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    from rftui import messages, paths
    from rftui.automl import List, RFGridSearch, RFLoraConfig, RFModelConfig, RFSFTConfig
    from rftui.config.spec import Spec
    from rftui.runs import Run
    from rftui.training import process_state
    from rftui.training.base_models import BaseModels
    from rftui.training.run_thread import RunThread
    from rftui.training.trainers import TrainerBuilder
    from rftui.training.turnstile import Turnstile

    disable_progress_bars()
    torch.set_num_threads(1)
    tinychat = Path(__file__).parents[2] / "sample_experiments" / "tinychat"
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        config = LlamaConfig(
            vocab_size=4096,
            hidden_size=768,
            intermediate_size=2048,
            num_hidden_layers=8,
            num_attention_heads=12,
            num_key_value_heads=12,
        )
        subprocess.run(
            [
                sys.executable,
                "-c",
                "import sys, transformers as t;"
                f"m = t.LlamaForCausalLM(t.LlamaConfig(**{config.to_diff_dict()!r}));"
                f"m.save_pretrained({str(model)!r});"
                f"t.AutoTokenizer.from_pretrained({str(tinychat)!r}).save_pretrained({str(model)!r})",
            ],
            check=True,
        )
        assert LlamaForCausalLM and AutoTokenizer  # imported before the baseline is taken
        experiment = paths.create(Path(folder), "memory")
        rows = [{"text": f"Number {n} comes before number {n + 1}. " * 3} for n in range(16)]
        Dataset.from_list(rows).save_to_disk(str(experiment.data(1) / "train"))
        group = RFGridSearch(
            RFModelConfig(
                model_name=str(model),
                peft_config=RFLoraConfig(r=List([4, 8, 12, 16]), target_modules=["q_proj", "v_proj"]),
                training_args=RFSFTConfig(
                    learning_rate=List([1e-3, 1e-4]), max_steps=4, per_device_train_batch_size=4, max_length=32
                ),
            ),
            trainer_type="SFT",
        )
        run_configs = group.propose([])[:count]
        Spec(run_configs, num_chunks=4).save(experiment.spec(1))
        device = torch.device("cpu")
        before = psutil.Process().memory_info().rss
        reports: queue.Queue = queue.Queue()
        turnstile = Turnstile(process_state.capture, process_state.restore)
        builder = TrainerBuilder(experiment, BaseModels(device), device)
        for number in range(count):
            run = Run(number + 1, str(number), config_index=number, config=run_configs[number].config)
            directory = experiment.run(run.id)
            directory.path.mkdir(parents=True)
            thread = RunThread(
                run, turnstile, reports.put, lambda run=run: builder.build(run), directory, None, device
            )
            thread.start()
            turnstile.train(thread.slot)
            while not isinstance(message := reports.get(timeout=300), messages.TurnEnded):
                assert not isinstance(message, messages.Failed), message.traceback
        print(json.dumps((psutil.Process().memory_info().rss - before) / 1e6))
        sys.stdout.flush()
        os._exit(0)


def main() -> None:
    growth = {}
    for count in (1, 8):
        done = subprocess.run(
            [sys.executable, __file__, str(count)],
            capture_output=True,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"},  # as a worker's
        )
        if done.returncode:
            sys.exit(done.stderr)
        growth[count] = json.loads(done.stdout.splitlines()[-1])
        print(f"{count} run{'s' * (count > 1)}: {growth[count]:.0f} MB over the imports")
    print(f"ratio: {growth[8] / growth[1]:.2f}")


if __name__ == "__main__":
    train(int(sys.argv[1])) if len(sys.argv) > 1 else main()
