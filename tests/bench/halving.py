"""Successive halving against training all: `python tests/bench/halving.py` (some minutes a seed on 2 cores).

Twelve configs of the main sample, eight chunks. For each seed all are trained to their ends, and once more with
`RFSuccessiveHalving()`. Printed are, side by side, the optimizer steps trained, the seconds of training until the best
run was done, and the final eval loss of the best run with its regret: how much worse it is than the best of all.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "sample_experiments"
CHUNKS = 8


def train(home: str, seed: int, name: str, rows: int) -> None:
    """One experiment, called "all" or "halving", in this process."""
    sys.path.insert(0, str(SAMPLES))
    from datasets import Dataset
    from qa_pairs import qa_pairs, split_by_question

    from rftui import Experiment
    from rftui.automl import List, RFGridSearch, RFLoraConfig, RFModelConfig, RFSFTConfig, RFSuccessiveHalving

    def as_dataset(pairs: list[tuple[str, str]]) -> Dataset:
        return Dataset.from_list(
            [
                {
                    "prompt": [{"role": "user", "content": question}],
                    "completion": [{"role": "assistant", "content": answer}],
                }
                for question, answer in pairs
            ]
        )

    train_pairs, eval_pairs = split_by_question(qa_pairs(), held_out=96, seed=seed)
    targets = List([["q_proj", "v_proj"], "all-linear"])
    configs = RFModelConfig(
        model_name=str(SAMPLES / "tinychat"),
        peft_config=List([RFLoraConfig(r=r, lora_alpha=2 * r, target_modules=targets) for r in (4, 16)]),
        training_args=RFSFTConfig(
            learning_rate=List([1e-3, 5e-3, 2e-2]),
            num_train_epochs=1,
            per_device_train_batch_size=8,
            per_device_eval_batch_size=32,
            max_length=128,
            gradient_checkpointing=False,
            logging_steps=2,
            seed=seed,
        ),
    )
    Experiment(name, home).run_fit(
        RFGridSearch(configs, "SFT"),
        train_dataset=as_dataset(train_pairs[:rows]),
        eval_dataset=as_dataset(eval_pairs),
        num_chunks=CHUNKS,
        seed=seed,
        rules=RFSuccessiveHalving() if name == "halving" else None,
    )


@dataclass
class Outcome:
    """`steps` of all runs; `best`: the run that was done with the lowest eval loss, which is `loss`, after `seconds`
    of training; `losses`: run -> final eval loss of those that are done."""

    steps: int
    best: int
    loss: float
    seconds: float
    losses: dict[int, float]


def outcome(home: Path, name: str) -> Outcome:
    from rftui.paths import ExperimentDir
    from rftui.store import Store

    with closing(Store.read(ExperimentDir(home / name).db)) as store:
        runs, turns = store.runs(), store.turns()
    losses = {run.id: run.metrics["eval_loss"] for run in runs if run.state == "done"}
    best = min(losses, key=lambda run: losses[run])
    ended = max(turn["ended"] for turn in turns if turn["run"] == best)
    steps = sum(run.step for run in runs)
    return Outcome(steps, best, losses[best], ended - min(turn["started"] for turn in turns), losses)


def measure(seed: int, rows: int) -> tuple[Outcome, Outcome]:
    """All, and halved."""
    home = Path(tempfile.mkdtemp(prefix="halving-"))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    for name in ("all", "halving"):
        command = [sys.executable, __file__, "--train", str(home), str(seed), name, str(rows)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=home)
        if done.returncode:
            sys.exit(f"{done.stdout}{done.stderr}\n{home} holds what there is")
    results = outcome(home, "all"), outcome(home, "halving")
    shutil.rmtree(home)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--rows", type=int, default=400, help="rows to train on, of about 800")
    parser.add_argument("--train", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        home, seed, name, rows = arguments.train
        train(home, int(seed), name, int(rows))
        return
    within, regrets, steps, seconds = 0, [], [], []
    print("seed  steps all  halved  ratio   best done all  halved  ratio   best all       survivor       regret")
    for seed in arguments.seeds:
        every, halved = measure(seed, arguments.rows)
        regrets.append(halved.loss / every.loss - 1)
        steps.append(halved.steps / every.steps)
        seconds.append(halved.seconds / every.seconds)
        within += regrets[-1] <= 0.01
        print(
            f"{seed:>4}  {every.steps:>9}  {halved.steps:>6}  {steps[-1]:>5.2f}"
            f"   {every.seconds:>11.1f} s  {halved.seconds:>4.1f} s  {seconds[-1]:>5.2f}"
            f"   {every.best:>2}: {every.loss:<9.4f}  {halved.best:>2}: {halved.loss:<9.4f}  {regrets[-1]:>7.2%}",
            flush=True,
        )
    count = len(arguments.seeds)
    print(
        f"halving trains {sum(steps) / count:.2f} of the steps and has its best run after {sum(seconds) / count:.2f} "
        f"of the time;\nits survivor is within 1 % of the best in {within} of {count} seeds, "
        f"with a regret of {sum(regrets) / count:.2%} on average and {max(regrets):.2%} at most"
    )


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
