"""What a worker tells about configs: their knobs, their faults, and what rftui takes over."""

import math
import random
import shutil

import pytest
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, LlamaConfig, PreTrainedTokenizerFast
from trl import SFTConfig

from rftui.automl import List, RFDPOConfig, RFGridSearch, RFGRPOConfig, RFLoraConfig, RFModelConfig, RFSFTConfig
from rftui.automl.grid import ALGOS, expand
from rftui.config.managed import MANAGED, OWN, REFUSED
from rftui.config.spec import Spec
from rftui.config.validate import parse, value_fault
from rftui.config.values import FLOATS, WHOLE
from rftui.errors import UserError
from rftui.runs import Run
from rftui.training.arguments import arguments, config_class
from rftui.training.rows import formatting
from rftui.training.schema import check, describe

FIELDS = {field.name: field for field in describe(["SFT"])["SFT"]}
QA = Dataset.from_list([{"q": "what", "a": "that"}] * 4)
TEXT = Dataset.from_list([{"text": "some words"}] * 4)
CHAT = Dataset.from_list(
    [{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}] * 4
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A directory with the configuration and the tokenizer of a tiny Llama: no weights, and no chat template."""
    folder = tmp_path_factory.mktemp("llama")
    LlamaConfig(
        vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
    ).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({"<unk>": 0, "</s>": 1, "some": 2, "words": 3}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>", unk_token="<unk>").save_pretrained(folder)
    return str(folder)


def checked(*configs, train=TEXT, evaluation=None, create=None, changes=None):
    run_configs = expand(list(configs))
    runs = [
        Run(number + 1, f"r{number}", config_index=number, changes=changes or {}) for number in range(len(run_configs))
    ]
    return check(Spec(run_configs, create, has_eval=evaluation is not None), runs, train, evaluation, "cpu")


def one(model, peft=None, **args):
    return RFModelConfig(model, peft_config=peft, training_args=RFSFTConfig(**args))


def told(lines):
    return "\n".join(line for _, line in lines)


def taken(args, eval_rows=10, rows=100, algo="SFT", **config):
    run_config = expand(RFGridSearch(RFModelConfig("m", training_args=args, **config), algo))[0]
    return arguments(
        algo, run_config.config, output_dir="out", device="cpu", seed=7, rows=rows, eval_rows=eval_rows, per_epoch=4
    )


def test_every_field_is_described_with_a_default_that_is_a_value_of_it():
    assert list(FIELDS)[:2] == ["training_args.learning_rate", "training_args.num_train_epochs"]
    for field in FIELDS.values():
        if field.default is not None:
            assert value_fault(field, field.default) is None, field
            word = str(field.default).lower() if isinstance(field.default, bool) else str(field.default)
            assert parse(field, word) == field.default
    assert FIELDS["training_args.learning_rate"].default == 2e-5
    assert FIELDS["training_args.lr_scheduler_type"].kind == "choice"
    assert FIELDS["peft_config.target_modules"].kind == "list"
    assert "AdamW" in FIELDS["training_args.learning_rate"].help and not FIELDS["training_args.bf16"].default
    assert not [name for name in FIELDS if name.rsplit(".", 1)[-1] in MANAGED | REFUSED]


def test_the_knobs_that_are_numbers_are_known_without_trl():
    fields = [field for of_algo in describe(list(ALGOS)).values() for field in of_algo]
    for kind, names in (("float", {*FLOATS} - {"early_stopping_threshold"}), ("int", {*WHOLE})):
        assert {field.name.rsplit(".", 1)[-1] for field in fields if field.kind == kind} - names == set()
        assert names - {field.name.rsplit(".", 1)[-1] for field in fields if field.kind == kind} == set()


def test_sound_configs_pass_and_the_process_is_left_as_it_was(model):
    random.seed(3)
    state = random.getstate()
    lora = RFLoraConfig(r=4, target_modules=List([["q_proj", "v_proj"], "all-linear", r".*\.o_proj"]))
    assert checked(one(model, lora, learning_rate=1e-3), one(model), evaluation=TEXT) == ([], [])
    assert random.getstate() == state


@pytest.mark.parametrize(
    ("args", "peft", "parts"),
    [
        ({"learnin_rate": 1}, {}, ["training_args.learnin_rate", "'learning_rate'"]),
        ({"learning_rate": "1e-3x"}, {}, ["training_args.learning_rate", "a number"]),
        ({"learning_rate": 0}, {}, ["greater than 0"]),
        ({"num_train_epochs": math.nan}, {}, ["training_args.num_train_epochs"]),
        ({"lr_scheduler_type": "cosin"}, {}, ["'cosine'"]),
        ({"torch_compile": True}, {}, ["torch_compile", "cannot be used"]),
        ({"push_to_hub": True, "auto_find_batch_size": True}, {}, ["push_to_hub", "auto_find_batch_size"]),
        ({"eval_strategy": "sometimes"}, {}, ["training_args", "sometimes"]),
        ({"dataloader_prefetch_factor": 2}, {}, ["dataloader_num_workers"]),
        ({"assistant_only_loss": True}, {}, ["assistant_only_loss"]),
        ({}, {"lora_dropuot": 0.1}, ["peft_config.lora_dropuot", "'lora_dropout'"]),
        ({}, {"r": 0}, ["peft_config.r"]),
        ({}, {"target_modules": ["query_key_value"]}, ["query_key_value", "q_proj, k_proj", "down_proj"]),
        ({}, {"target_modules": "nothing.*"}, ["nothing", "q_proj"]),
        ({}, {"target_modules": "*"}, ["regular expression"]),
        ({}, {"target_modules": ["self_attn"]}, ["LoRA cannot adapt self_attn"]),
    ],
)
def test_faults_name_the_knob_in_one_line(model, args, peft, parts):
    faults, _ = checked(one(model, RFLoraConfig(**peft), **args), evaluation=TEXT)
    assert faults and all(run == 1 and "\n" not in line for run, line in faults)
    assert all(part in told(faults) for part in parts)


def test_faults_of_all_runs_are_told_at_once_and_those_of_every_run_once(model):
    shared = one(model, learning_rate=-1, max_steps=List([1, 0]))
    faults, _ = checked(shared, one("./nowhere", learning_rate=-1))
    assert [run for run, _ in faults] == [None, 2, 3]
    assert "learning_rate" in faults[0][1] and "max_steps" in faults[1][1] and "nowhere" in faults[2][1]


MISSPELT = [
    ({"target_modules": ["q_proj", "v_porj"]}, ["v_porj", "q_proj, k_proj", "did you mean 'v_proj'"]),
    ({"modules_to_save": ["lm_head", "lm_haed"]}, ["no module lm_haed", "did you mean 'lm_head'"]),
    ({"exclude_modules": ["up_proj", "up_porj"]}, ["no module up_porj"]),
    ({"exclude_modules": ".*up_porj"}, ["up_porj"]),
    ({"rank_pattern": {"q_proj": 4, "q_porj": 8}}, ["q_porj matches no module", "did you mean 'q_proj'"]),
    ({"rank_pattern": {"up_proj": 4}}, ["up_proj matches no module", "that is adapted"]),
    ({"alpha_pattern": {"^model.*vv_proj": 4}}, ["vv_proj"]),
    ({"alpha_pattern": {"(": 4}}, ["regular expression"]),
    ({"layers_to_transform": [0, 7]}, ["layer 7"]),
    ({"layers_to_transform": 3}, ["layer 3"]),
    ({"layers_to_transform": 0, "layers_pattern": ["layers", "blocks"]}, ["blocks"]),
    (
        {"target_modules": None, "target_parameters": ["q_proj.weight", "q_porj.weight"]},
        ["no parameter q_porj.weight"],
    ),
    ({"trainable_token_indices": {"embed_tokens": [1], "embed": [1]}}, ["no module embed"]),
]
"""Fields of a LoRA config for q_proj and v_proj, and what is said of them."""


@pytest.mark.parametrize(("peft", "parts"), MISSPELT)
def test_a_name_that_is_none_in_the_model_is_refused(model, peft, parts):
    faults, _ = checked(one(model, RFLoraConfig(**{"target_modules": ["q_proj", "v_proj"]} | peft)))
    assert len(faults) == 1 and all(part in faults[0][1] for part in parts), faults


@pytest.mark.parametrize(
    "peft",
    [
        {"modules_to_save": ["lm_head", "model.norm"], "exclude_modules": ["layers.0.self_attn.q_proj"]},
        {"rank_pattern": {"q_proj": 4, r"^model\.layers\.0\.self_attn\.v_proj": 8}, "alpha_pattern": {"v.*": 4}},
        {"layers_to_transform": [0], "layers_pattern": "layers"},
        {"target_modules": r".*\.(q|v)_proj", "rank_pattern": {"q_proj": 2}},
        {"target_modules": "all-linear", "rank_pattern": {"up_proj": 2}},
        {"layers_to_transform": 0},
        {"target_modules": None, "rank_pattern": {"q_proj": 2}},
        {"trainable_token_indices": [1, 2]},
        {"trainable_token_indices": {"embed_tokens": [1]}},
        {"target_parameters": ["up_proj.weight"], "rank_pattern": {"up_proj.weight": 4}},
    ],
)
def test_names_that_match_something_pass(model, peft):
    assert checked(one(model, RFLoraConfig(**{"target_modules": ["q_proj", "v_proj"]} | peft))) == ([], [])


def test_a_name_of_another_base_in_the_group_is_a_notice(model, tmp_path):
    other = tmp_path / "gpt2"
    shutil.copytree(model, other)
    GPT2Config(vocab_size=8, n_embd=8, n_layer=1, n_head=1).save_pretrained(other)
    lora = RFLoraConfig(target_modules=["q_proj", "c_attn"])
    faults, notices = checked(one(model, lora), one(str(other), lora))
    assert not faults and [run for run, _ in notices] == [1, 2]
    assert "has no c_attn" in notices[0][1] and "has no q_proj" in notices[1][1]
    faults, _ = checked(one(model, lora), one(str(other), RFLoraConfig(target_modules=["c_attn"])))
    assert [run for run, _ in faults] == [1], "only its own model is meant by a list of its own"


@pytest.mark.parametrize("name", ["./nowhere", "/no/such/place", "a b", None, 3])
def test_a_model_that_is_not_there(name):
    faults, _ = checked(one(name))
    assert len(faults) == 1 and "model_name" in faults[0][1]


def test_a_directory_without_a_model_and_a_hub_that_cannot_be_reached(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    faults, _ = checked(one(str(tmp_path)), one("owner/nowhere"))
    assert [run for run, _ in faults] == [1, 2]
    assert str(tmp_path) in faults[0][1] and "hub" in faults[1][1] and "no directory" in faults[1][1]


def test_a_script_that_makes_its_own_model_is_not_asked_for_a_name():
    def create(config):
        raise AssertionError("called")

    assert checked(one(None, RFLoraConfig(target_modules=["x"])), create=create) == ([], [])


def to_dict(row):
    return {"prompt": row["q"], "completion": row["a"]}


def to_text(row):
    return row["q"] + row["a"]


def to_list(row):
    return [row["q"]]


def to_other(row):
    return {"question": row["q"]}


def fails(row):
    return row["zz"]


@pytest.mark.parametrize(
    ("function", "rows", "parts"),
    [
        (to_dict, QA, []),
        (to_text, QA, []),
        (None, QA, ["columns q, a", "text, messages, or prompt and completion"]),
        (to_list, QA, ["to_list returns list"]),
        (to_other, QA, ["columns question"]),
        (fails, QA, ["fails raised KeyError", "'zz'", "columns q, a"]),
        (fails, TEXT, []),
        (
            lambda row: "x",
            Dataset.from_list([{"prompt": "a", "completion": "b"}]),
            ["has prompt and completion already"],
        ),
        (lambda row: "x", CHAT, ["returns text", "has messages already"]),
        (None, Dataset.from_list([{"prompt": "a", "text": "b"}]), ["columns prompt, text"]),
    ],
)
def test_rows_must_be_such_as_sft_takes(model, function, rows, parts):
    config = one(model)
    config.formatting_func = function
    faults, _ = checked(config, train=rows)
    assert bool(faults) == bool(parts)
    assert all(part in told(faults) for part in parts)


def test_the_eval_set_is_checked_too(model):
    faults, _ = checked(one(model), evaluation=QA)
    assert len(faults) == 1 and "eval_dataset has the columns q, a" in faults[0][1]


def test_a_config_without_a_function_takes_its_siblings(model):
    with_function = one(model)
    with_function.formatting_func = to_dict
    faults, notices = checked(one(model), with_function, train=QA)
    assert not faults and [run for run, _ in notices] == [1] and "to_dict" in told(notices)
    spec = Spec(expand([one(model), with_function]))
    assert formatting(spec, 0, ["q", "a"]) is to_dict and formatting(spec, 0, ["text"]) is None


def test_conversations_need_a_chat_template(model, tmp_path):
    faults, _ = checked(one(model), train=CHAT)
    assert len(faults) == 1 and "chat template" in faults[0][1]
    (tmp_path / "chat.jinja").write_text("{{ messages }}")
    assert not checked(one(model, chat_template_path=str(tmp_path / "chat.jinja")), train=CHAT)[0]


def test_the_changes_of_a_clone_are_checked(model):
    faults, _ = checked(one(model), changes={"training_args.learning_rate": -1.0})
    assert "learning_rate" in told(faults)


def test_translated_arguments_are_named_in_notices(model):
    faults, notices = checked(one(model, warmup_ratio=0.1, max_seq_length=32, fp16=True))
    assert not faults and "warmup_steps" in told(notices) and "max_length" in told(notices)
    assert "goes on in fp32" in told(notices)


def test_rftui_sets_what_is_its_own_and_leaves_the_rest():
    kwargs, lora, notices, ours = taken({"learning_rate": 1e-3, "output_dir": "mine"})
    assert kwargs == {
        "learning_rate": 1e-3,
        "eval_strategy": "no",
        "bf16": False,
        "data_seed": 7,
        "logging_steps": 1,
        "output_dir": "out",
        "report_to": "none",
        "push_to_hub": False,
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    assert lora is None and notices == []
    assert ours["eval_strategy"] == "chunk" and not ours["every_chunk"]
    assert taken({}, peft_config={"r": 4})[1] == {"task_type": "CAUSAL_LM", "r": 4}
    assert taken({}, rows=10_000)[0]["logging_steps"] == 10


@pytest.mark.parametrize("name", sorted(MANAGED))
def test_what_is_taken_over_is_left_out_and_said_where_it_matters(name):
    kwargs, _, notices, _ = taken({name: "something"})
    assert kwargs.get(name) != "something"
    silent = name in ("output_dir", "run_name", "disable_tqdm", "local_rank", "use_cpu") or name.startswith("do_")
    assert [MANAGED[name] in line for line in notices] == ([] if silent else [True])
    assert not taken({name: False})[2] or name == "use_cpu"


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_is_refused_is_refused_only_when_it_is_switched_on(name):
    with pytest.raises(UserError, match=name):
        taken({name: "on"})
    assert name not in taken({name: None})[0] or name == "push_to_hub"


def test_the_tables_hold_arguments_of_trl():
    known = {name for algo in ALGOS for name in config_class(algo).__dataclass_fields__}
    assert set(MANAGED) | set(REFUSED) <= known and not OWN & known


@pytest.mark.parametrize(
    ("args", "eval_rows", "trl", "ours", "said"),
    [
        ({}, 10, "no", "chunk", 0),
        ({}, 0, "no", "no", 0),
        ({"eval_strategy": "shard"}, 10, "no", "chunk", 0),
        ({"eval_strategy": "epoch"}, 10, "epoch", "epoch", 0),
        ({"eval_strategy": "no"}, 10, "no", "no", 0),
        ({"eval_steps": 5}, 10, "steps", "steps", 1),
        ({"eval_strategy": "steps"}, 0, "no", "no", 1),
        ({"eval_strategy": "no", "early_stopping_patience": 2}, 10, "no", "no", 1),
    ],
)
def test_when_it_is_evaluated(args, eval_rows, trl, ours, said):
    kwargs, _, notices, own = taken(args, eval_rows)
    assert (kwargs["eval_strategy"], own["eval_strategy"], len(notices)) == (trl, ours, said)


def test_what_the_user_set_wins():
    kwargs, _, notices, ours = taken({"bf16": True, "data_seed": 1, "logging_steps": 3, "save_strategy": "chunk"})
    assert (kwargs["bf16"], kwargs["data_seed"], kwargs["logging_steps"]) == (True, 1, 3)
    assert ours["every_chunk"] and "own order" in notices[0]
    assert "gradient_checkpointing" not in kwargs


def test_what_a_seed_moves_is_told():
    """The rows' order is run_fit's, so that runs see the same rows; GRPO has one seed for both."""
    kwargs, _, notices, _ = taken({"seed": 3})
    assert (kwargs["seed"], kwargs["data_seed"]) == (
        3,
        7,
    ) and "rows come in the order of run_fit's seed, 7" in notices[0]
    assert taken({"seed": 7})[2] == [] and "seed" not in taken({})[0]
    kwargs, _, notices, _ = taken({"seed": 3, "data_seed": 3})
    assert len(notices) == 1 and "own order" in notices[0]


def test_trls_and_pefts_own_objects_are_read():
    from peft import LoraConfig

    args = SFTConfig(
        output_dir="x", learning_rate=1e-3, use_cpu=True, bf16=False, lr_scheduler_type="cosine", eval_steps=5
    )
    config = RFModelConfig("m", peft_config=LoraConfig(r=4, target_modules=["v_proj", "q_proj"]), training_args=args)
    run_config = expand(config)[0]
    assert run_config.algo == "SFT" and run_config.config["peft_config"] == {
        "r": 4,
        "target_modules": ["q_proj", "v_proj"],
    }
    assert run_config.config["training_args"] == {
        "output_dir": "x",
        "learning_rate": 1e-3,
        "lr_scheduler_type": "cosine",
        "eval_steps": 5,
        "use_cpu": True,
        "bf16": False,
    }
    assert expand(RFModelConfig("m", training_args=SFTConfig(use_cpu=True)))[0].config["training_args"] == {
        "use_cpu": True
    }


def likes(completions, **_):
    return [1.0] * len(completions)


PREFERENCES = Dataset.from_list([{"prompt": "some", "chosen": " words", "rejected": " some"}] * 4)


def test_dpo_and_grpo_configs_are_checked_by_their_own_classes_and_rows(model):
    dpo = RFModelConfig(model, peft_config=RFLoraConfig(r=4), training_args=RFDPOConfig(beta=0.2))
    grpo = RFModelConfig(
        model, peft_config=RFLoraConfig(r=4), training_args=RFGRPOConfig(num_generations=2), reward_funcs=likes
    )
    assert checked(dpo, grpo, train=PREFERENCES, evaluation=PREFERENCES) == ([], [])
    faults, _ = checked(dpo, grpo, train=TEXT)
    assert "DPO needs chosen and rejected" in told(faults) and "GRPO needs prompt" in told(faults)
    renamed = Dataset.from_list([{"query": "some", "response": "words", "rejected_response": "some"}])
    faults, _ = checked(dpo, train=renamed)
    assert 'rename_column("query", "chosen")' in told(faults) and "query, response, rejected_response" in told(faults)
    wrong = RFModelConfig(model, training_args=RFDPOConfig(num_generations=2))
    assert "num_generations is not an argument of DPOConfig" in told(checked(wrong, train=PREFERENCES)[0])
    text = RFModelConfig(model, training_args=RFDPOConfig(), formatting_func=lambda row: "text")
    assert "must return a dict of columns, since DPO needs" in told(checked(text, train=PREFERENCES)[0])


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (
            {"num_generations": 3, "per_device_train_batch_size": 4},
            "the 4 completions of a generation: it can be 2 or 4",
        ),
        ({"num_generations": 1}, "must be 2 or more"),
        ({"generation_batch_size": 8, "steps_per_generation": 2}, "say the same"),
        ({"generation_batch_size": 10, "per_device_train_batch_size": 4}, "multiple of the batch size: 4, 8, 12"),
        ({"num_generations": 4, "per_device_eval_batch_size": 6}, "multiple of the 4 completions"),
    ],
)
def test_what_grpo_cannot_generate_is_told_with_what_it_can(model, args, said):
    grpo = RFModelConfig(model, training_args=RFGRPOConfig(**args), reward_funcs=likes)
    faults, _ = checked(grpo, train=PREFERENCES, evaluation=PREFERENCES)
    assert said in told(faults)


def test_grpo_shuffles_by_the_experiments_seed_and_evaluates_whole_prompts():
    kwargs, _, notices, ours = taken(
        {"num_generations": 12, "per_device_train_batch_size": 12}, algo="GRPO", reward_funcs=likes
    )
    assert (kwargs["seed"], kwargs["per_device_eval_batch_size"], notices) == (7, 12, [])
    assert "own order: seed 3" in taken({"seed": 3}, algo="GRPO", reward_funcs=likes)[2][0]


def test_an_evaluation_is_cheap_unless_it_was_asked_for():
    _, _, notices, ours = taken({}, eval_rows=1000, rows=2000)
    assert ours["eval_rows"] == 75 and "75 of the 1000 eval rows" in notices[0]
    assert taken({"eval_strategy": "chunk"}, eval_rows=1000)[3]["eval_rows"] == 1000
    assert taken({}, eval_rows=20)[3]["eval_rows"] == 20


@pytest.mark.parametrize("algo", ALGOS)
def test_every_described_default_is_a_value_of_its_field(algo):
    fields = describe([algo])[algo]
    assert len(fields) > 80 and {"learning_rate", "num_train_epochs"} <= {
        field.name.split(".")[-1] for field in fields
    }
    for field in fields:
        if field.default is not None:
            assert value_fault(field, field.default) is None, field
