"""Make tinychat: a 1.3 M-parameter Llama that talks a little English, pretrained in minutes on a CPU.

    pip install chitchat-dataset==0.9.0
    python pretrain.py [--out DIR] [--steps N]

The data are the human-to-human conversations of the BYU Chit Chat Challenge (MIT). Both speakers' words count
in the loss, and the topic that a conversation was given, where there was one, stands as its system message.
"""

import argparse
import json
import math
import random
import sys
import time
from itertools import cycle
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCAB = 4096
CONTEXT = 256
BATCH = 8
PEAK_LR = 3e-3
WARMUP = 50
SEED = 42
PAD, START, END = "<|pad|>", "<|im_start|>", "<|im_end|>"

# Contents are trimmed so that "assistant\n" always ends on a token boundary: then a prompt's tokens are a
# prefix of the whole conversation's, which is what completion-only and assistant-only losses rely on.
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\n' -}}
{%- if message['role'] == 'assistant' -%}
{%- generation -%}{{- message['content'] | trim + '<|im_end|>' -}}{%- endgeneration -%}
{%- else -%}
{{- message['content'] | trim + '<|im_end|>' -}}
{%- endif -%}
{{- '\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
"""


def conversations() -> list[list[dict]]:
    """The data set's conversations of two turns or more, as chat messages; who speaks first is the user."""
    try:
        import chitchat_dataset
    except ImportError:
        print("pretrain.py needs the conversations: pip install chitchat-dataset==0.9.0", file=sys.stderr)
        sys.exit(2)
    path = Path(chitchat_dataset.__file__).with_name("dataset.json")
    chats = []
    for record in json.loads(path.read_text(encoding="utf-8")).values():
        turns = [" ".join(part["text"].strip() for part in turn).strip() for turn in record["messages"]]
        turns = [turn for turn in turns if turn]
        if len(turns) < 2:
            continue
        chat = [{"role": "system", "content": record["prompt"]}] if record.get("prompt") else []
        chat += [{"role": role, "content": turn} for role, turn in zip(cycle(("user", "assistant")), turns)]
        chats.append(chat)
    return chats


def train_tokenizer(chats: list[list[dict]]) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of the text of `chats`: it can spell any string."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator((m["content"] for chat in chats for m in chat), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token=PAD,
        bos_token=START,
        eos_token=END,
        model_max_length=1024,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


def pack(tokenizer: PreTrainedTokenizerFast, chats: list[list[dict]]) -> torch.Tensor:
    """All conversations end to end, cut into rows of CONTEXT tokens."""
    texts = [tokenizer.apply_chat_template(chat, tokenize=False) for chat in chats]
    ids = [token for row in tokenizer(texts, add_special_tokens=False)["input_ids"] for token in row]
    rows = len(ids) // CONTEXT
    return torch.tensor(ids[: rows * CONTEXT]).view(rows, CONTEXT)


def new_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """An untrained model of tinychat's shape."""
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return LlamaForCausalLM(config)


def learning_rate(step: int, steps: int) -> float:
    """Linear warm-up, then a cosine down to a hundredth of the peak."""
    if step < WARMUP:
        return PEAK_LR * (step + 1) / WARMUP
    done = (step - WARMUP) / max(1, steps - WARMUP)
    return PEAK_LR * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done)))


@torch.no_grad()
def mean_loss(model: LlamaForCausalLM, rows: torch.Tensor) -> float:
    """The model's mean loss per token over `rows`."""
    model.eval()
    losses = [model(input_ids=part, labels=part).loss * len(part) for part in rows.split(BATCH)]
    model.train()
    return (sum(losses) / len(rows)).item()


def train(model: LlamaForCausalLM, rows: torch.Tensor, held_out: torch.Tensor, steps: int) -> None:
    """Train `model` for `steps` steps on shuffled `rows`, printing its loss on `held_out` now and then."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LR, betas=(0.9, 0.95), weight_decay=0.1)
    order, start = [], time.monotonic()
    for step in range(steps):
        if len(order) < BATCH:
            order = torch.randperm(len(rows)).tolist()
        batch = rows[[order.pop() for _ in range(BATCH)]]
        optimizer.param_groups[0]["lr"] = learning_rate(step, steps)
        model(input_ids=batch, labels=batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % 100 == 0 or step + 1 == steps:
            loss, seconds = mean_loss(model, held_out), time.monotonic() - start
            print(f"step {step + 1}/{steps}  eval_loss {loss:.3f}  {seconds:.0f} s", flush=True)


def main() -> None:
    """Train the tokenizer and the model and save both, the weights as bf16."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent)
    parser.add_argument("--steps", type=int, default=1200)
    args = parser.parse_args()

    torch.manual_seed(SEED)
    chats = conversations()
    random.Random(SEED).shuffle(chats)
    held_out, chats = chats[:60], chats[60:]
    tokenizer = train_tokenizer(chats)
    rows, eval_rows = pack(tokenizer, chats), pack(tokenizer, held_out)
    model = new_model(tokenizer)
    print(f"{model.num_parameters():,} parameters, {rows.numel():,} tokens, {eval_rows.numel():,} held out")
    train(model, rows, eval_rows, args.steps)
    # A model this small says its favourite sentence again and again when it always picks the likeliest token.
    model.generation_config.repetition_penalty = 1.2
    model.to(torch.bfloat16).save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)


if __name__ == "__main__":
    main()
