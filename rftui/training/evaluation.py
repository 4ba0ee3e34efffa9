"""Evaluations that leave no trace in the training that follows, metrics of generated text, early stopping."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from datasets import Dataset
from transformers import GenerationConfig, Trainer, TrainingArguments

from rftui.config.spec import plain_value
from rftui.errors import UserError
from rftui.training.own_functions import OwnFunctions
from rftui.training.process_state import rng, set_rng

FEWEST = 32
"""Rows of an evaluation that is made cheap by default: fewer would tell little."""

_SHARE = {"SFT": 0.15, "DPO": 0.15, "GRPO": 0.05}
"""Evaluated rows for each trained row of a chunk that cost a few percent of its time: a forward pass is about a third
of a training step; GRPO generates for both."""


def cheap_rows(algo: str, rows: int, per_epoch: int, eval_rows: int) -> int:
    """How many of `eval_rows` are evaluated at each chunk end by default; `rows` are cut into `per_epoch` chunks."""
    return min(eval_rows, max(FEWEST, math.ceil(_SHARE[algo] * rows / per_epoch)))


class Apart:
    """Makes a trainer's evaluations leave no trace: what follows draws the random numbers that it would have drawn,
    and its reward functions have kept nothing of them.

    TRL's last log, at the end of the training, has the metrics of the last training steps only if the model is in
    training mode then, so that mode is put back too. `running` while one goes on.
    """

    def __init__(self, trainer: Trainer, functions: OwnFunctions, tell: Callable[[str], None]) -> None:
        self.running = False
        self._functions = functions
        self._tell = tell
        self._trainer: Any = trainer
        self._evaluate = trainer.evaluate
        trainer.evaluate = self._apart  # type: ignore[method-assign]

    def _apart(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        before, training = rng(), self._trainer.model.training
        self.running = True
        try:
            with self._functions.copied(self._tell):
                return self._evaluate(*args, **kwargs)
        finally:
            self.running = False
            self._trainer.model.train(training)
            set_rng(before)


class Patience:
    """Ends a run whose watched metric has not become better by more than `threshold` in `evaluations` evaluations.

    `state` is (best value so far, evaluations since), and survives in a checkpoint. The metric is eval_loss unless
    `metric_for_best_model` names another one.
    """

    def __init__(self, args: TrainingArguments, evaluations: int, threshold: float) -> None:
        name = args.metric_for_best_model or "loss"
        self.metric = name if name.startswith("eval_") else f"eval_{name}"
        self.evaluations = evaluations
        self.state: tuple[float | None, int] = (None, 0)
        self._threshold = threshold
        greater = args.greater_is_better
        self._sign = 1 if (not name.endswith("loss") if greater is None else greater) else -1

    def over(self, metrics: dict[str, float]) -> bool:
        """Whether the run should end after an evaluation with these metrics. Raises UserError where its own is
        missing."""
        if self.metric not in metrics:
            raise UserError(
                f"metric_for_best_model: an evaluation gives no {self.metric}; it gives {', '.join(metrics)}"
            )
        value, (best, waited) = metrics[self.metric], self.state
        if best is None or self._sign * (value - best) > self._threshold:
            self.state = (value, 0)
        else:
            self.state = (best, waited + 1)
        return self.state[1] >= self.evaluations


class GeneratedText:
    """Adds what `compute_metrics((predictions, references))` says of generated text to each evaluation's metrics.

    Both are lists of strings, a row each: what the model says to the row's prompt, and the row's own answer.
    `generation` are arguments of transformers' GenerationConfig.
    """

    def __init__(
        self, trainer: Trainer, rows: Dataset, compute: Callable[[tuple[list[str], list[str]]], Any], generation: Any
    ) -> None:
        self._trainer: Any = trainer
        tokenizer: Any = trainer.processing_class
        self._tokenizer = tokenizer
        self._compute = compute
        self._pairs = [_pair(row) for row in rows]
        given = generation if isinstance(generation, dict) else generation.to_diff_dict()
        self._generation = GenerationConfig(**({"pad_token_id": tokenizer.pad_token_id} | given))
        self._loop = trainer.evaluation_loop
        trainer.evaluation_loop = self._evaluation_loop  # type: ignore[method-assign]

    def _evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        output: Any = self._loop(*args, **kwargs)
        before = rng()
        try:
            predictions = [text for batch in self._batches() for text in self._generate(batch)]
        finally:
            set_rng(before)
        made = self._compute((predictions, [answer for _, answer in self._pairs]))
        if not isinstance(made, dict):
            name = plain_value(self._compute)
            raise UserError(f"compute_metrics {name} returned {type(made).__name__}: it must return a dict of numbers")
        prefix = kwargs.get("metric_key_prefix", "eval")
        output.metrics.update({f"{prefix}_{name}": float(value) for name, value in made.items()})
        return output

    def _batches(self) -> Iterator[Sequence[Any]]:
        trainer = self._trainer
        for start in range(0, len(self._pairs), trainer.args.per_device_eval_batch_size):
            yield [prompt for prompt, _ in self._pairs[start : start + trainer.args.per_device_eval_batch_size]]
            # As after a batch of the loss: a stop is carried out here.
            trainer.control = trainer.callback_handler.on_prediction_step(trainer.args, trainer.state, trainer.control)

    @torch.no_grad()
    def _generate(self, prompts: Sequence[Any]) -> list[str]:
        tokenizer, model = self._tokenizer, self._trainer.model
        texts = [
            prompt
            if isinstance(prompt, str)
            else tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
            for prompt in prompts
        ]
        # A chat template writes the special tokens itself.
        inputs = tokenizer(
            texts,
            return_tensors="pt",
            padding=True,
            padding_side="left",
            add_special_tokens=isinstance(prompts[0], str),
        ).to(model.device)
        made = model.generate(**inputs, generation_config=self._generation)
        texts = tokenizer.batch_decode(made[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        return [text.strip() for text in texts]


def _pair(row: dict[str, Any]) -> tuple[Any, str]:
    """A row's prompt (text or messages) and its answer. Raises UserError where the row has no such parts."""
    if "prompt" in row:
        answer = row.get("completion", row.get("chosen"))
        return row["prompt"], answer if isinstance(answer, str) else _format_messages(answer)
    messages = row.get("messages") or row.get("conversations")
    if messages and messages[-1]["role"] == "assistant":
        return messages[:-1], _format_messages(messages[-1:])
    raise UserError(
        "compute_metrics with a generation_config needs rows with prompt and completion, or messages that end with "
        f"the assistant's; these have {', '.join(row)}"
    )


def _format_messages(messages: Any) -> str:
    return "\n".join(str(message["content"]) for message in messages or ()).strip()
