"""Tagged calls: `<function=NAME>` with one `<parameter=KEY>` per argument (Qwen3-Coder, Qwen 3.5, ...)."""

from __future__ import annotations

import re

from fnroll.dialogue.parsers.tagged import Tags
from fnroll.dialogue.parsers.turn import TurnParser

_OVER = r"\s*+(?:</tool_call>|<tool_call>|<function=|\Z)"

QWEN3_CODER = TurnParser(
    formats=(
        Tags(
            openers=("<tool_call>", "<function="),
            closers=("</tool_call>",),
            call=re.compile(r"(?:<tool_call>\s*+)?<function=(?P<name>[^<>\n]+)>"),
            # Models of this family leave out the outer tag at times, but they also write about the inner one.
            loose=re.compile(r"<function=[^<>\n]+>\s*+(?:<parameter=|</function>)"),
            parameter=re.compile(r"<parameter=(?P<name>[^<>\n]+)>"),
            damaged=re.compile(r"<parameter(?:=[^<>\n]*)?"),
            value_end="</parameter>",
            follows=re.compile(r"\s*+(?:<parameter=|</function>|</tool_call>|<tool_call>|\Z)"),
            boundary=re.compile(r"(?P<fresh><tool_call>\s*+<function=)|</function>(?=" + _OVER + ")"),
            line_boundary=re.compile(
                r"(?P<fresh>\n(?:<tool_call>\s*+)?<function=[^<>\n]+>\s*+(?:<parameter=|</function>))"
                r"|\n<parameter=[^<>\n]+>|\n</function>(?="
                + _OVER
                + r")|\n</tool_call>(?=\s*+(?:<tool_call>|\Z))"
            ),
            end=re.compile(r"</function>(?:\s*+</tool_call>)?|</tool_call>"),
        ),
    ),
    stops=("<|im_end|>", "<|endoftext|>"),
    heads=("<|im_start|>",),
)
"""Parser of Qwen3-Coder, Qwen3-Coder-Next and Qwen 3.5 and later."""
