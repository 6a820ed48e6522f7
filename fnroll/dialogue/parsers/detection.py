"""A guess at the parser of a model, from its chat template."""

from __future__ import annotations

# From the most particular marker to the most common one: several families share `<tool_call>`.
_MARKERS = (
    ("gpt_oss", ("<|channel|>",)),
    ("gemma4", ("<|tool_call>",)),
    ("kimi", ("<|tool_call_begin|>", "<|open|>")),
    ("deepseek", ("<｜tool▁call", "｜DSML｜")),
    ("mistral", ("[TOOL_CALLS]",)),
    ("glm", ("<arg_key>",)),
    ("qwen3_coder", ("<function=",)),
    ("hermes", ("<tool_call>",)),
    (
        "llama",
        ("<|python_tag|>", "<|python_start|>", "<|start_header_id|>ipython", "<|header_start|>ipython"),
    ),
)


def detect_parser(chat_template: str) -> str | None:
    """The name of the built-in parser that fits a chat template, or `None` if no marker tells.

    Args:
      chat_template: the template's text, as in a tokenizer's `chat_template`.
    """
    for name, markers in _MARKERS:
        if any(marker in chat_template for marker in markers):
            return name
    return None
