"""A toy model that talks in tool calls, with its tokenizer: for tests of many turns that need no training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from fnroll.core.model import Chunk
from fnroll.core.output import ModelOutput
from fnroll.core.types import Cache
from fnroll.models.base import Model
from fnroll.models.toy import toy_model

# ChatML, append-only: adjacent tool outputs form one group.
CHATTER_TEMPLATE = (
    "{% for m in messages %}"
    "{% set first = loop.first or messages[loop.index0 - 1].role != m.role or m.role != 'tool' %}"
    "{% set last = loop.last or messages[loop.index0 + 1].role != m.role or m.role != 'tool' %}"
    "{% if first %}<|im_start|>{{ m.role }}\n{% endif %}{{ m.content }}"
    "{% if last %}<|im_end|>{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_CONTROL = ("<|im_start|>", "<|im_end|>", "<|eom|>")
# Whole calls are single tokens, so that a random model makes them: good, bad, unknown, broken.
CHATTER_CALLS = (
    '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>',
    '<tool_call>{"name": "add", "arguments": {"a": 40, "b": 2}}</tool_call>',
    '<tool_call>{"name": "repeat", "arguments": {"text": "ab", "times": 3}}</tool_call>',
    '<tool_call>{"name": "fail", "arguments": {}}</tool_call>',
    '<tool_call>{"name": "add", "arguments": {"a": "x"}}</tool_call>',
    '<tool_call>{"name": "nothing", "arguments": {}}</tool_call>',
    '<tool_call>{"name": "add", "arguments": {"a": 1,}</tool_call>',
)


def chatter_tokenizer() -> Any:
    """Return a tokenizer of single bytes, with control tokens and whole tool calls as tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in _CONTROL])
    tokenizer.add_tokens([AddedToken(call, normalized=False) for call in CHATTER_CALLS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        chat_template=CHATTER_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def chatter_model(*, calls: float = 7.0, stops: float = 7.0, dtype: torch.dtype = torch.float64) -> Model:
    """Return the toy model with a bias towards ending turns and calling tools.

    Args:
      calls: added to the logits of tool calls, in nats.
      stops: added to the logits of `<|im_end|>` and `<|eom|>`.
      dtype: of cache and logits.
    """
    tokenizer = chatter_tokenizer()
    vocab_size = len(tokenizer)
    stop_ids = tuple(tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|eom|>"]))
    bias = torch.zeros(vocab_size, dtype=dtype)
    bias[vocab_size - len(CHATTER_CALLS) :] = calls
    bias[list(stop_ids)] = stops
    toy = toy_model(vocab_size, sharpness=0.02, stop_ids=stop_ids, dtype=dtype)

    def fn(params: tuple[Tensor, Tensor], chunk: Chunk, cache: Cache) -> ModelOutput:
        output = toy.fn(params[0], chunk, cache)
        return replace(output, logits=output.logits + params[1])

    return replace(toy, fn=fn, params=(toy.params, bias), name="chatter")
