"""Small real tokenizers: byte-level BPE, one with ambiguous merges, a Llama-like one, and bytes alone."""

import functools
from typing import Any

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

LINES = [
    "What is the weather in Paris today? It is 21 degrees and sunny.",
    "hello hello hello world, the calculator says 12 + 30 = 42",
    '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>',
    "user\nassistant\nsystem\ntool\nYou are a helpful assistant.\n\n",
] * 4
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|end|>", "<s>", "</s>", "[INST]", "[/INST]"]
MARKUP = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]


@functools.cache
def _trained() -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(LINES, trainer)
    return tokenizer.to_str()


def init_bpe(template: str | None = None, *, strips: bool = False) -> Any:
    """Return a byte-level BPE tokenizer with ChatML-like control tokens.

    Args:
        template: its chat template.
        strips: control tokens swallow the spaces and line ends beside them.
    """
    tokenizer = Tokenizer.from_str(_trained())
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, lstrip=strips, rstrip=strips) for text in SPECIAL]
    )
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKUP])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        chat_template=template,
    )


def init_llama(template: str | None = None) -> Any:
    """Return a tokenizer that puts a space (`▁`) before every text, and BOS unless asked not to."""
    alphabet = sorted({char for line in LINES for char in line.replace(" ", "▁")})
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *alphabet, "he", "ll", "▁he", "▁t", "in"]
    merges = [("h", "e"), ("l", "l"), ("▁", "he"), ("▁", "t"), ("i", "n")]
    vocabulary = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    strip = decoders.Strip(content=" ", left=1)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), strip]
    )
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    bos = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", chat_template=template
    )


def init_bytes(template: str | None = None) -> Any:
    """Return a slow tokenizer whose tokens are bytes, so that an emoji is four of them."""
    return ByT5Tokenizer(
        extra_ids=0, additional_special_tokens=["<|im_start|>", "<|im_end|>"], chat_template=template
    )


def init_ambiguous(template: str | None = None) -> Any:
    """Return a tokenizer in which several id sequences spell "hello" and one of them is canonical."""
    pieces = [
        "h",
        "e",
        "l",
        "o",
        "he",
        "ll",
        "hell",
        "hello",
        *"abcdefg ijkmnpqrstuvwxyz\n0123456789?",
        "[unk]",
    ]
    vocabulary = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o")]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="[unk]"))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<|im_start|>", "<|im_end|>")])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", chat_template=template)


class ForcedBos:
    """A tokenizer that puts BOS before every text, also when asked not to."""

    def __init__(self, tokenizer: Any, bos: int) -> None:
        self._tokenizer, self._bos = tokenizer, bos

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def encode(self, text: str, **options: Any) -> list[int]:
        return [self._bos, *self._tokenizer.encode(text, **options)]
