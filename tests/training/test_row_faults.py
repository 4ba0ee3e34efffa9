"""Every row that a trainer would get is looked at before it trains, and nothing but what the user gave trains."""

import pytest
from datasets import Dataset, load_from_disk
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

from rftui.automl import RFModelConfig, RFSFTConfig
from rftui.automl.grid import expand
from rftui.config.spec import Spec
from rftui.errors import UserError
from rftui.runs import Run
from rftui.training.data import formatted
from rftui.training.row_faults import row_faults
from rftui.training.rows import Need
from rftui.training.schema import check
from tests.fidelity.cases import TINYCHAT


def chat(*contents, **last):
    messages = [{"role": "user", "content": content} for content in contents]
    return {"messages": [*messages, {"role": "assistant", "content": "ho"} | last]}


def need(algo="SFT", **args):
    return Need(algo, {"training_args": args})


def found(rows, algo="SFT", **args):
    return row_faults(Dataset.from_list(rows), need(algo, **args), "eval_dataset")


@pytest.mark.parametrize(
    ("rows", "algo", "parts"),
    [
        ([{"text": "a"}, {"text": None}, {"text": "b"}, {"text": None}], "SFT", ["without text: 2 of 4 (rows 1, 3,"]),
        ([{"text": 1}], "SFT", ["int64 in the column text"]),
        ([{"text": None}], "SFT", ["without text: 1 of 1 (rows 0,"]),
        ([chat("a"), {"messages": []}], "SFT", ["messages is empty: 1 of 2 (rows 1,"]),
        ([chat("a"), {"messages": None}], "SFT", ["without messages: 1 of 2 (rows 1,"]),
        ([chat("a"), chat("b", role=None)], "SFT", ["messages without a role: 1 of 2 (rows 1,"]),
        ([{"prompt": "a", "completion": "b"}, {"prompt": "a", "completion": None}], "SFT", ["without completion"]),
        ([{"chosen": "a", "rejected": None}, {"chosen": None, "rejected": "b"}], "DPO", ["chosen: 1", "rejected: 1"]),
        ([{"prompt": "a"}, {"prompt": None}], "GRPO", ["without prompt: 1 of 2 (rows 1,"]),
        ([{"prompt": "a", "other": None}], "GRPO", []),
        ([{"text": f"{n}" if n > 6 else None} for n in range(9)], "SFT", ["7 of 9 (rows 0, 1, 2, 3, 4, ..., counted"]),
    ],
)
def test_rows_that_cannot_be_trained_on_are_named_with_set_number_column_and_count(rows, algo, parts):
    faults, notices = found(rows, algo)
    assert len(faults) == len(parts) and not notices
    for part in parts:
        assert any(part in line and "eval_dataset" in line for line in faults)


def test_rows_of_several_chunks_and_of_a_selection_are_counted_from_the_first(tmp_path):
    rows = Dataset.from_list([chat("a")] * 5 + [chat(None)] + [chat("a")] * 4)
    rows.save_to_disk(tmp_path, num_shards=3)
    for dataset, row in ((load_from_disk(tmp_path), 5), (rows.select([1, 5, 2]), 1)):
        faults, notices = row_faults(dataset, need(), "train_dataset")
        assert not faults and len(notices) == 1 and f"as empty ones: 1 of {len(dataset)} (rows {row}," in notices[0]


def test_a_call_of_a_tool_needs_no_content():
    call = [{"type": "function", "function": {"name": "f"}}]
    assert found([chat("a"), chat("a", content=None, tool_calls=call)]) == ([], [])


def checked(rows, function=None, evaluation=None):
    config = RFModelConfig(str(TINYCHAT), formatting_func=function, training_args=RFSFTConfig())
    evaluation = Dataset.from_list(evaluation) if evaluation else None
    spec = Spec(expand([config]), has_eval=evaluation is not None)
    faults, notices = check(spec, [Run(1, "r")], Dataset.from_list(rows), evaluation, "cpu")
    return "\n".join(line for _, line in faults), "\n".join(line for _, line in notices)


def test_the_check_looks_at_all_rows_of_both_sets():
    faults, _ = checked([{"text": "a"}] * 3, evaluation=[{"text": "a"}, {"text": None}])
    assert "eval_dataset has rows without text: 1 of 2 (rows 1, counted from 0)" in faults


def unlike(row):
    return {"text": row["q"]} | ({"more": 1} if row["q"] == "c" else {})


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda row: {"text": row["q"].upper()}, "raised AttributeError"),
        (lambda row: row["q"].upper(), "raised AttributeError"),
        (lambda row: row["q"], "returns str for row 0 of train_dataset, but NoneType for row 1"),
        (lambda row: {"text": row["q"]}, "without text: 1 of 3 (rows 1,"),
        (unlike, "returns text for row 0 of train_dataset, but more, text for row 2"),
    ],
)
def test_a_function_that_does_not_do_for_every_row_is_told_with_the_row(function, said):
    faults, _ = checked([{"q": "a"}, {"q": None}, {"q": "c"}], function)
    assert said in faults and ("row" in faults)
    assert "\n" not in faults


def mapped_before(row):
    return {"text": row["question"]}


def buggy(row):
    return {"text": row["text"].no_such_method()}


def test_rows_that_were_formatted_beforehand_train_as_they_are_and_that_is_said():
    faults, notices = checked([{"text": "a"}] * 3, mapped_before)
    assert not faults and "mapped_before wants a column that train_dataset lacks" in notices
    faults, _ = checked([{"text": "a"}] * 3, buggy)
    assert "buggy raised AttributeError" in faults, "a bug is no sign of rows that are formatted already"
    with pytest.raises(AttributeError):
        formatted(Dataset.from_list([{"text": "a"}]), buggy, need())


def tokens(dataset, function=None):
    """What plain TRL makes of rows."""
    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(TINYCHAT),
        args=SFTConfig(report_to="none", use_cpu=True, bf16=False),
        train_dataset=dataset,
        processing_class=AutoTokenizer.from_pretrained(TINYCHAT),
        formatting_func=function,
    )
    return trainer.train_dataset.select_columns(["input_ids", "labels"]).to_list()


FOREIGN = {"input_ids": [1, 2], "labels": [-100, 2], "assistant_masks": [1, 0], "attention_mask": [1, 1]}


@pytest.mark.parametrize(
    ("row", "function"), [({"text": "a dog"}, None), (chat("a"), None), ({"q": "a dog"}, lambda row: row["q"])]
)
def test_foreign_tokens_beside_text_are_not_trained_on(row, function):
    dirty, clean = Dataset.from_list([row | FOREIGN] * 2), Dataset.from_list([row] * 2)
    made, left = formatted(dirty, function, need())
    assert tokens(made, left) == tokens(clean, function)
    faults, notices = checked([row | FOREIGN] * 2, function)
    assert not faults and "input_ids, labels, assistant_masks, attention_mask are left out" in notices


def test_rows_that_are_only_tokens_are_what_trl_makes_of_them():
    rows = Dataset.from_list([{"input_ids": [1, 2, 3], "labels": [-100, 2, 3]}] * 2)
    made, _ = formatted(rows, None, need())
    assert tokens(made) == tokens(rows) == rows.to_list()
    assert checked(rows.to_list()) == ("", "")


def test_what_a_function_returns_for_rows_that_fit_already_is_what_trains():
    made, left = formatted(Dataset.from_list([chat("a")] * 2), lambda row: {"text": "a dog"}, need())
    assert tokens(made, left) == tokens(Dataset.from_list([{"text": "a dog"}] * 2))


def test_text_beside_columns_that_win_over_it_is_refused():
    for row in (chat("a"), {"prompt": "a", "completion": "b"}):
        faults, _ = checked([row], lambda row: "text")
        assert 'have it return {"text": ...}' in faults
    with pytest.raises(UserError, match="dataset_text_field"):
        from rftui.training.rows import sample

        sample(Dataset.from_list([{"q": "a"}]), lambda row: "x", need(dataset_text_field="body"), "train_dataset")
