"""GLM 4.5 and later: `<tool_call>NAME` with pairs of `<arg_key>` and `<arg_value>`."""

from __future__ import annotations

import re

from fnroll.dialogue.parsers.scan import GAP, MAX_NAME
from fnroll.dialogue.parsers.tagged import Tags
from fnroll.dialogue.parsers.turn import TurnParser

_KEY = rf"[^<]{{0,{MAX_NAME}}}+"

GLM = TurnParser(
    formats=(
        Tags(
            openers=("<tool_call>",),
            closers=("</tool_call>",),
            call=re.compile(rf"<tool_call>{GAP}(?P<name>[^<\n]{{1,{MAX_NAME}}}+)"),
            parameter=re.compile(rf"<arg_key>(?P<name>{_KEY})</arg_key>{GAP}<arg_value>"),
            damaged=re.compile(rf"<arg_key>{_KEY}(?:</arg_key>{GAP})?<arg_value>"),
            closing=re.compile(rf"</arg_value>(?={GAP}(?:<arg_key>|</tool_call>|\Z))"),
            boundary=re.compile(
                rf"(?P<fresh><tool_call>{GAP}[^<\s]{{1,{MAX_NAME}}}+{GAP}<arg_key>)"
                rf"|</tool_call>(?={GAP}(?:<tool_call>|\Z))"
            ),
            end=re.compile(r"</tool_call>"),
        ),
    ),
    stops=("<|endoftext|>", "<|user|>", "<|observation|>"),
    heads=("<|assistant|>",),
)
"""Parser of GLM 4.5, 4.6, 4.7 and 5."""
