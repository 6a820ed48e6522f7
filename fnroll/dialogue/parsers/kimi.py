"""Kimi: sections of JSON calls (K2), and the tagged form XTML (K3)."""

from __future__ import annotations

import re

from fnroll.dialogue.parsers.scan import GAP, MAX_NAME, Scan
from fnroll.dialogue.parsers.section import Header, Sections
from fnroll.dialogue.parsers.tagged import Tags
from fnroll.dialogue.parsers.turn import THINK, TurnParser

_SEPARATOR = "<|tool_call_argument_begin|>"
_INDEX = re.compile(r":[0-9]+$")
_ARGUMENT, _CALL_END = r"<\|open\|>argument ", r"<\|close\|>call<\|sep\|>"
_NAME, _REST = rf'[^"]{{0,{MAX_NAME}}}+', rf"[^<]{{0,{MAX_NAME}}}+"
_CALL = rf'<\|open\|>call{GAP}(?<=\s)tool="(?P<name>{_NAME})"{_REST}<\|sep\|>'


def _read_header(scan: Scan, begin: int, end: int) -> Header:
    """The id of a call is `functions.NAME:INDEX`."""
    identity = scan.text[begin : end - len(_SEPARATOR)].strip()
    return Header(_INDEX.sub("", identity.removeprefix("functions.")), end, identity or None)


_XTML = Tags(
    openers=("<|open|>call ",),
    closers=("<|close|>call<|sep|>",),
    call=re.compile(_CALL),
    parameter=re.compile(
        rf'<\|open\|>argument{GAP}(?<=\s)key="(?P<name>{_NAME})"'
        rf'(?:{GAP}(?<=\s)type="(?P<kind>{_NAME})")?{_REST}<\|sep\|>'
    ),
    damaged=re.compile(rf"<\|open\|>argument[^<]{{0,{3 * MAX_NAME}}}+(?:<\|sep\|>)?"),
    closing=re.compile(rf"<\|close\|>argument<\|sep\|>(?={GAP}(?:{_ARGUMENT}|{_CALL_END}|\Z))"),
    boundary=re.compile(
        rf"(?P<fresh>{_CALL.replace('?P<name>', '?:')}{GAP}(?:{_ARGUMENT}|{_CALL_END}))"
        rf"|{_CALL_END}(?={GAP}(?:<\|open\|>call |<\|close\|>tools<\|sep\|>|\Z))"
    ),
    end=re.compile(_CALL_END),
    is_escaped=True,
)

KIMI = TurnParser(
    formats=(
        Sections(
            begin="<|tool_calls_section_begin|>",
            end="<|tool_calls_section_end|>",
            call_begin="<|tool_call_begin|>",
            call_end="<|tool_call_end|>",
            separator=_SEPARATOR,
            read_header=_read_header,
        ),
        _XTML,
    ),
    stops=("<|im_end|>", "<|end_of_msg|>"),
    heads=("<|im_assistant|>", '<|open|>message role="assistant"<|sep|>'),
    thoughts=(THINK, ("<|open|>think<|sep|>", "<|close|>think<|sep|>")),
    interrupts=("<|open|>response<|sep|>",),
    ignored=(
        '<|open|>message role="assistant"<|sep|>',
        "<|close|>message<|sep|>",
        "<|open|>response<|sep|>",
        "<|close|>response<|sep|>",
        "<|open|>tools<|sep|>",
        "<|close|>tools<|sep|>",
    ),
)
"""Parser of Kimi K2, K2.6 and K3."""
