"""The text of ejected scripts: what is code, what lies beside it, what is left out. tests/fidelity runs them."""

import ast
import builtins
import dis
import json
import os
import pickle
import runpy
from types import CodeType

import pytest
import torch
from datasets import Dataset, disable_progress_bars, enable_caching

from rftui import paths
from rftui.automl import RFDPOConfig, RFGRPOConfig, RFLoraConfig, RFModelConfig, RFSFTConfig
from rftui.automl.grid import expand
from rftui.checkpoints import CHECKPOINT_MARKER
from rftui.config.spec import Spec
from rftui.errors import UserError
from rftui.runs import Run
from rftui.training.eject_script import eject
from rftui.training.saving import commit
from rftui.training.source import Call, Code, Values, source
from tests.fidelity.cases import TINYCHAT, rows, short

TINY = str(TINYCHAT)


def config(args=RFSFTConfig, **changes):
    given = {
        "model_name": TINY,
        "peft_config": RFLoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"]),
        "training_args": args(learning_rate=1e-3, per_device_train_batch_size=4, num_train_epochs=2),
    }
    if args is RFGRPOConfig:
        given["training_args"].num_generations = 2
    return RFModelConfig(**(given | changes))


class Case:
    """An experiment of `group` that looks as if its runs had trained, and scripts ejected from it."""

    def __init__(self, home, group, create=None, evaluates=True):
        disable_progress_bars()
        self.experiment = paths.create(home, "exp")
        self.run_configs = expand(group)
        train = Dataset.from_list(rows())
        train.save_to_disk(str(self.experiment.data(1) / "train"))
        if evaluates:
            train.select(range(6)).save_to_disk(str(self.experiment.data(1) / "eval"))
        (self.experiment.data(1) / "train" / "cache-1.arrow").write_text("rows that were mapped")
        Spec(self.run_configs, create, cwd=str(home), sys_path=[]).save(self.experiment.spec(1))
        self._home = home
        self.scripts = 0

    def run(self, number, config_index=None, **fields):
        index = number - 1 if config_index is None else config_index
        return Run(number, f"run {number}", self.run_configs[index].algo, config_index=index, total_steps=14, **fields)

    def left(self, folder, step):
        """What a run leaves: a whole checkpoint in `folder`."""
        work = folder.with_name("work")
        work.mkdir(parents=True)
        (work / "adapter_model.safetensors").write_text("weights")
        commit(work, folder, {"step": step, "epoch": 0.0, "row": 12, "rows": 26})
        return folder

    def script(self, *lineage, step=14, gpu=False):
        """The script of the last of these runs, which ended at `step`."""
        self.scripts += 1
        name = "final" if step == 14 else f"step-{step}"
        goal = self.left(self.experiment.run(lineage[-1].id).path / name, step)
        return self.eject(*lineage, goal=goal, gpu=gpu)

    def eject(self, *lineage, goal, gpu=False):
        self.file, self.beside = self._home / f"script{self.scripts}.py", self._home / f"beside{self.scripts}"
        eject(self.experiment, [(run, gpu) for run in lineage], goal, self.file, self.beside)
        return self.file.read_text()


def calls(text, function):
    """The keyword arguments, as source, of the calls of `function` in a script."""
    made = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    return [
        {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        for node in made
        if ast.unparse(node.func) == function
    ]


def test_a_run_is_plain_code_and_its_rows_lie_beside_it(tmp_path):
    case = Case(tmp_path, config())
    text = case.script(case.run(1))
    assert "rftui" not in text.replace(str(case.experiment.path), "").replace(TINY, "")
    [args], [lora], [trainer] = calls(text, "SFTConfig"), calls(text, "LoraConfig"), calls(text, "SFTTrainer")
    assert args["learning_rate"] == "0.001" and args["data_seed"] == "42" and args["output_dir"] == "str(out)"
    assert {"push_to_hub", "eval_strategy", "disable_tqdm", "max_steps"}.isdisjoint(args)
    assert lora["target_modules"] == "['q_proj', 'v_proj']" and lora["task_type"] == "'CAUSAL_LM'"
    assert set(trainer) == {"model", "args", "train_dataset", "processing_class", "peft_config"}
    assert f"torch.set_num_threads({torch.get_num_threads()})" in text
    assert 'os.environ["CUDA_VISIBLE_DEVICES"] = ""' in text and "os.chdir" not in text and "OBJECTS" not in text
    [kept] = case.beside.iterdir()
    assert kept.name == "train" and not list(kept.glob("cache-*")), "no pickle, no eval set, no cache"
    arrow = next(kept.glob("*.arrow"))
    assert arrow.stat().st_ino == (case.experiment.data(1) / "train" / arrow.name).stat().st_ino


def test_what_ended_early_is_stopped_at_its_step_and_old_markers_tell_no_threads(tmp_path):
    case = Case(tmp_path, config())
    run = case.run(1)
    marker = case.left(case.experiment.run(1).path / "step-3", 3) / CHECKPOINT_MARKER
    said = json.loads(marker.read_text())
    del said["threads"]
    marker.write_text(json.dumps(said))
    text = case.eject(run, goal=marker.parent)
    assert calls(text, "SFTTrainer")[0]["callbacks"] == "[StopAt(3)]" and "class StopAt" in text
    assert "to step 3 of 14" in text and "newest checkpoint, at step 3" in text
    assert "set_num_threads" not in text and "OMP_NUM_THREADS" in text


def test_a_warm_clone_brings_its_ancestors(tmp_path):
    case = Case(tmp_path, config(RFGRPOConfig, reward_funcs=[short, "org/reward-model"]))
    child = case.run(2, config_index=0, warm=True, parent=1, start_step=3, start_row=12, changes={"peft_config.r": 8})
    grandchild = case.run(3, config_index=0, warm=True, parent=2, start_step=5, start_row=20)
    case.left(case.experiment.run(2).start, 3)
    case.left(case.experiment.run(3).start, 2)
    text = case.script(case.run(1), child, grandchild)
    first, second, third = calls(text, "GRPOTrainer")
    assert [first["callbacks"], second["callbacks"]] == ["[StopAt(3)]", "[StopAt(2)]"] and "callbacks" not in third
    assert first["reward_funcs"] == "[OBJECTS['short'], 'org/reward-model']"
    assert [lora["r"] for lora in calls(text, "LoraConfig")] == ["4", "8", "4"]
    first, second, third = calls(text, "GRPOConfig")
    assert first["num_train_epochs"] == "2" and "shuffle_dataset" not in first
    assert second["num_train_epochs"] == third["num_train_epochs"] == "1" and third["shuffle_dataset"] == "False"
    in_order = {"used": "26", "seed": "42", "one_generator": "True"}
    spans = [{"start": "12", "stop": "52"}, {"start": "20", "stop": "52"}]
    assert calls(text, "remaining_rows") == [in_order | span for span in spans]
    assert "run 1, then run 2 is trained first" in text and "take_over_weights" not in text
    main = text[text.index("def main") :]
    assert main.index("alone(run_1, ") < main.index("alone(run_2, ") < main.index("alone(run_3, out, ")


def test_a_clone_that_keeps_its_parents_schedule_takes_it_over_from_its_parents_function(tmp_path):
    case = Case(tmp_path, config())
    child = case.run(2, config_index=0, warm=True, parent=1, start_step=3, start_row=12, continue_schedule=True)
    case.left(case.experiment.run(2).start, 3)
    text = case.script(case.run(1), child)
    first, second = text[text.index("def run_1") : text.index("def run_2")], text[text.index("def run_2") :]
    assert "keep_schedule(trainer, out)" in first and "continue_schedule(trainer, start)" not in first
    assert "continue_schedule(trainer, start)" in second and "keep_schedule(trainer, out)" not in second
    assert "import json" in text and "def continue_schedule" in text and "def keep_schedule" in text


@pytest.mark.parametrize(
    ("args", "evaluated"),
    [
        (RFSFTConfig(eval_on_start=True), False),
        (RFSFTConfig(eval_strategy="no"), False),
        (RFSFTConfig(eval_strategy="no", eval_on_start=True), True),
        (RFSFTConfig(eval_steps=3), True),
        (RFSFTConfig(eval_strategy="epoch"), True),
        (RFDPOConfig(precompute_ref_log_probs=True), True),
    ],
)
def test_the_eval_set_is_there_exactly_if_random_numbers_are_drawn_for_it(tmp_path, args, evaluated):
    def score(pairs):
        return {"score": 1.0}

    case = Case(tmp_path, config(training_args=args, compute_metrics=score))
    text = case.script(case.run(1))
    algo = type(args).__name__.removeprefix("RF").removesuffix("Config")
    [trainer], [arguments] = calls(text, f"{algo}Trainer"), calls(text, f"{algo}Config")
    assert ("eval_dataset" in trainer) == ("compute_metrics" in trainer) == evaluated
    assert (case.beside / "eval").is_dir() == evaluated
    assert ("eval_on_start" in arguments) == (evaluated and hasattr(args, "eval_on_start"))


def test_rows_are_formatted_as_they_were(tmp_path):
    def columns(row):
        return {"messages": row["prompt"] + row["completion"]}

    def text(row):
        return f"{row['answer']}"

    case = Case(tmp_path, [config(formatting_func=columns), config(formatting_func=text)])
    mapped = case.script(case.run(1))
    assert calls(mapped, "rows.map") == [
        {"remove_columns": "['prompt', 'completion', 'chosen', 'rejected', 'answer']"}
    ]
    assert "rows.map(OBJECTS['columns']," in ast.unparse(ast.parse(mapped))
    assert "formatting_func" not in calls(mapped, "SFTTrainer")[0]
    left = case.script(case.run(2))
    assert calls(left, "SFTTrainer")[0]["formatting_func"] == "OBJECTS['text']" and not calls(left, "rows.map")


def test_models_are_loaded_as_they_were(tmp_path):
    kinds = [{"dtype": torch.bfloat16}, {"torch_dtype": "float16", "use_gradient_checkpointing": True}, {}]
    case = Case(tmp_path, [config(model_kwargs=kwargs, peft_config=None) for kwargs in kinds])
    bare, half, single = [case.script(case.run(number)) for number in (1, 2, 3)]
    assert calls(bare, "create_model_from_path") == [{"dtype": "torch.bfloat16"}]
    assert calls(half, "create_model_from_path") == [{"dtype": "'float16'"}] and "model.float()" in half
    assert calls(single, "create_model_from_path") == [{}] and "model.float()" not in bare + single
    assert calls(half, "SFTConfig")[0]["gradient_checkpointing"] == "True" and "LoraConfig" not in bare


def create(given):
    return given["model_name"], None


def test_a_users_own_function_gets_the_config_that_it_got(tmp_path):
    (tmp_path / "model").mkdir()
    case = Case(tmp_path, config(model_name="model", tokenizer=TINY), create)
    text = case.script(case.run(1))
    assert "OBJECTS['create'](config)" in ast.unparse(ast.parse(text))
    [given] = [
        node.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Assign) and "config" in ast.unparse(node.targets[0])
    ]
    given = ast.literal_eval(given)
    assert given["model_name"] == "model" and given["training_args"]["learning_rate"] == 1e-3
    assert f'os.chdir("{tmp_path}")' in text and f'tokenizer = AutoTokenizer.from_pretrained("{TINY}")' in text
    assert pickle.loads((case.beside / "objects.pkl").read_bytes())["create"](given) == ("model", None)


def test_secrets_are_in_neither_the_script_nor_the_pickle(tmp_path, monkeypatch):
    def login(row):
        return {"messages": row["prompt"], "by": "hf_insidethefunction"}

    case = Case(tmp_path, config(model_kwargs={"token": "hf_inthemodelskwargs"}, formatting_func=login))
    text = case.script(case.run(1))
    assert calls(text, "create_model_from_path") == [{"token": "os.environ['HF_TOKEN']"}]
    assert "set HF_TOKEN, HF_TOKEN_2" in text
    pickled = (case.beside / "objects.pkl").read_bytes()
    assert "hf_in" not in text and b"hf_in" not in pickled
    with pytest.raises(KeyError, match="HF_TOKEN_2"):
        pickle.loads(pickled)
    monkeypatch.setenv("HF_TOKEN_2", "from the environment")
    assert pickle.loads(pickled)["login"]({"prompt": []})["by"] == "from the environment"


def test_what_uses_rftui_is_refused_and_leaves_nothing(tmp_path):
    def reward(completions, **_):
        from rftui.automl import List

        return List(completions).values

    case = Case(tmp_path, config(RFGRPOConfig, reward_funcs=reward))
    with pytest.raises(UserError, match="reward uses rftui"):
        case.script(case.run(1))
    assert not case.file.exists() and not case.beside.exists()


def test_a_gpus_run_needs_one_and_gets_it(tmp_path, monkeypatch):
    case = Case(tmp_path, config())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="trained on a GPU"):
        case.script(case.run(1), gpu=True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    text = case.script(case.run(1), gpu=True)
    [args] = calls(text, "SFTConfig")
    assert args["bf16"] == "True" and "use_cpu" not in args
    assert 'model.to("cuda")' in text and 'os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[0]' in text


def test_a_disk_that_is_full_leaves_nothing(tmp_path, monkeypatch):
    case = Case(tmp_path, config())

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "link", full)
    monkeypatch.setattr("shutil.copyfile", full)
    with pytest.raises(UserError, match="No space left on device; name another"):
        case.script(case.run(1))
    assert not case.file.exists() and not case.beside.exists()


@pytest.fixture
def undisturbed(monkeypatch):
    """A script's module code sets the environment and switches caching off."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    yield
    enable_caching()


def global_names(code):
    """The globals that a function and those within it use."""
    used = {instruction.argval for instruction in dis.get_instructions(code) if instruction.opname == "LOAD_GLOBAL"}
    return used.union(*(global_names(inner) for inner in code.co_consts if isinstance(inner, CodeType)))


def test_scripts_define_and_import_all_that_they_use(tmp_path, undisturbed):
    group = [
        config(RFGRPOConfig, reward_funcs=short),
        config(peft_config=None),
        config(RFDPOConfig, training_args=RFDPOConfig(precompute_ref_log_probs=True)),
    ]
    case = Case(tmp_path, group)
    case.left(case.experiment.run(4).start, 3)
    case.left(case.experiment.run(5).start, 3)
    clones = [
        case.run(4 + index, config_index=index, warm=True, parent=index + 1, start_step=3, start_row=12)
        for index in (0, 1)
    ]
    for lineage in ([case.run(1), clones[0]], [case.run(2), clones[1]], [case.run(3)]):
        lineage[-1].name = 'na"""me \\x \n'
        case.script(*lineage)
        made = runpy.run_path(str(case.file))
        functions = [value for value in made.values() if getattr(value, "__module__", "") == made["__name__"]]
        assert len(functions) > len(lineage)
        codes = [function.__code__ for function in functions if hasattr(function, "__code__")]
        used = set().union(*(global_names(code) for code in codes))
        assert used <= made.keys() | vars(builtins).keys()


def test_source_is_broken_where_it_is_long():
    value = Call("f", {"a": [1, float("inf")], "b": {"c": (1,), 2: None}, "d": Code("x.y")}, ('"',))
    assert source(value) == 'f(\'"\', a=[1, float("inf")], b={"c": (1,), 2: None}, d=x.y)'
    broken = source(Call("f", {"a": ["x" * 60, "y" * 60], "b": 1}), indent=4, before=4)
    assert broken.splitlines() == [
        "f(",
        "        a=[",
        f'            "{"x" * 60}",',
        f'            "{"y" * 60}",',
        "        ],",
        "        b=1,",
        "    )",
    ]


def test_values_that_are_no_plain_data_are_referred_to_by_names_of_their_own():
    class Own(float):
        pass

    values = Values()
    assert source(values.written({"a": Own(1), "b": [Own(2), torch.float16]}, "model_kwargs")) == (
        '{"a": OBJECTS["a"], "b": [OBJECTS["b"], torch.float16]}'
    )
    assert values.written(short, "reward_func") == values.written(short, "other") == 'OBJECTS["short"]'
    assert values.written(lambda: 0, "short") == 'OBJECTS["short_2"]' and len(values.objects) == 4
