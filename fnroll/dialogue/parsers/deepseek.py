"""DeepSeek: sections of JSON calls (V3, V3.1), and the tagged form DSML (V3.2 and later)."""

from __future__ import annotations

import re

from fnroll.dialogue.parsers.scan import GAP, MAX_NAME, Scan
from fnroll.dialogue.parsers.section import Header, Sections
from fnroll.dialogue.parsers.tagged import Tags
from fnroll.dialogue.parsers.turn import TurnParser

_SEPARATOR = "<｜tool▁sep｜>"
_FENCED_NAME = re.compile(rf"{GAP}(?P<name>[^\n{{]{{1,{MAX_NAME}}}+)\n{GAP}(?:```(?:json)?)?")


def _read_header(scan: Scan, begin: int, end: int) -> Header:
    """V3 writes `function`, the separator, the name and a fenced block; V3.1 the name and the separator."""
    kind = scan.text[begin : end - len(_SEPARATOR)].strip()
    fenced = scan.match(_FENCED_NAME, end) if kind == "function" else None
    return Header(fenced["name"].strip(), fenced.end()) if fenced else Header(kind, end)


def _skip_fence(scan: Scan, at: int) -> int:
    after = scan.skip_space(at)
    return after + 3 if scan.is_at("```", after) else at


def _dsml(gap: str, groups: str) -> Tags:
    """DSML with `gap` after the marker; `groups` are the names of the tag around the calls."""
    opening, closing = rf"<｜DSML｜{gap}", rf"</｜DSML｜{gap}"
    after_call = rf"{GAP}(?:{opening}invoke |{closing}(?:{groups})>|\Z)"
    body = rf"{GAP}(?:{opening}parameter |{closing}invoke>)"
    invoke = rf"{opening}invoke\s{{1,{MAX_NAME}}}+name="
    name = rf'[^"<>]{{0,{MAX_NAME}}}+'
    return Tags(
        openers=(f"<｜DSML｜{gap}invoke",),
        closers=(f"</｜DSML｜{gap}invoke>",),
        call=re.compile(rf'{invoke}"(?P<name>{name})"{GAP}(?P<empty>/)?>'),
        parameter=re.compile(
            rf'{opening}parameter{GAP}(?<=\s)name="(?P<name>{name})"'
            rf'(?:{GAP}(?<=\s)string="(?P<kind>true|false)")?{GAP}>'
        ),
        damaged=re.compile(rf"{opening}parameter[^<>]{{0,{3 * MAX_NAME}}}+>?"),
        closing=re.compile(rf"{closing}parameter>(?={body}|{GAP}\Z)"),
        boundary=re.compile(rf'(?P<fresh>{invoke}"{name}"{GAP}>{body})|{closing}invoke>(?={after_call})'),
        end=re.compile(rf"{closing}invoke>"),
    )


_GROUPS = ("function_calls", "tool_calls", " calls")

DEEPSEEK = TurnParser(
    formats=(
        Sections(
            begin="<｜tool▁calls▁begin｜>",
            end="<｜tool▁calls▁end｜>",
            call_begin="<｜tool▁call▁begin｜>",
            call_end="<｜tool▁call▁end｜>",
            separator=_SEPARATOR,
            read_header=_read_header,
            skip_trailer=_skip_fence,
        ),
        _dsml("", "function_calls|tool_calls"),
        _dsml(" ", "calls"),
    ),
    stops=("<｜end▁of▁sentence｜>",),
    heads=("<｜Assistant｜>", "<｜User｜>"),
    ignored=tuple(f"{slash}｜DSML｜{group}>" for group in _GROUPS for slash in ("<", "</")),
)
"""Parser of DeepSeek V3, V3.1, V3.2 and V4."""
