"""Tokenizer of the embedded model: a few hundred byte pairs, markup and template in the style of Qwen3."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKUP = (
    "<tools>", "</tools>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>",
    "<think>", "</think>",
)  # fmt: skip
VOCAB_SIZE = 512

# Digits stand alone, so that a number is copied digit by digit; a line end stays with the word before it.
_PIECES = Regex(r" ?[A-Za-z_]+\n?|[0-9]|[^A-Za-z_0-9]+")

# Append-only: nothing that was written changes when messages follow. Tools are one line each, since every
# token of the prompt is paid for in each trajectory.
TEMPLATE = """{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{ messages[0].content + '\\n' }}{% endif %}
{{- '<tools>\\n' }}
{%- for tool in tools %}
{{- tool.function.name + '(' + tool.function.parameters.properties | join(', ') + ')\\n' }}
{%- endfor %}
{{- '</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}
{{- '\\n' if not loop.first and loop.previtem.role == 'tool' else '<|im_start|>user\\n' }}
{{- '<tool_response>\\n' + m.content + '\\n</tool_response>' }}
{%- if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
{%- elif m.role == 'assistant' %}
{{- '<|im_start|>assistant\\n' + (m.content or '') }}
{%- for call in m.tool_calls or [] %}
{%- if call.function %}{% set call = call.function %}{% endif %}
{%- if not loop.first or m.content %}{{ '\\n' }}{% endif %}
{{- '<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}
{{- call.arguments if call.arguments is string else call.arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif m.role != 'system' or not loop.first %}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""


def train_tokenizer(texts: Iterable[str]) -> Any:
    """Return a tokenizer whose merges are learned from `texts`; every other text is spelled in bytes."""
    control = re.compile("|".join(map(re.escape, (*SPECIAL, *MARKUP))))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(_PIECES, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        (piece for text in texts for piece in control.split(text)),
        trainers.BpeTrainer(
            vocab_size=VOCAB_SIZE - len(MARKUP),
            special_tokens=[AddedToken(token, special=True) for token in SPECIAL],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in MARKUP])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
