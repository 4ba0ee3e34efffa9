"""Several values of a knob: what is typed, and the clones they make."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_validate import BY_NAME, FIELDS, LR, STEPS, TARGETS, R, parent

from rftui.config.sweeps import MOST, combinations, sweep_faults, values
from rftui.config.validate import clone_faults, value_fault
from rftui.errors import UserError

SCHED, PACKING = "training_args.lr_scheduler_type", "training_args.packing"


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        (LR, "1e-4", [1e-4]),
        (LR, "1e-4,2e-4, 5e-4", [1e-4, 2e-4, 5e-4]),
        (LR, "1e-4,0.0001,1e-4,", [1e-4]),
        (R, "8,16", [8, 16]),
        (SCHED, "linear,cosine", ["linear", "cosine"]),
        (PACKING, "true,no", [True, False]),
        ("training_args.max_length", "512,none", [512, None]),
        ("training_args.max_length", "", [None]),
        ("peft_config.init_lora_weights", "true,gaussian", [True, "gaussian"]),
        (TARGETS, "q_proj,v_proj", [["q_proj", "v_proj"]]),
        (TARGETS, "q_proj,v_proj; all-linear", [["q_proj", "v_proj"], "all-linear"]),
        ("model_name", "a,b; c", ["a,b", "c"]),
    ],
)
def test_values(name, text, found):
    assert values(BY_NAME[name], text) == found


@pytest.mark.parametrize(
    ("name", "text", "at_fault"),
    [(LR, "1e-4,fast,2e-4", "'fast'"), (LR, "1e-4,0", "0"), (R, "8,1.5", "'1.5'"), (SCHED, "linear,cosin", "'cosin'")]
    + [(PACKING, "true,maybe", "'maybe'"), (LR, "", "value"), (LR, ",", "','")],
)
def test_a_fault_names_the_value(name, text, at_fault):
    with pytest.raises(UserError, match=at_fault) as fault:
        values(BY_NAME[name], text)
    assert str(fault.value).startswith(name) and "\n" not in str(fault.value)


@settings(deadline=None)
@given(st.sampled_from(FIELDS), st.text(alphabet="1e-4,;. qnoetrul_", max_size=16))
def test_what_is_typed_gives_distinct_values_of_the_knob_or_a_fault(field, text):
    try:
        found = values(field, text)
    except UserError as fault:
        assert str(fault).startswith(field.name)
    else:
        assert found and all(value_fault(field, value) is None for value in found)
        assert all(repr(a) != repr(b) for n, a in enumerate(found) for b in found[:n])


@given(
    st.dictionaries(st.sampled_from("abc"), st.integers(), max_size=3),
    st.dictionaries(st.sampled_from("abcd"), st.lists(st.integers(), min_size=1, max_size=4, unique=True)),
)
def test_each_combination_is_made_once(changes, sweep):
    count = math.prod(map(len, sweep.values()))
    if count > MOST:
        with pytest.raises(UserError, match=f"{count} clones"):
            combinations(changes, sweep)
        return
    clones = combinations(changes, sweep)
    assert len(clones) == count == len({tuple(sorted(clone.items())) for clone in clones})
    for clone in clones:
        assert set(clone) == {*changes, *sweep}
        assert all(clone[name] in sweep[name] if name in sweep else clone[name] == changes[name] for name in clone)


def test_a_knob_without_a_value_is_a_fault():
    with pytest.raises(UserError, match="no value"):
        combinations({}, {LR: []})


@pytest.mark.parametrize(
    ("sweep", "warm", "name", "reason"),
    [
        ({R: [4, 16]}, True, R, "(with r 4)"),
        ({R: [2, 4, 16], LR: [1e-4, 2e-4]}, True, R, "(with r 2 or 4)"),
        ({LR: [1e-3, 2e-3]}, False, "", "(with lr 1e-3)"),
        ({TARGETS: [["q_proj"], "all-linear"]}, True, TARGETS, "(with targets q_proj)"),
        ({LR: [n / 1e5 for n in range(1, 40)], R: [8, 16]}, True, "", "39 x 2 values make 78 clones"),
    ],
)
def test_a_fault_of_some_clones_names_their_values(sweep, warm, name, reason):
    faults = sweep_faults(parent(), {}, sweep, warm, FIELDS)
    assert list(faults) == [name] and reason in faults[name], faults


def test_a_fault_of_all_clones_names_no_values():
    faults = sweep_faults(parent(), {R: 4}, {LR: [1e-4, 2e-4]}, True, FIELDS)
    assert "with" not in faults[R]


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from([LR, R, STEPS]), st.lists(st.integers(-1, 99), min_size=1, max_size=3)),
    st.booleans(),
)
def test_a_sweep_is_sound_where_all_its_clones_are(sweep, warm):
    faults = sweep_faults(parent(), {}, sweep, warm, FIELDS)
    assert bool(faults) == any(clone_faults(parent(), clone, warm, FIELDS) for clone in combinations({}, sweep))
