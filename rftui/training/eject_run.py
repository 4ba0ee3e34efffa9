"""One run as a function of a plain TRL script."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from datasets import Dataset

from rftui.config.spec import Spec
from rftui.config.warm import last_row
from rftui.runs import Run
from rftui.training import data
from rftui.training.base_models import loading, tokenizer_of
from rftui.training.rewards import listed
from rftui.training.source import Call, Code, Values, source
from rftui.training.trainers import Plan, planned

_BY_DEFAULT = {"push_to_hub": False, "use_cpu": False, "eval_strategy": "no", "max_steps": -1}
"""Training arguments that are TRL's own, so that a person would leave them out."""

_NOT_HALF = ("float32", "bfloat16", torch.float32, torch.bfloat16)
"""Types of a model that can train on a CPU; others may turn out to be float16."""


@dataclass
class Part:
    """A run as a script trains it: up to `step`, which may be before its last, on `threads` threads of torch (None:
    not known), on a GPU or a CPU. `used` are the rows of an epoch of its parent, where it is a warm clone;
    `carried_on`: the next part goes on with its optimizer and schedule."""

    run: Run
    step: int
    threads: int | None
    gpu: bool
    used: int | None
    carried_on: bool = False

    @property
    def name(self) -> str:
        """That of its function."""
        return f"run_{self.run.id}"


class RunWriter:
    """Writes the runs of one fit. `evaluated`: whether a run needs the evaluation set too."""

    def __init__(self, spec: Spec, train: Dataset, evaluation: Dataset | None, values: Values) -> None:
        self.evaluated = False
        self._spec = spec
        self._train = train
        self._evaluation = evaluation
        self._values = values

    def function(self, part: Part) -> str:
        """The function `run_N(out)`, for a warm clone `run_N(out, start)`, that trains the run. Raises UserError."""
        run = part.run
        plan = planned(self._spec, run, self._train, self._evaluation, "", "cuda:0" if part.gpu else "cpu")
        evaluated = self._evaluation is not None and _needs_evaluation(plan)
        self.evaluated |= evaluated
        config = Call(f"{run.algo}Config", {"output_dir": Code("str(out)")} | self._arguments(plan, evaluated))
        lines = [f"args = {source(config, before=7)}", "set_seed(args.seed)", *self._model(part, plan)]
        prepared, takes = self._rows(plan, evaluated)
        trainer = Call(f"{run.algo}Trainer", takes | self._own_inputs(part, plan, evaluated))
        lines += [*prepared, f"trainer = {source(trainer, before=10)}"]
        if part.used:
            lines += self._warm_start(part, plan)
        lines += ["trainer.train()", "trainer.save_model()"]
        lines += ["keep_schedule(trainer, out)"] * part.carried_on
        if self._spec.setup_fn:
            lines.insert(0, f"{self._values.written(self._spec.setup_fn, 'setup_fn')}()")
        if part.threads:
            lines.insert(0, f"torch.set_num_threads({part.threads})")
        if self._values.here:
            lines.insert(0, f"os.chdir({source(self._spec.cwd)})  # relative paths are meant from here")
        end = "its end at" if part.step == run.total_steps else f"step {part.step} of"
        head = f"def {part.name}(out: Path{', start: Path' if part.used else ''}) -> None:"
        about = f'"""{docstring(f"Run {run.id}, {run.name!r}, to {end} {run.total_steps}.")}"""'
        return "\n".join([head, *(f"    {line}" for line in [about, *lines])])

    def _arguments(self, plan: Plan, evaluated: bool) -> dict[str, Any]:
        left_out = {name for name, value in _BY_DEFAULT.items() if plan.args.get(name) == value}
        left_out |= {"output_dir", "disable_tqdm"} | (set() if evaluated else {"eval_on_start"})
        args = {name: value for name, value in plan.args.items() if name not in left_out}
        written: dict[str, Any] = self._values.written(args, "training_args")
        return written

    def _model(self, part: Part, plan: Plan) -> list[str]:
        """The lines that make `model` and `tokenizer`, as `base_models` makes them."""
        config, written = plan.config, self._values.written
        given = tokenizer_of(config)
        if isinstance(given, str):
            kwargs = written(config.get("tokenizer_kwargs") or {}, "tokenizer_kwargs")
            load = Call("AutoTokenizer.from_pretrained", kwargs, (written(given, "tokenizer"),))
            tokenizer = source(load, before=12)
        else:
            tokenizer = source(written(given, "tokenizer"))
        if self._spec.create_model_fn is None:
            kwargs = written(loading(config), "model_kwargs")
            model = Call("create_model_from_path", kwargs, (written(config["model_name"], "model_name"),))
            lines = [f"model = {source(model, before=8)}", f"tokenizer = {tokenizer}"]
            half = loading(config).get("dtype", "float32") not in _NOT_HALF
        else:
            function = written(self._spec.create_model_fn, "create_model_fn")
            lines = [f"config = {source(written(config, 'config'), before=9)}", f"made = {function}(config)"]
            lines += ["model, tokenizer = made if isinstance(made, tuple) else (made, None)"]
            if given is not None:
                lines += ["if tokenizer is None:", f"    tokenizer = {tokenizer}"]
            half = True
        if part.gpu:
            lines += ['model.to("cuda")']
        elif half:
            lines += ["if model.dtype == torch.float16:  # which cannot train on a CPU", "    model = model.float()"]
        return lines

    def _rows(self, plan: Plan, evaluated: bool) -> tuple[list[str], dict[str, Any]]:
        """The lines that make the rows, and what the trainer takes of them and of their formatting function."""
        lines, left = self._dataset("rows", "train", self._train, len(self._train), plan)
        takes: dict[str, Any] = {"model": Code("model"), "args": Code("args"), "train_dataset": Code("rows")}
        if evaluated:
            assert self._evaluation is not None
            lines += self._dataset("eval_rows", "eval", self._evaluation, plan.ours["eval_rows"], plan)[0]
            takes["eval_dataset"] = Code("eval_rows")
        takes["processing_class"] = Code("tokenizer")
        if left is not None and plan.need.takes_text:
            takes["formatting_func"] = self._values.written(left, "formatting_func")
        return lines, takes

    def _dataset(self, name: str, folder: str, rows: Dataset, count: int, plan: Plan) -> tuple[list[str], Any]:
        lines = [f'{name} = load_from_disk(str(FILES / "{folder}"))']
        if count < len(rows):
            lines += [f"{name} = spread({name}, {count})"]
        replaced, left = data.applied(rows, plan.formatting, plan.need)
        columns = rows.column_names
        if replaced is not None and plan.formatting:
            columns = list(dict.fromkeys([*columns, *plan.formatting(rows[0])]))
            function = self._values.written(plan.formatting, "formatting_func")
            mapped = Call(f"{name}.map", {"remove_columns": replaced} if replaced else {}, (function,))
            lines += [f"{name} = {source(mapped, before=len(name) + 3)}"]
        if foreign := plan.need.foreign([column for column in columns if column not in (replaced or ())], left):
            lines += [f"{name} = {name}.remove_columns({foreign!r})"]
        return lines, left

    def _own_inputs(self, part: Part, plan: Plan, evaluated: bool) -> dict[str, Any]:
        config, written = plan.config, self._values.written
        inputs: dict[str, Any] = {}
        if plan.lora:
            inputs["peft_config"] = Call("LoraConfig", written(plan.lora, "peft_config"))
        if part.run.algo == "GRPO":
            inputs["reward_funcs"] = written(listed(config["reward_funcs"]), "reward_func")
        elif evaluated and config["compute_metrics"] and not config["generation_config"]:
            inputs["compute_metrics"] = written(config["compute_metrics"], "compute_metrics")
        if part.step != part.run.total_steps:
            inputs["callbacks"] = [Code(f"StopAt({part.step})")]
        return inputs

    def _warm_start(self, part: Part, plan: Plan) -> list[str]:
        run, prepared = part.run, "trainer.train_dataset"
        assert part.used
        order = data.epoch_order(run.algo, plan.as_cold)
        order = {name: value for name, value in order.items() if (name, value) != ("shuffled", True)}
        span = {"used": part.used, "start": run.start_row, "stop": last_row(run, plan.as_cold, part.used)}
        rows = Call("remaining_rows", span | order, (Code(f"len({prepared})"),))
        return [
            f"take_over_{'adapter' if plan.lora else 'weights'}(trainer.model, start)",
            *["continue_schedule(trainer, start)"] * run.continue_schedule,
            f"order = {source(rows, before=8)}",
            f"{prepared} = {prepared}.select(order)",
        ]


def _needs_evaluation(plan: Plan) -> bool:
    """Whether a run whose fit has an evaluation set draws random numbers for it: those of rftui leave no trace."""
    strategy = plan.ours["eval_strategy"]
    by_trl = strategy not in ("chunk", "no") or (strategy == "no" and plan.args.get("eval_on_start"))
    return bool(by_trl or plan.args.get("precompute_ref_log_probs"))


def docstring(text: str) -> str:
    """`text` as it can stand within a docstring."""
    return text.replace("\\", "\\\\").replace('"', '\\"')
