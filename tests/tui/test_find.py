"""Knobs found by typing."""

import pytest
from fakes import FIELDS
from hypothesis import given
from hypothesis import strategies as st

from rftui.messages import Field
from rftui.tui.find import matches

ALL = [*FIELDS, Field("training_args.max_grad_norm", "float", 1.0, help="Gradient clipping.")]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("lr", "training_args.learning_rate"),
        ("r", "peft_config.r"),
        ("weight", "training_args.weight_decay"),
        ("decay", "training_args.weight_decay"),
        ("beta1", "training_args.adam_beta1"),
        ("exponential decay", "training_args.adam_beta1"),
        ("optim", "training_args.optim"),
        ("batch size", "training_args.per_device_train_batch_size"),
        ("clipping", "training_args.max_grad_norm"),
        ("mgn", "training_args.max_grad_norm"),
        ("training_args.seed", "training_args.seed"),
        ("HUB", "model_name"),
    ],
)
def test_the_best_match(text, first):
    assert matches(text, ALL)[0].name == first


@pytest.mark.parametrize("text", ["", "   ", "qqq", "lr qqq"])
def test_nothing_matches(text):
    assert matches(text, ALL) == []


def test_few_are_shown():
    assert len(matches("e", ALL)) == 5 and len(matches("e", ALL, 2)) == 2


@given(st.text(max_size=8), st.integers(0, 20))
def test_any_text_is_looked_for(text, most):
    found = matches(text, ALL, most)
    assert len(found) <= most and all(found.count(field) == 1 for field in found)


@given(st.sampled_from(ALL))
def test_each_knob_is_found_by_its_name(field):
    assert matches(field.name, ALL)[0] is field
