"""GLM 4.5 and later: `<tool_call>NAME` with pairs of `<arg_key>` and `<arg_value>`."""

from __future__ import annotations

import re

from fnroll.dialogue.parsers.tagged import Tags
from fnroll.dialogue.parsers.turn import TurnParser

GLM = TurnParser(
    formats=(
        Tags(
            openers=("<tool_call>",),
            closers=("</tool_call>",),
            call=re.compile(r"<tool_call>\s*+(?P<name>[^<\n]+)"),
            parameter=re.compile(r"<arg_key>(?P<name>[^<]*)</arg_key>\s*+<arg_value>"),
            damaged=re.compile(r"<arg_key>[^<]*(?:</arg_key>\s*+)?<arg_value>"),
            value_end="</arg_value>",
            follows=re.compile(r"\s*+(?:<arg_key>|</tool_call>|\Z)"),
            boundary=re.compile(
                r"(?P<fresh><tool_call>\s*+[^<\s]++\s*+<arg_key>)|</tool_call>(?=\s*+(?:<tool_call>|\Z))"
            ),
            end=re.compile(r"</tool_call>"),
        ),
    ),
    stops=("<|endoftext|>", "<|user|>", "<|observation|>"),
    heads=("<|assistant|>",),
)
"""Parser of GLM 4.5, 4.6, 4.7 and 5."""
