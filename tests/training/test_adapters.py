"""Warm starts compute what the parent computed, or are refused."""

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from rftui.errors import UserError
from rftui.training.adapters import warm
from rftui.training.base_models import BaseModels, share

SMALL = LlamaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    tie_word_embeddings=True,
)
TOKENS = torch.arange(24).reshape(2, 12)


def base():
    torch.manual_seed(0)
    return LlamaForCausalLM(SMALL).eval()


@pytest.fixture
def parent(tmp_path):
    """An adapter of rank 4 with weights as if it had trained, saved; and the logits it gives."""
    model = get_peft_model(base(), LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"]))
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data.normal_(0, 0.3)
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        return tmp_path, model.eval()(input_ids=TOKENS).logits


@pytest.mark.parametrize(
    ("r", "alpha", "targets", "rslora"),
    [
        (4, 8, ["q_proj", "v_proj"], False),
        (8, 8, ["q_proj", "v_proj"], False),
        (16, 64, ["q_proj", "v_proj"], True),
        (8, 16, ["q_proj", "v_proj", "o_proj", "up_proj"], False),
    ],
)
def test_a_larger_adapter_starts_as_its_parent(parent, r, alpha, targets, rslora):
    start, logits = parent
    config = LoraConfig(r=r, lora_alpha=alpha, target_modules=targets, use_rslora=rslora)
    with torch.no_grad():
        model = get_peft_model(base(), config)
        warm(model, start)
        ours = model.eval()(input_ids=TOKENS).logits
        plain = PeftModel.from_pretrained(base(), start).eval()(input_ids=TOKENS).logits
    assert torch.equal(plain, logits)
    torch.testing.assert_close(ours, logits, atol=2e-6, rtol=0)
    if r == 4:
        assert torch.equal(ours, logits)


@pytest.mark.parametrize(("r", "targets"), [(2, ["q_proj", "v_proj"]), (4, ["q_proj"])])
def test_a_smaller_adapter_is_refused(parent, r, targets):
    start, _ = parent
    with pytest.raises(UserError, match="warm start"):
        warm(get_peft_model(base(), LoraConfig(r=r, lora_alpha=8, target_modules=targets)), start)


def test_shared_models_have_their_own_modules_over_the_same_storage():
    one = base()
    two, three = share(one), share(one)
    assert two is not three and two.config is not three.config
    assert all(a.data_ptr() == b.data_ptr() for a, b in zip(two.parameters(), three.parameters(), strict=True))
    assert two.lm_head.weight.data_ptr() == two.model.embed_tokens.weight.data_ptr()
    before = [parameter.clone() for parameter in three.parameters()]
    lora = get_peft_model(two, LoraConfig(r=2, target_modules=["q_proj"]))
    optimizer = torch.optim.SGD([p for p in lora.parameters() if p.requires_grad], lr=1.0)
    lora(input_ids=TOKENS, labels=TOKENS).loss.backward()
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, three.parameters(), strict=True))


def config(**changes):
    return {
        "model_name": "m",
        "model_kwargs": {},
        "peft_config": {"r": 4},
        "training_args": {"learning_rate": 1},
    } | changes


class Tokenizer:
    pass


def pointers(models, given, create):
    model, _ = models.get(given, create, 0, fit=id(create))
    return [parameter.data_ptr() for parameter in model.parameters()]


def test_runs_share_a_base_exactly_if_the_users_function_read_the_same_values():
    models = BaseModels(torch.device("cpu"))
    made = []

    def by_name(given):
        made.append(given["model_name"])
        return base(), Tokenizer()

    def by_everything(given):
        made.append(dict(given.items())["model_name"])
        return base(), Tokenizer()

    first = pointers(models, config(), by_name)
    assert pointers(models, config(peft_config={"r": 16}, training_args={}), by_name) == first and len(made) == 1
    assert pointers(models, config(model_name="other"), by_name) != first
    assert pointers(models, config(peft_config=None), by_name) != first, "a full fine-tune has a base of its own"
    assert pointers(models, config(peft_config={"r": 4, "init_lora_weights": "pissa"}), by_name) != first
    all_of = pointers(models, config(), by_everything)
    assert all_of != first
    assert pointers(models, config(), by_everything) == all_of
    assert pointers(models, config(training_args={"learning_rate": 2}), by_everything) != all_of


def test_what_a_function_takes_out_of_its_config_still_tells_bases_apart():
    models = BaseModels(torch.device("cpu"))

    def pops(given):
        given["model_kwargs"].pop("dtype", None)
        return base(), Tokenizer()

    first = pointers(models, config(model_kwargs={"dtype": "bfloat16"}), pops)
    assert pointers(models, config(), pops) != first
    assert pointers(models, config(model_kwargs={"dtype": "bfloat16"}), pops) == first


@pytest.mark.parametrize("peft", [None, {"r": 4}])
def test_a_model_that_was_handed_out_is_refused_for_another_run(peft):
    """Out of a cache that no copy of the function could have of its own."""
    models, cached = BaseModels(torch.device("cpu")), base()

    def hands_out(given):
        given.items()
        return cached, Tokenizer()

    models.get(config(peft_config=peft), hands_out, 0)
    with pytest.raises(UserError, match="create_model_fn returned a model that another run"):
        models.get(config(peft_config=peft, training_args={"learning_rate": 2}), hands_out, 0)
    twin = LlamaForCausalLM(cached.config)
    twin.model = cached.model
    with pytest.raises(UserError, match="create_model_fn returned a model that another run"):
        models.get(config(peft_config=None), lambda given: (twin, Tokenizer()), 0)


def test_a_tokenizer_that_is_handed_out_twice_is_each_runs_own():
    models, tokenizer = BaseModels(torch.device("cpu")), Tokenizer()
    given = [models.get(config(peft_config=None), lambda given: (base(), tokenizer), 0)[1] for _ in range(2)]
    assert len({id(tokenizer), *map(id, given)}) == 3


@pytest.mark.parametrize(
    "touch",
    [
        lambda model: model.model.norm.weight.data.mul_(2),
        lambda model: model.requires_grad_(False),
        lambda model: model.model.norm.register_forward_hook(lambda *_: None),
        lambda model: setattr(model.model, "norm", torch.nn.Identity()),
    ],
    ids=["weights", "requires_grad", "hooks", "modules"],
)
def test_a_base_that_was_touched_is_not_shared(touch):
    models, made = BaseModels(torch.device("cpu")), []

    def create(given):
        made.append(base())
        return made[-1], Tokenizer()

    first = pointers(models, config(), create)
    assert pointers(models, config(), create) == first and len(made) == 1
    touch(made[0])
    assert pointers(models, config(), create) != first and len(made) == 2


def test_a_model_with_hooks_of_the_users_is_not_shared():
    """Copies of it would share the functions, and what they keep."""
    models = BaseModels(torch.device("cpu"))

    def create(given):
        model = base()
        model.model.register_forward_hook(lambda *_: None)
        return model, Tokenizer()

    assert pointers(models, config(), create) != pointers(models, config(), create)
