"""Tagged calls: `<function=NAME>` with one `<parameter=KEY>` per argument (Qwen3-Coder, Qwen 3.5, ...)."""

from __future__ import annotations

import re

from fnroll.dialogue.parsers.scan import GAP, MAX_NAME
from fnroll.dialogue.parsers.tagged import Tags
from fnroll.dialogue.parsers.turn import TurnParser

_NAME = rf"[^<>\n]{{1,{MAX_NAME}}}+"
_BODY = rf"{GAP}(?:<parameter=|</function>)"
_OVER = rf"(?={GAP}(?:</tool_call>|<tool_call>|<function=|\Z))"
_FOLLOWS = rf"(?={GAP}(?:<parameter=|</function>|</tool_call>|<tool_call>|\Z))"

QWEN3_CODER = TurnParser(
    formats=(
        Tags(
            openers=("<tool_call>", "<function="),
            closers=("</tool_call>",),
            call=re.compile(rf"(?:<tool_call>{GAP})?<function=(?P<name>{_NAME})>"),
            # Models of this family leave out the outer tag at times, but they also write about the inner one.
            loose=re.compile(rf"<function={_NAME}>{_BODY}"),
            parameter=re.compile(rf"<parameter=(?P<name>{_NAME})>"),
            damaged=re.compile(rf"<parameter(?:=(?:{_NAME})?)?"),
            closing=re.compile(rf"</parameter>{_FOLLOWS}"),
            line_closing=re.compile(rf"</parameter>(?:(?<=\n</parameter>)|(?=\n)){_FOLLOWS}"),
            boundary=re.compile(rf"(?P<fresh><tool_call>{GAP}<function=)|</function>{_OVER}"),
            line_boundary=re.compile(
                rf"(?P<fresh>\n(?:<tool_call>{GAP})?<function={_NAME}>{_BODY})|\n<parameter={_NAME}>"
                rf"|\n</function>{_OVER}|\n</tool_call>(?={GAP}(?:<tool_call>|\Z))"
            ),
            end=re.compile(rf"</function>(?:{GAP}</tool_call>)?|</tool_call>"),
        ),
    ),
    stops=("<|im_end|>", "<|endoftext|>"),
    heads=("<|im_start|>",),
)
"""Parser of Qwen3-Coder, Qwen3-Coder-Next and Qwen 3.5 and later."""
